"""Where the command prints."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import suppress

from django.core.management.base import BaseCommand, CommandError, OutputWrapper

UNWRITTEN = 74  # EX_IOERR


class Output:
    """``say`` prints what was asked for, ``warn`` what is wrong."""

    def __init__(self, command: BaseCommand) -> None:
        self.out, self._err = command.stdout, command.stderr
        self.from_shell: bool = getattr(command, "_called_from_command_line", False)

    def say(self, text: str) -> None:
        try:
            _write(self.out, text)
        except OSError as error:
            if not self.from_shell:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)  # whoever read us, head say, has closed the pipe
            problem = f"Could not write the output: {error.strerror or error}"
            raise CommandError(problem, returncode=UNWRITTEN) from error

    def warn(self, text: str) -> None:
        if self._err._out is not None:
            with suppress(OSError):
                self._err.write(text)

    def ask(self, question: str) -> str:
        """Ask where somebody sees it though the output may be redirected; return what was typed. EOFError: nothing."""
        _write(self.out if self.out.isatty() else self._err, question, ending="")
        try:
            return input()
        except RuntimeError as error:  # one of the streams is closed
            raise EOFError from error


def _write(stream: OutputWrapper, text: str, ending: str | None = None) -> None:
    """Print ``text``; characters that the terminal's encoding lacks are escaped. A closed stream gets nothing."""
    if stream._out is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    known = text.encode(encoding, "backslashreplace").decode(encoding)
    raw = getattr(stream, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        stream.flush()
        whole = io.StringIO()
        OutputWrapper(whole, stream.ending).write(known, style_func=str, ending=ending)
        _write_all(raw, whole.getvalue().encode(encoding))
        return
    stream.write(known, style_func=str, ending=ending)
    stream.flush()


def _write_all(raw: io.RawIOBase, data: bytes) -> None:
    """``python -u``: a raw stream may write only part of it, and Python's text streams do not notice."""
    rest = memoryview(data)
    while rest:
        written = raw.write(rest)
        if written is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]
