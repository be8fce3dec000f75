"""Each test runs on a real Redis, and in the memory mode."""

from __future__ import annotations

from typing import Any

import pytest

from redisserver import RedisServer
from tests.checks import BACKEND

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"


@pytest.fixture(autouse=True, params=["redis", "memory"])
def _where(request: pytest.FixtureRequest, settings: Any, server: RedisServer) -> None:
    cache = {"BACKEND": BACKEND, "LOCATION": server.url} if request.param == "redis" else {"BACKEND": LOCMEM}
    settings.CACHES = {"default": cache}
