"""Fixtures of the tests of the engine."""

import threading
from collections.abc import Callable

import pytest

from tests.helpers.cancelling import add_gates

gates = pytest.fixture(add_gates)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], object]:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("redislock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    return lambda really: monkeypatch.setattr(threading.Thread, "start", refuse if really else start)
