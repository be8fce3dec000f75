"""The members of a pool: putting in, taking out, replacing; their statuses. See test_held_members.py for those in
use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, LockPool, LockStatus, force_release, get_lock
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.pools import ANY, HELD, POOL, lock_of, raw
from tests.helpers.processes import Worker
from tests.helpers.state import count
from tests.inside import PREFIX

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

ODD = ["a:b", "a%3Ab", "x y", "größe", "日本", "{0}", "100%", "line\nbreak", "*", "\u3000", "-", "%"]


def test_members_are_put_in_taken_out_and_replaced(me: Any, pool: LockPool) -> None:
    for how, keys, changed, members in (
        ("extend", ["bob", "alice"], 2, ["alice", "bob"]),
        ("extend", iter(["alice", "carol", "carol"]), 1, ["alice", "bob", "carol"]),
        ("extend", [], 0, ["alice", "bob", "carol"]),
        ("shrink", ["bob", "dave"], 1, ["alice", "carol"]),
        ("shrink", [], 0, ["alice", "carol"]),
        ("assign", ("carol", "dave", "erin"), 2, ["carol", "dave", "erin"]),
        ("assign", ["carol"], 0, ["carol"]),
        ("shrink", ("alice", "carol"), 1, []),
    ):
        assert me(pool, how, keys) == changed
        assert me(pool, "keys") == members
        assert me(pool, "len") == len(members)
    me(pool, "extend", ["alice"])
    assert me(pool, "clear") is None
    assert me(pool, "keys") == []


async def test_a_pool_is_iterated_over_and_true_without_a_look(pool: LockPool, client: redis.Redis) -> None:
    before = count(client, "zcard"), count(client, "zrange")
    assert pool
    assert repr(pool) == "<LockPool 'accounts'>"
    assert (count(client, "zcard"), count(client, "zrange")) == before
    await pool.aextend(["bob", "alice"])
    assert [key async for key in pool] == await asyncio.to_thread(list, pool) == ["alice", "bob"]


def test_keys_may_be_any_text(me: Any, pool: LockPool) -> None:
    assert me(pool, "extend", ODD) == len(ODD)
    assert sorted(me(pool, "keys")) == sorted(ODD)
    assert all(me(pool, "contains", key) for key in ODD)
    assert not any(me(pool, "contains", key) for key in ("alice", 7))
    taken = [me(pool, "acquire", blocking_timeout=0) for _ in ODD]
    assert sorted(member.key for member in taken) == sorted(ODD)
    assert {member.name for member in taken} == {lock_of(key) for key in ODD}
    assert dict(me(pool, "items_locked_status")) == dict.fromkeys(ODD, LockStatus.LOCKED)
    for member in taken:
        me(member, "release")
    assert me(pool, "health_check") == (0, len(ODD))
    assert me(pool, "shrink", ODD) == len(ODD)
    assert me(pool, "keys") == []


def test_pools_whose_names_look_alike_are_apart(using: str) -> None:
    names = ["a", "a:b", "a%3Ab", "a b", "ä", "lock", "pool:a", "pool:a:"]
    pools = [LockPool(name, using=using) for name in names]
    for number, pool in enumerate(pools):
        pool.extend([f"key-{number}", "same"])
    for number, pool in enumerate(pools):
        assert pool.keys() == [f"key-{number}", "same"]
        assert pool.acquire(blocking_timeout=0).key == f"key-{number}"
        assert pool.health_check() == (1, 1)


@pytest.mark.complete
def test_an_assign_of_any_size_takes_effect_at_one_moment(pool: LockPool, using: str) -> None:
    many = 20_000 if using == "default" else 1_000
    old, new = {f"old-{number}" for number in range(many)}, {f"new-{number}" for number in range(many)}
    both = {frozenset(old): "old", frozenset(new): "new"}
    pool.extend(old)
    seen = []
    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(lambda: [pool.assign(keys) for keys in (new, old, new)])
        while not replacing.done():
            seen.append(both.get(frozenset(pool.keys()), "some of each"))
        assert replacing.result() == [many] * 3
    assert set(seen) <= {"old", "new"}
    assert len(seen) > 1
    assert set(pool.keys()) == new
    assert pool.acquire(blocking_timeout=0).key in new


@pytest.mark.complete
def test_a_process_that_dies_during_an_assign_changes_nothing_and_its_data_expires(
    accounts: LockPool, client: redis.Redis, start: Start, eventually: Eventually
) -> None:
    worker = start("say('begins'); LockPool(name).assign(f'key-{n}' for n in range(1_000_000))", name=POOL)
    worker.expect("begins")
    sent = eventually(lambda: client.keys(f"{PREFIX}next_*"), within=60)
    worker.kill()
    assert accounts.keys() == ["alice", "bob"]
    assert all(0 < int(client.pttl(key)) <= 60_000 for key in sent)


@pytest.mark.parametrize("method", ["extend", "shrink", "assign"])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("alice", TypeError, "must be an iterable of str, not the single str 'alice'"),
        (["alice", ""], TypeError, "must be a non-empty str, not ''"),
        (["alice", 7], TypeError, "must be a non-empty str, not 7"),
        ([b"alice"], TypeError, "must be a non-empty str, not b'alice'"),
        (["a" * 600], ValueError, r"The member name .* has 614 bytes; at most 512"),
    ],
)
def test_bad_members_are_refused_before_anything_is_sent(
    me: Any, accounts: LockPool, method: str, keys: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        me(accounts, method, keys)
    assert me(accounts, "keys") == ["alice", "bob"]


@pytest.mark.parametrize(
    ("make", "name", "error", "message"),
    [
        (LockPool, "", ValueError, "A pool's name must not be empty"),
        (LockPool, "a\nb", ValueError, "The pool name .* control characters"),
        (LockPool, 7, TypeError, "A pool's name must be a str, not 7"),
        (LockPool, " " * 200, ValueError, "The pool name .* has 607 bytes; at most 512"),
        *((make, ANY, ValueError, "is a pool, not a lock") for make in (Lock, force_release, get_lock)),
    ],
)
def test_bad_names_are_refused(make: Callable[[Any], object], name: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(name)


async def test_blocking_calls_in_an_event_loop_name_the_async_version() -> None:
    pool = LockPool(POOL)
    for twin, call in {
        "aextend": lambda: pool.extend(["x"]),
        "ashrink": lambda: pool.shrink(["x"]),
        "aassign": lambda: pool.assign(["x"]),
        "akeys": pool.keys,
        "alen": lambda: len(pool),
        "acontains": lambda: "alice" in pool,
        "aacquire": pool.acquire,
        "ainfo": pool.info,
        "aitems_locked_status": pool.items_locked_status,
        "avalues_lock_status": pool.values_lock_status,
        "ahealth_check": pool.health_check,
        "aclear": pool.clear,
    }.items():
        with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"Await {twin}() instead")):
            call()
    with pytest.raises(SynchronousOnlyOperation, match="Use async for instead"):
        list(pool)


# -- their statuses --------------------------------------------------------------------------------------------------


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


def test_info_counts_all_who_wait_and_lists_the_first_hundred(accounts: LockPool, ghost: Callable[..., Ghost]) -> None:
    there = ghost()
    with accounts.acquire(), accounts.acquire():
        for number in range(120):
            there.queue(f"{number:03}".ljust(22, "x"), name=ANY)
        info = accounts.info()
    assert (info.waiters, len(info.queue)) == (120, 100)
