"""Fixtures of the tests of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.helpers import actors
from tests.helpers.actors import InThread, until
from tests.helpers.cancelling import add_gates
from tests.inside import hears, listen


@pytest.fixture
def listening(fresh: None) -> None:
    """Subscribe first, so that waiters queue at once; and start without leftovers of other tests."""
    listen()
    until(hears)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> None:
    add_gates(monkeypatch)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], object]:
    """Make it impossible to start threads of the package."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("redislock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    return lambda really: monkeypatch.setattr(threading.Thread, "start", refuse if really else start)


@pytest.fixture(
    params=[actors.in_thread, actors.in_any_thread, actors.to_thread],
    ids=["thread-sensitive", "any thread", "to_thread"],
)
def in_thread(request: pytest.FixtureRequest) -> InThread:
    """Call a function in a thread, on behalf of the task."""
    return request.param  # type: ignore[no-any-return]
