"""A handoff after a jump of the server's clock since the waiter last looked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.state import NAME, queued
from tests.inside import limit

from .clock import Clock, server_with_clock


def test_a_handoff_is_accepted_when_the_clock_has_jumped_back(
    settings: Any,
    other: Callable[[], Other],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, look_every=10.0 * GENEROUS)
    with server_with_clock() as server, server.client() as client:
        assert isinstance(server, Clock)
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
        lock = Lock(NAME, ttl=36_000)
        lock.acquire()
        waiting = other().start(Lock(NAME, ttl=36_000).acquire)
        eventually(lambda: queued(client))
        server.jump(-3600)
        lock.release()
        assert waiting.result(GENEROUS)
