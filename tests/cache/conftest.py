"""``cache.lock()`` of django-redis, which is redis-py's lock, and of our backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.cache import caches
from redis.lock import Lock as RedisPyLock

from django_redislock import Lock
from redisserver import RedisServer
from tests.inside import keys_of

Make = Callable[..., Any]
Eventually = Callable[..., Any]
Expire = Callable[[Any], None]
BACKEND = "django_redislock.cache.RedisCache"
SHORT = 0.15  # seconds


@pytest.fixture
def _aliases(settings: Any, server: RedisServer) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "redis-py": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url},
        "ours": {"BACKEND": BACKEND, "LOCATION": server.url},
    }
    settings.REDISLOCK = {"CACHE": "ours"}


def lock_of(alias: str, key: object, *args: Any, **options: Any) -> Any:
    return caches[alias].lock(key, *args, **options)  # type: ignore[attr-defined]


@pytest.fixture(params=["redis-py", "ours"])
def make(request: pytest.FixtureRequest, _aliases: None) -> Make:
    return lambda **options: lock_of(request.param, "foo", **options)


@pytest.fixture
def ours(_aliases: None) -> Make:
    return lambda **options: lock_of("ours", "foo", **options)


@pytest.fixture
def expire(eventually: Eventually) -> Expire:
    """Wait until the lock has ended."""
    return lambda lock: eventually(lambda: not lock.locked())


def left(client: redis.Redis, lock: Any) -> float:
    """Seconds of lease left, according to Redis."""
    key = lock.name if isinstance(lock, RedisPyLock) else keys_of(lock.name).lock
    return float(client.pttl(key)) / 1000


def waits(number: int) -> bool:
    """Whether that many wait for our lock."""
    info = Lock("foo").info()
    return info is not None and info.waiters == number
