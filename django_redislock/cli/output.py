"""Where the command prints."""

from __future__ import annotations

import os
import signal
import sys

from django.core.management.base import BaseCommand, OutputWrapper


class Output:
    """``say`` prints what was asked for, ``warn`` what is wrong."""

    def __init__(self, command: BaseCommand) -> None:
        self.out, self._err = command.stdout, command.stderr
        self.from_shell: bool = getattr(command, "_called_from_command_line", False)

    def say(self, text: str) -> None:
        try:
            _write(self.out, text)
        except BrokenPipeError:
            if not self.from_shell:
                raise
            # whoever read us, head say, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            sys.exit(128 + signal.SIGPIPE)

    def warn(self, text: str) -> None:
        self._err.write(text)

    def ask(self, question: str) -> str:
        """Ask where somebody sees it though the output may be redirected; return what was typed."""
        _write(self.out if self.out.isatty() else self._err, question, ending="")
        return input()


def _write(stream: OutputWrapper, text: str, ending: str | None = None) -> None:
    """Print ``text``; characters that the terminal's encoding lacks are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding), style_func=str, ending=ending)
    stream.flush()
