"""Each test runs on a real Redis, and in the memory mode."""

from __future__ import annotations

from typing import Any

import pytest

from redisserver import RedisServer
from tests.inside import limit

BACKENDS = {"redis": "django_redislock.cache.RedisCache", "memory": "django_redislock.cache.LocMemCache"}


@pytest.fixture(autouse=True, params=BACKENDS)
def where(request: pytest.FixtureRequest, settings: Any, server: RedisServer) -> str:
    cache = {"BACKEND": BACKENDS[request.param]}
    settings.CACHES = {"default": {**cache, "LOCATION": server.url} if request.param == "redis" else cache}
    return str(request.param)


@pytest.fixture
def no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look at the end of a lease, and otherwise only when they are told."""
    limit(monkeypatch, look_every=1000.0)
