"""Real worker processes for the tests, and what the machine must have. What it lacks, the end of the run says."""

import errno
import io
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

from .forkserver import fork

ROOT = Path(__file__).parent.parent.parent


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """The environment for a program that can import what the tests can, and modules in these folders."""
    path = os.pathsep.join(map(str, [*folders, ROOT, ROOT / "testproject"]))
    return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "tests.settings", **more}


def environment_of_another_run(*folders: Path) -> dict[str, str]:
    """The same for a test run that knows nothing of the one of which this test is part."""
    known = environment(*folders)
    return {name: value for name, value in known.items() if not name.startswith(("PYTEST_", "COV"))}


PRELUDE = """
import os, sys, threading, time
import django
django.setup()
from django_redislock import *

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def hear():
    return sys.stdin.readline().strip()
"""

# as in tests/conftest.py; only where it is imported once for many processes
PATIENT = """
from tests.inside import limit
limit(grace=5.0, listening_within=5.0)
"""


class Worker:
    """A process that runs ``first``, the prelude and ``code``, in which ``values`` are global names. It says lines and
    hears lines.

    It is forked from a process that has run the prelude already, unless ``first`` is given, or ``fresh``: for tests of
    how processes begin, fork and end, or that wait for a child of their own."""

    def __init__(self, code: str, *, first: str = "", fresh: bool = False, **values: Any) -> None:
        source = "".join(f"{key} = {value!r}\n" for key, value in values.items()) + code
        forked = None if first or fresh else fork(PRELUDE + PATIENT, source, environment(), ROOT)
        command, pipe = [sys.executable, "-c", first + PRELUDE + source], subprocess.PIPE
        self.process: Any = forked or subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment(), cwd=ROOT)
        self.buffer = b""
        self.pid = self.process.pid
        self.signal = self.process.send_signal

    def expect(self, word: str, within: float = 90) -> list[str]:
        """Read lines until one starts with ``word``; answers the words behind it."""
        deadline = time.monotonic() + within
        handle = self.process.stdout.fileno()
        while True:
            while b"\n" in self.buffer:
                line, _, self.buffer = self.buffer.partition(b"\n")
                said, *words = line.decode().split() or [""]
                if said == word:
                    return words
            ready, _, _ = select.select([handle], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the worker did not say {word!r} within {within} s"
            chunk = os.read(handle, 65536)
            assert chunk, f"the worker ended ({self.process.wait()}) before it said {word!r}"
            self.buffer += chunk

    def tell(self, line: str = "") -> None:
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with suppress(BrokenPipeError):
            self.process.stdin.close()


Found = TypeVar("Found")

_MARK = "the machine lacks "


class MissingError(RuntimeError):
    """``what`` is not on this machine; ``remedy`` says how to get it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")


def require(find: Callable[[], Found]) -> Found:
    """What ``find`` finds; if it finds nothing, skip the test, or fail it if the environment variable CI is set."""
    try:
        return find()
    except MissingError as missing:
        message = f"{_MARK}{missing}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def left_out(reasons: Iterable[str]) -> str:
    """The last line of a run whose tests were skipped for these reasons; empty if nothing was missing."""
    missing = Counter(reason.partition(_MARK)[2] for reason in reasons if _MARK in reason)
    parts = [f"{count} test{'s that need' if count > 1 else ' that needs'} {what}" for what, count in missing.items()]
    return f"Left out: {'; '.join(parts)}." if parts else ""


def wheel_folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


class Full(io.StringIO):
    """Like a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")
