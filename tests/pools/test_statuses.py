"""The statuses of a pool's members, who holds them and who waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from django_redislock import LockPool, get_lock, list_locks
from django_redislock.inspection import LockStatus
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.pools import HELD, POOL, lock_of, raw

Eventually = Callable[..., Any]


def test_each_member_has_a_status(me: Any, crowd: Crowd, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob", "carol", "dave"])
    assert me(pool, "acquire").key == "alice"
    assert crowd()(pool, "acquire").key == "bob"
    raw(pool.using or "", "HSET", HELD, "carol", "somebody's")
    statuses = {
        "alice": LockStatus.LOCKED,
        "bob": LockStatus.UNAVAILABLE,
        "carol": LockStatus.ERROR,
        "dave": LockStatus.FREE,
    }
    assert me(pool, "items_locked_status") == list(statuses.items())
    assert me(pool, "values_lock_status") == list(statuses.values())
    assert me(pool, "health_check") == (3, 1)


def test_an_empty_pool_is_healthy(me: Any, pool: LockPool) -> None:
    assert me(pool, "items_locked_status") == me(pool, "values_lock_status") == []
    assert me(pool, "health_check") == (0, 0)
    info = me(pool, "info")
    assert (info.name, info.members, info.free, info.locks, info.waiters, info.queue) == (POOL, 0, 0, (), 0, ())


def test_statuses_take_two_round_trips_however_many_members_there_are(client: redis.Redis) -> None:
    pool = LockPool(POOL)
    trips = []
    for many in (10, 3000):
        pool.assign(f"key-{number}" for number in range(many))
        before = client.info("stats")["total_reads_processed"]
        assert pool.health_check() == (0, many)
        trips.append(client.info("stats")["total_reads_processed"] - before - 1)
    assert trips[0] == 2
    # a long write arrives in several pieces, each of 16 kB
    assert trips[1] < 60


def test_members_are_listed_like_any_lock(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["a:b"])
    member = me(pool, "acquire")
    fence = me.read(lambda: member.fence)
    (listed,) = list_locks(using=pool.using)
    assert (listed.name, listed.fence) == ("pool:accounts:a%3Ab", fence)
    info = get_lock(member.name, using=pool.using)
    assert info is not None
    assert info.fence == fence
    me(member, "release")
    assert list_locks(using=pool.using) == []


def test_info_tells_who_holds_members_and_who_waits(
    me: Any, crowd: Crowd, pool: LockPool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice", "bob", "carol"])
    another = LockPool(f"{POOL}-too", using=pool.using)
    another.extend(["dave"])
    another.acquire()
    held = [me(pool, "acquire").name for _ in range(2)]
    info = me(pool, "info")
    assert (info.name, info.members, info.free, info.waiters, info.queue) == (POOL, 3, 1, 0, ())
    assert [lock.name for lock in info.locks] == held == [lock_of("alice"), lock_of("bob")]
    me(pool, "shrink", ["carol"])
    wanted = crowd().start(pool, "acquire", blocking_timeout=GENEROUS)
    eventually(lambda: me(pool, "info").waiters == 1)
    (waiter,) = me(pool, "info").queue
    assert waiter.owner
    assert waiter.waited >= 0
    of_member = get_lock(held[0], using=pool.using)
    assert of_member is not None
    assert (of_member.waiters, of_member.pool_waiters, len(of_member.pool_queue)) == (0, 1, 1)
    me(pool, "extend", ["zoe"])
    assert wanted.result(GENEROUS).key == "zoe"


def test_info_counts_all_who_wait_and_lists_the_first_hundred(
    accounts: LockPool, ghost: Callable[..., Any], eventually: Eventually
) -> None:
    there = ghost()
    with accounts.acquire(), accounts.acquire():
        for number in range(120):
            there.queue(f"{number:03}".ljust(22, "x"), name="pool:accounts:")
        info = accounts.info()
    assert (info.waiters, len(info.queue)) == (120, 100)
