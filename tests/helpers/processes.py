"""Real worker processes for the tests."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

PRELUDE = """
import os, sys, threading, time
import django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()
from django_redislock import *

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def hear():
    return sys.stdin.readline().strip()
"""


class Worker:
    """A process that runs ``code`` after the prelude; values become its global names. It says lines and hears lines.

    ``first`` comes before the prelude and whatever that imports.
    """

    def __init__(self, code: str, *, first: str = "", **values: Any) -> None:
        source = first + PRELUDE + "".join(f"{key} = {value!r}\n" for key, value in values.items()) + code
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "testproject")])}
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT
        )
        self.buffer = b""
        self.pid = self.process.pid
        self.signal = self.process.send_signal

    def expect(self, word: str, within: float = 30) -> list[str]:
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
