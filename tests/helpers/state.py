"""Reads the state of locks, in Redis (from outside) and in this process (from inside)."""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockNotOwned
from django_redislock.engine import Lease, current_owner
from django_redislock.engine.runtime import runtime
from django_redislock.store import probe
from django_redislock.store.keys import make_keys
from django_redislock.store.loop_connections import LoopConnections
from django_redislock.store.stores import get_partition

from .actors import server_time

NAME = "order:42"
PREFIX = "redislock{0}:"
KEYS = make_keys(PREFIX, NAME)
LOCK, QUEUE, WAITERS, INDEX, FENCE = KEYS.all
TOKEN = "a-token-that-the-tests-know"


def fence_of(lock: Lock) -> int | None:
    """The fence of a lock; None if this thread or task does not hold it."""
    try:
        return lock.fence
    except LockNotOwned:
        return None


# -- in Redis -------------------------------------------------------------------------------------------------------


def put(
    client: redis.Redis,
    name: str,
    *,
    owner: str = "host:1:Main",
    since: int = 0,
    ttl: int = 60,
    waiters: int = 0,
    now: int | None = None,
) -> None:
    """A held lock, as the scripts write it; ``since``: seconds ago, which orders the fences too."""
    now = server_time(client) if now is None else now
    began = now - since * 1_000_000
    client.set(f"{PREFIX}lock:{name}", f"{'t' * 22} channel c {began} {began} - {owner}", px=ttl * 1000)
    client.zadd(f"{PREFIX}index", {name: now + ttl * 1_000_000})
    if waiters:
        client.zadd(f"{PREFIX}queue:{name}", {f"id-{number}": now + number for number in range(waiters)})


def value(client: redis.Redis, name: str = NAME) -> list[str]:
    """The value of a lock, split into words; empty when nobody holds it."""
    found = client.get(make_keys(PREFIX, name).lock)
    return found.decode().split(" ") if isinstance(found, bytes) else []


def holder(client: redis.Redis, name: str = NAME) -> str:
    """The id of the attempt that holds the lock in Redis; empty if nobody holds it."""
    return (value(client, name) or [""])[0]


def flag(client: redis.Redis, name: str = NAME) -> str:
    """c: acquired or confirmed, h: handed over, d: detached; empty if nobody holds the lock."""
    return (value(client, name) or ["", "", ""])[2]


def queued(client: redis.Redis, name: str = NAME) -> int:
    """How many wait, according to whichever key has more entries."""
    keys = make_keys(PREFIX, name)
    marks = sum(bool(client.hexists(keys.all[2], field)) for field in "!?")
    return max(int(client.zcard(keys.queue)), int(client.hlen(keys.all[2])) - marks)


def leftovers(client: redis.Redis) -> list[str]:
    """The keys of locks, except those that are meant to stay or that expire by themselves."""
    keys = sorted(key.decode().removeprefix(PREFIX) for key in client.scan_iter())
    return [key for key in keys if key != "fence" and not key.startswith(("gone:", "slot:"))]


def count(client: redis.Redis, command: str) -> int:
    """How many times the server has run a command."""
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


# -- in this process ------------------------------------------------------------------------------------------------


def lease_of(lock: Lock) -> Lease:
    """The lease of this thread or task."""
    section = current_owner().section(lock)
    assert section is not None
    return section.held


def leases() -> list[Lease]:
    """All leases that this process renews."""
    return runtime().watchdog.leases()


def listener(using: str | None = None) -> Any:
    return runtime().listener(get_partition(using))


def listens(ears: Any) -> bool:
    """Whether this process has begun to listen for this alias."""
    subscriber = ears._want.__self__
    return bool(ears.generation or subscriber._thread or subscriber._due or subscriber._receivers)


def reader_of(ears: Any) -> Any:
    """The reader of its messages, while it is subscribed."""
    receiver = ears.receiver
    return None if receiver is None else receiver.reader


def what_listens() -> str:
    """The state of the listeners of this process, and what all its threads are doing."""
    faulthandler.dump_traceback(2)
    ears, reader = listener(), reader_of(listener())
    subscribers = get_partition().execute(("PUBSUB", "NUMSUB", get_partition().channel))
    reading = None if reader is None else (reader._turn(), reader._trouble, reader._connection._sock, reader._followers)
    waiters = [(one.id, one.told) for one in ears.waiters.of(None)]
    return f"ready {ears.ready}, polled {ears.polled}, heard {ears.heard}, {subscribers=}, {reading=}, {waiters=}"


def idle(connections: LoopConnections) -> list[Any]:
    """Idle connections of an event loop."""
    return [connection for idle in connections._idle.values() for connection, _ in idle]


def drop_idle(loop: asyncio.AbstractEventLoop) -> None:
    """Close idle connections of an event loop that is not running, so that nothing warns when it is closed."""
    loop.call_soon(get_partition().store._loops[loop].drop_idle)
    loop.run_until_complete(asyncio.sleep(0))


def change_probe(patch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Change the text of the script that asks whether messages arrive."""
    script = copy(probe._PROBE)
    script.source = change(script.source)
    assert script.source != probe._PROBE.source
    script.register()
    patch.setattr(probe, "_PROBE", script)


def waiting(using: str | None = None) -> int:
    """How many waiters this process has."""
    return len(listener(using).waiters.of())
