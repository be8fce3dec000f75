"""What the jobs of the tests note, what they wait for, and the programs that run them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import redis

from django_redislock import get_lock
from tests.helpers.forkserver import fork
from tests.helpers.processes import ROOT, MissingError, environment, require, wheel_folder
from tests.helpers.state import held as held
from tests.inside import limit

limit(grace=5.0)  # in the programs that run jobs, as in tests/conftest.py


def url(database: int) -> str:
    """The server of the session, or nothing where there is none yet."""
    return f"{os.environ.get('REDISLOCK_TEST_URL', 'redis://127.0.0.1:1/0').rpartition('/')[0]}/{database}"


def _client() -> redis.Redis:
    return redis.Redis.from_url(url(3), decode_responses=True)


def note(*facts: Any) -> None:
    """In a job: tell the test what happened."""
    with _client() as client:
        client.rpush("runs", " ".join(map(str, facts)))


def runs() -> list[str]:
    """What the jobs have noted."""
    with _client() as client:
        return [str(line) for line in client.lrange("runs", 0, -1)]


def gate(name: str) -> None:
    """In a job: wait until the test opens this gate."""
    with _client() as client:
        while name and not client.exists(f"gate:{name}"):
            time.sleep(0.01)


def let_pass(name: str) -> None:
    with _client() as client:
        client.set(f"gate:{name}", 1)


def lease_of(name: str) -> float:
    info = get_lock(name)
    return 0.0 if info is None else info.lease_left


class Program:
    """A program with a session of its own: ``code``, after the imports in ``first``.

    It is forked from a process that has these already, unless it has an ``environment`` of its own.
    """

    def __init__(self, code: str, *arguments: str, first: str = "", **own: str) -> None:
        around = environment(**own)
        begin = f"import os, sys; os.setsid(); os.dup2(2, 1); sys.argv[1:] = {arguments!r}\n"
        forked = fork(f"{first}\n", begin + code, around, ROOT) if first and not own else None
        command = [sys.executable, "-c", f"{first}\n{begin}{code}"]
        self.process: Any = forked or subprocess.Popen(command, env=around, cwd=ROOT)

    def kill(self) -> None:
        """Kill it with all that it has started, also in process groups of their own.

        When this returns, all of them are dead. What they share is closed only then: while one of them is alive, Redis
        hands the next job to a worker that was killed and whose connection has been inherited.
        """
        self.process.kill()  # so that it starts nothing more
        while alive := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_alive(pid)]:
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        for end in self.process.stdin, self.process.stdout:
            if end is not None:
                end.close()

    def _is_alive(self, pid: int) -> bool:
        """Also a process whose first thread has ended before the others: it has its files still."""
        try:
            state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
            return int(session) == self.process.pid and (state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1)
        except OSError:
            return False


def require_package(name: str) -> None:
    def find() -> object:
        if (folder := wheel_folder(name)) is None:
            raise MissingError(name, f"python -m pip install {name.replace('_', '-')}")
        return folder

    require(find)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hides the function itself."""
    return lambda *args: function(*args)


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides what the function is."""
    return wraps(function)(bare(function))


async def coroutine(*args: Any) -> None:
    note("coroutine")


def generator(*args: Any) -> Iterator[None]:
    note("generator")
    yield


async def agenerator(*args: Any) -> AsyncIterator[None]:
    note("generator")
    yield
