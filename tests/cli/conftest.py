"""Helpers of the tests of the command: calling it, in this process and in a process of its own."""

import ctypes
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from django_redislock import Lock
from tests.helpers.actors import GENEROUS, Other, until
from tests.helpers.processes import ROOT

NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
# the same, as a cluster whose client connects as soon as it is made
OF_CLUSTER = {"CLIENT_CLASS": "tests.helpers.ways.ClusterClient"}
NOWHERE_AS_CLUSTER = {"default": {**NOWHERE["default"], "OPTIONS": OF_CLUSTER}}
NAME = "nightly"
FOREVER = "while :; do sleep 0.02; done"

Answer = Callable[..., None]
InProcess = Callable[..., subprocess.Popen[str]]
WaitFor = Callable[..., Future[bool]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def redislocks(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("redislocks", *arguments, stdout=out, **options)
    return out.getvalue()


def fails(status: int, message: str, *arguments: str, **options: Any) -> str:
    """The command, called from code, fails with this status and a message that matches; returns its output."""
    out = io.StringIO()
    with pytest.raises(CommandError, match=message) as caught:
        call_command("redislocks", *arguments, stdout=out, **options)
    assert caught.value.returncode == status
    return out.getvalue()


def main(*arguments: str) -> int:
    """The exit status of the command, called as from a shell, with the streams of ``sys``."""
    try:
        load_command_class("django_redislock", "redislocks").run_from_argv(["manage.py", "redislocks", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def sh(script: str, *options: str, name: str = NAME) -> int:
    """The exit status of ``redislocks run`` for a shell script under the lock ``name``."""
    return main("run", name, *options, "--", "sh", "-c", script)


def written(path: Path) -> str:
    """Shell: wait until something is written there."""
    return f"until [ -s {path} ]; do sleep 0.02; done"


def held(names: str) -> str:
    """Which of these locks, of one letter each, are held."""
    return "".join(name for name in names if Lock(name).locked())


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Set what is typed when the command asks (None: nothing, nobody is there), and what happens before that."""

    def answer(text: str | None, before: Callable[[], Any] = lambda: None) -> None:
        class Typed(io.StringIO):
            def readline(self, *size: Any) -> str:  # type: ignore[override]
                before()
                return super().readline(*size)

        monkeypatch.setattr(sys, "stdin", Typed("" if text is None else f"{text}\n"))

    return answer


@pytest.fixture
def wait_for(other: Callable[[], Other]) -> WaitFor:
    """Let another thread wait for a held lock; the future is done once that thread has had the lock."""

    def wait_for(name: str, **options: Any) -> Future[bool]:
        def wait() -> bool:
            with Lock(name, blocking_timeout=GENEROUS, **options):
                return True

        look: Any = Lock(name).info
        before = look().waiters
        waiting = other().start(wait)
        until(lambda: (info := look()) and info.waiters > before)
        return waiting

    return wait_for


@pytest.fixture
def once_ready(other: Callable[[], Other], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Let something happen once the program has run the shell command that this returns."""
    begun: list[Future[Any]] = []

    def once_ready(act: Callable[[], Any]) -> str:
        begun.append(other().start(lambda: until((tmp_path / "ready").exists) and act()))
        return f"touch {tmp_path}/ready"

    yield once_ready
    for one in begun:
        one.result(GENEROUS)


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda handle: False)


@pytest.fixture
def as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Let something happen while the lock is held and the program is being started."""

    def as_it_starts(act: Callable[[], Any]) -> None:
        get_path = os.get_exec_path  # where Popen looks for a program

        def looked_for(*args: Any) -> Any:
            monkeypatch.setattr(os, "get_exec_path", get_path)
            act()
            return get_path(*args)

        monkeypatch.setattr(os, "get_exec_path", looked_for)

    return as_it_starts


@pytest.fixture
def process_1() -> Iterator[None]:
    """Make orphans children of this process, as they are of process 1 in a container."""
    if sys.platform != "linux":
        pytest.skip("only Linux has PR_SET_CHILD_SUBREAPER")
    prctl = ctypes.CDLL(None).prctl
    assert prctl(36, 1, 0, 0, 0) == 0
    yield
    assert prctl(36, 0, 0, 0, 0) == 0


@pytest.fixture
def in_process() -> Iterator[InProcess]:
    """Start the command in a process of its own, without a terminal; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "django", "redislocks", arguments[0], "--settings=tests.settings", *arguments[1:]],
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
