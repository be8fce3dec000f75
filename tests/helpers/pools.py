"""Pools in the tests: their keys in Redis, and whether these fit together."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
import redis

from django_redislock import LockNotAcquired, LockPool, PoolMember, lock_name
from tests import inside
from tests.inside import PREFIX, pool_keys, pool_name

from .actors import GENEROUS, Ghost, server_time
from .state import leftovers as all_leftovers

POOL = "accounts"
ANY = pool_name(POOL)
TTL = 600  # seconds: longer than any test
MEMBERS, FRESH, FREE, HELD, BUSY, _, WANTED, LINE, _ = pool_keys(POOL)

Held = Callable[[str], None]
Wait = Callable[..., Future[PoolMember]]


def got(request: Future[PoolMember]) -> str:
    return request.result(GENEROUS).key


def refuses(person: Any, pool: LockPool) -> None:
    with pytest.raises(LockNotAcquired):
        person(pool, "acquire", blocking_timeout=0)


def lock_of(key: str, pool: str = POOL) -> str:
    return lock_name("pool", pool, key)


class Audit(NamedTuple):
    """What Redis has of a pool at one moment."""

    members: set[str]
    free: set[str]  # members that nobody holds, and that a checkout finds
    held: set[str]
    lost: set[str]  # members that nobody holds, and that no checkout will ever find


def audit(client: redis.Redis, pool: str = POOL, prefix: str = PREFIX) -> Audit:
    """What there is of a pool, if it fits together."""
    members, fresh, free, held, busy, took, *_ = pool_keys(pool, prefix)
    with client.pipeline() as moment:
        for key in (members, fresh, free, busy, f"{prefix}index"):
            moment.zrange(key, 0, -1)
        moment.hgetall(held)
        moment.hgetall(took)
        *sets, values, taken = moment.execute()
    every, unused, used, leased, index = ({member.decode() for member in found} for found in sets)
    holders = {member.decode(): value.decode().split() for member, value in values.items() if member[:1] != b":"}
    assert holders.keys() <= leased, "a lease without an end"
    assert {pool_name(pool) + member for member in holders} <= index, "held, and not in the list of locks"
    for id, member in taken.items():
        words = holders.get(member.decode(), ["nobody"] * 6)
        assert id.decode() in (words[0], words[5]), f"{member.decode()} was given to an attempt that does not hold it"
    open_to_all = (unused | used) - holders.keys()
    return Audit(every, every & open_to_all, set(holders), every - open_to_all - leased)


def leases_end(client: redis.Redis, *keys: str) -> None:
    """The leases of these members end now, and nobody is told."""
    assert client.hlen(HELD) >= len(keys)
    client.zadd(BUSY, dict.fromkeys(keys, server_time(client) - 1), xx=True)


def crowd_around(ghost: Ghost) -> None:
    """Both members, alice and bob, are held; two wait for alice, 103 for any, the first for 200 seconds."""
    pool = LockPool(POOL)
    pool.extend(["alice", "bob"])
    for _ in range(2):
        pool.acquire(ttl=TTL)
    for number in range(105):
        ghost.queue(f"{number:025}", name=lock_of("alice") if number < 2 else ANY, age=200 - number)


def leave(ghost: Ghost, id: str) -> None:
    ghost.release(ghost.request(id, name=ANY))


def poll(ghost: Ghost, id: str, patience: float = 50) -> inside.AcquireReply:
    """A waiter of this process asks for any member, and will look again by itself within ``patience`` seconds."""
    return ghost.acquire(ghost.request(id, name=ANY), inside.polled(patience))


def holder(client: redis.Redis, key: str) -> str:
    """The id of the attempt that holds a member; empty when nobody does."""
    value: Any = client.hget(HELD, key) or b""
    return str(value.decode().partition(" ")[0])


def in_line(client: redis.Redis) -> list[str]:
    found: list[Any] = client.zrange(LINE, 0, -1)
    return [id.decode() for id in found]


def leftovers(client: redis.Redis) -> list[str]:
    """Keys beside a pool's members, but for the last fence and what ends by itself within a minute or so: the trace of
    a handoff, which holds up nobody, or members that were sent in part."""

    def passes(key: str) -> bool:
        fields: Any = client.hkeys(f"{PREFIX}{key}") if key.startswith("waiters:") else [key.encode()]
        ends = all(field.startswith((b"!", b"?", b"next_")) for field in fields)
        return ends and 0 < int(client.pttl(f"{PREFIX}{key}")) <= 70_000

    kept = ("members:", "fresh:", "free:", "pools")
    return [key for key in all_leftovers(client) if not key.startswith(kept) and not passes(key)]
