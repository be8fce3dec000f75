"""Where the command prints."""

from __future__ import annotations

import os
import signal
import sys

from django.core.management.base import BaseCommand


class Output:
    """``say`` prints what was asked for, ``warn`` what is wrong."""

    def __init__(self, command: BaseCommand) -> None:
        self.out, self._err = command.stdout, command.stderr
        self.from_shell: bool = getattr(command, "_called_from_command_line", False)

    def say(self, text: str, ending: str | None = None) -> None:
        """Print ``text``; characters that the terminal's encoding lacks are escaped."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        try:
            self.out.write(text.encode(encoding, "backslashreplace").decode(encoding), ending=ending)
            self.out.flush()
        except BrokenPipeError:
            if not self.from_shell:
                raise
            # whoever read us, head say, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            sys.exit(128 + signal.SIGPIPE)

    def warn(self, text: str) -> None:
        self._err.write(text)
