"""Fixtures of the tests of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redisserver import RedisServer
from tests.helpers.actors import until
from tests.helpers.cancelling import add_gates
from tests.helpers.proxy import Proxy, proxy
from tests.inside import hears, listen


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    with proxy(server.port) as running:
        default = {**settings.CACHES["default"], "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield running
        settings.CACHES = {**settings.CACHES}


@pytest.fixture
def listening(fresh: None) -> None:
    """Subscribe first, so that waiters queue at once; and start without leftovers of other tests."""
    listen()
    until(hears)


gates = pytest.fixture(add_gates)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], object]:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("redislock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    return lambda really: monkeypatch.setattr(threading.Thread, "start", refuse if really else start)
