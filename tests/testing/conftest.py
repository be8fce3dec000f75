"""Each test runs on a real Redis, and in the memory mode."""

from typing import Any

import pytest

from redisserver import RedisServer

BACKENDS = {"redis": "django_redislock.cache.RedisCache", "memory": "django_redislock.cache.LocMemCache"}


@pytest.fixture(autouse=True, params=BACKENDS)
def where(request: pytest.FixtureRequest, settings: Any, server: RedisServer) -> str:
    cache = {"BACKEND": BACKENDS[request.param]}
    settings.CACHES = {"default": {**cache, "LOCATION": server.url} if request.param == "redis" else cache}
    return str(request.param)
