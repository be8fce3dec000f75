"""Helpers of the tests of the command: calling it, in this process and in a process of its own."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from django.core.management import call_command

import django_redislock
from django_redislock import Lock, get_lock
from django_redislock.cli import run as runner
from tests.cli.programs import Background
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.listed import endless as endless
from tests.helpers.listed import two_aliases as two_aliases

ROOT = Path(django_redislock.__file__).parent.parent
NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}

Answer = Callable[[str | None], None]
InProcess = Callable[..., subprocess.Popen[str]]
Eventually = Callable[..., Any]
WaitFor = Callable[[str], Future[bool]]


def redislocks(*arguments: str, **options: Any) -> str:
    """Run the command in this process; return its output."""
    out = io.StringIO()
    call_command("redislocks", *arguments, stdout=out, **options)
    return out.getvalue()


def hold(name: str, **options: Any) -> str:
    """Acquire the lock and detach it, so that it stays held; return the token."""
    lock = Lock(name, **options)
    assert lock.acquire(blocking=False)
    return lock.detach()


def start_command(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> subprocess.Popen[str]:
    """Start the command as a site would, in a process of its own, without a terminal and without
    DJANGO_SETTINGS_MODULE."""
    known = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return subprocess.Popen(
        [sys.executable, "-m", "django", "redislocks", *arguments],
        text=True,
        cwd=ROOT,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        start_new_session=True,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


@pytest.fixture
def in_process() -> Iterator[InProcess]:
    """Start the command in a process of its own; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        started.append(start_command(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_in_process(in_process: InProcess) -> InProcess:
    """Start ``redislocks run`` in a process of its own."""
    return lambda *arguments, **options: in_process("run", "--settings=tests.settings", *arguments, **options)


@pytest.fixture
def wait_for(other: Callable[[], Other], eventually: Eventually) -> WaitFor:
    """Let another thread wait for a held lock; the future is done once that thread has had the lock."""

    def wait_for(name: str) -> Future[bool]:
        def wait() -> bool:
            with Lock(name, blocking_timeout=GENEROUS):
                return True

        info = get_lock(name)
        assert info is not None
        waiting = other().start(wait)
        eventually(lambda: (found := get_lock(name)) and found.waiters == info.waiters + 1)
        return waiting

    return wait_for


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Set what is typed when the command asks; None: nobody answers."""

    def answer(text: str | None) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("" if text is None else f"{text}\n"))

    return answer


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, wherever the tests are run."""
    monkeypatch.setattr(runner, "has_terminal", lambda: False)


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
def background(other: Callable[[], Other]) -> Iterator[Background]:
    """Run something in the background while a program runs in the main thread."""
    begun: list[Future[Any]] = []
    yield lambda work: begun.append(other().start(work))
    for one in begun:
        one.result(GENEROUS)
