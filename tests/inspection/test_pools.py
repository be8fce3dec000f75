"""``list_pools()``: the pools with members, in numbers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import LockPool, LockUnavailable, PoolSummary, list_pools
from tests.helpers.actors import Crowd
from tests.inside import PREFIX


def summary(name: str, members: int, held: int = 0, waiters: int = 0) -> PoolSummary:
    return PoolSummary(name, "default", members, held, waiters)


def test_every_pool_is_listed_by_name_as_long_as_it_has_members(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    assert you(django_redislock, "list_pools") == []
    for name, members in (("b", "xyz"), ("a:ä", "x"), ("c", "x")):
        me(LockPool(name), "assign", list(members))
    assert you(django_redislock, "list_pools") == [summary("a:ä", 1), summary("b", 3), summary("c", 1)]
    assert you(django_redislock, "list_pools", "?") == [summary("b", 3), summary("c", 1)]
    me(LockPool("b"), "shrink", ["x", "y"])
    me(LockPool("c"), "clear")
    assert you(django_redislock, "list_pools") == [summary("a:ä", 1), summary("b", 1)]
    me(LockPool("a:ä"), "shrink", ["x"])
    me(LockPool("b"), "shrink", ["z"])
    assert you(django_redislock, "list_pools") == []


def test_members_that_are_held_suspended_or_waited_for_are_counted(crowd: Crowd, eventually: Any) -> None:
    me, you, pool = crowd(), crowd(), LockPool("accounts")
    me(pool, "extend", ["alice", "bob", "carol"])
    member = me(pool, "acquire")
    me(pool, "suspend", "carol", 600)
    assert list_pools() == [summary("accounts", 3, held=2)]
    me(pool, "acquire")
    waiting = you.start(pool, "acquire")
    eventually(lambda: list_pools() == [summary("accounts", 3, held=3, waiters=1)])
    me(member, "release")
    waiting.result(30)
    assert list_pools() == [summary("accounts", 3, held=3)]
    me(LockPool("others"), "extend", ["alice"])
    me(LockPool("others"), "acquire", ttl=0.5, auto_renew=False)
    eventually(lambda: list_pools("others") == [summary("others", 1)])


def test_a_pool_whose_members_redis_has_evicted_is_left_out(client: redis.Redis) -> None:
    LockPool("accounts").extend(["alice"])
    client.delete(f"{PREFIX}members:pool:accounts:")
    assert list_pools() == []


def test_what_somebody_else_wrote_there_is_no_pool(client: redis.Redis) -> None:
    LockPool("accounts").extend(["alice"])
    client.zadd(f"{PREFIX}pools", {"order:42": 0, "pool::": 0})
    client.zadd(f"{PREFIX}pools", {b"\xff": 0})
    assert list_pools() == [summary("accounts", 1)]
    client.set(f"{PREFIX}pools", "a text")
    with pytest.raises(LockUnavailable, match="pools"):
        list_pools()
