"""``cache.lock()`` of django-redis, which is redis-py's lock, and of our backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.cache import caches
from redis.lock import Lock as RedisPyLock

from django_redislock import Lock
from django_redislock.cache_lock import CacheLock
from redisserver import RedisServer
from tests.inside import keys_of

Make = Callable[..., Any]
SHORT = 0.15  # seconds


@pytest.fixture
def _aliases(settings: Any, server: RedisServer) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "redis-py": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url},
        "ours": {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": server.url},
    }
    settings.REDISLOCK = {"CACHE": "ours"}


def lock_of(alias: str, key: object, **options: Any) -> Any:
    return caches[alias].lock(key, **options)  # type: ignore[attr-defined]


@pytest.fixture(params=["redis-py", "ours"])
def make(request: pytest.FixtureRequest, _aliases: None) -> Make:
    """Makes a lock ``foo``; the test runs with each kind."""

    def make(**options: Any) -> Any:
        return lock_of(request.param, "foo", **options)

    return make


@pytest.fixture
def ours(_aliases: None) -> Make:
    """Makes a lock of our backend."""

    def ours(**options: Any) -> CacheLock:
        lock: CacheLock = lock_of("ours", "foo", **options)
        return lock

    return ours


@pytest.fixture
def expire(eventually: Callable[..., Any]) -> Callable[[Any], None]:
    """Wait until the lock has ended."""
    return lambda lock: eventually(lambda: not lock.locked())


@pytest.fixture
def renewed(client: redis.Redis, eventually: Callable[..., Any]) -> Callable[[Any], None]:
    """Wait until the lease is renewed."""

    def renewed(lock: Any) -> None:
        least = left(client, lock)

        def begins_anew() -> bool:
            nonlocal least
            now, least = left(client, lock), min(least, left(client, lock))
            return now > least + 0.1

        eventually(begins_anew)

    return renewed


def left(client: redis.Redis, lock: Any) -> float:
    """Seconds of lease left, according to Redis."""
    key = lock.name if isinstance(lock, RedisPyLock) else keys_of(lock.name).lock
    return float(client.pttl(key)) / 1000


def waits(number: int) -> bool:
    """Whether that many wait for our lock."""
    info = Lock("foo").info()
    return info is not None and info.waiters == number
