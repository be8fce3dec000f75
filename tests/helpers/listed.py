"""For the tests of lists, in Python and in the admin: locks whose keys others have changed, locks on several aliases,
and what a list costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock
from redisserver import RedisServer
from tests.inside import PREFIX, after_round_trips

from .actors import server_time
from .state import INDEX, put


@pytest.fixture
def endless(client: redis.Redis, eventually: Callable[..., Any]) -> None:
    """Two locks that never expire (the first was once ours, the second never was), and an intact one."""
    put(client, "persisted", owner="web-1", ttl=1)
    client.persist(f"{PREFIX}lock:persisted")
    client.set(f"{PREFIX}lock:foreign", "<b>of somebody else</b>")
    assert not Lock("foreign").acquire(blocking=False)  # one of our attempts queues for it
    put(client, "sound")
    eventually(lambda: (client.zscore(INDEX, "persisted") or 0.0) < server_time(client))


@pytest.fixture
def two_aliases(settings: Any, server: RedisServer) -> None:
    """Locks are on ``locks``, and those of ``cache.lock()`` on ``default``; ``again`` leads to the same Redis as
    ``default``."""
    mine = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": server.url}
    locks = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{server.port}/1"}
    settings.CACHES = {"default": mine, "again": {**mine, "VERSION": 2}, "locks": locks}
    settings.REDISLOCK = {"CACHE": "locks"}


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands in each round trip of this process's threads."""
    made: list[int] = []
    after_round_trips(monkeypatch, made.append)
    return made


def put_member(client: redis.Redis, pool: str, member: str, *, ttl: int | None = 60) -> None:
    """A held member of a pool, as the scripts write it; with ``ttl`` None, it never expires."""
    now = server_time(client)
    value = f"{'t' * 22} channel c {now} {now} - host:1:Main"
    client.hset(f"{PREFIX}held:pool:{pool}:", member, value)
    client.zadd(f"{PREFIX}index", {f"pool:{pool}:{member}": now + (ttl or 0) * 1_000_000})
    if ttl is not None:
        client.zadd(f"{PREFIX}busy:pool:{pool}:", {member: now + ttl * 1_000_000})
