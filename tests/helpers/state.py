"""Reads the state of locks in Redis."""

from __future__ import annotations

from typing import Any

import redis

from django_redislock import Lock, LockNotOwned, get_lock
from tests.inside import PREFIX, keys_of

from .actors import server_time

NAME = "order:42"
LOCK, QUEUE, WAITERS, INDEX, FENCE = keys_of(NAME).all
TOKEN = "a-token-that-the-tests-know"


def fence_of(lock: Lock) -> int | None:
    """The fence of a lock; None if this thread or task does not hold it."""
    try:
        return lock.fence
    except LockNotOwned:
        return None


def put(
    client: redis.Redis, name: str, owner: str = "host:1:Main", *, since: int = 0, ttl: int = 60, waiters: int = 0
) -> None:
    """A held lock, as the scripts write it; ``since``: seconds ago, which orders the fences too."""
    now = server_time(client)
    began = now - since * 1_000_000
    client.set(f"{PREFIX}lock:{name}", f"{'t' * 22} channel c {began} {began} - {owner}", px=ttl * 1000)
    client.zadd(f"{PREFIX}index", {name: now + ttl * 1_000_000})
    for number in range(waiters):
        client.zadd(f"{PREFIX}queue:{name}", {f"id-{number}": now + number})


def value(client: redis.Redis, name: str = NAME) -> list[str]:
    """The value of a lock, split into words; empty when nobody holds it."""
    found = client.get(keys_of(name).lock)
    return found.decode().split(" ") if isinstance(found, bytes) else []


def holder(client: redis.Redis, name: str = NAME) -> str:
    """The id of the attempt that holds the lock in Redis; empty if nobody holds it."""
    return "".join(value(client, name)[:1])


def flag(client: redis.Redis, name: str = NAME) -> str:
    """c: acquired or confirmed, h: handed over, d: detached; empty if nobody holds the lock."""
    return "".join(value(client, name)[2:3])


def queued(client: redis.Redis, name: str = NAME) -> int:
    """How many wait, according to whichever key has more entries."""
    keys = keys_of(name)
    marks = sum(bool(client.hexists(keys.all[2], field)) for field in "!?")
    return max(int(client.zcard(keys.queue)), int(client.hlen(keys.all[2])) - marks)


def leftovers(client: redis.Redis) -> list[str]:
    """The keys of locks, except those that are meant to stay or that expire by themselves."""
    keys = sorted(key.decode().removeprefix(PREFIX) for key in client.scan_iter())
    return [key for key in keys if key != "fence" and not key.startswith(("gone:", "slot:"))]


def count(client: redis.Redis, command: str) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def outlives(ttl: float, name: str) -> bool:
    """Whether a lock is held for longer than its TTL by now, so that it must have been renewed."""
    info = get_lock(name)
    assert info is not None, f"{name} is free"
    return info.held_for > 1.2 * ttl
