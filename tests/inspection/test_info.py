"""The state of one lock in Redis: ``get_lock()``, ``Lock.info()``, foreign values in its keys, suspensions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockInfo, LockPool, LockStatus, LockUnavailable, force_release, get_lock, list_locks
from redisserver import RedisServer
from tests.helpers.actors import Crowd, Ghost, server_time
from tests.helpers.ways import DJANGO_REDIS, alias, caches
from tests.inside import PREFIX, page
from tests.inspection.conftest import Queue, hold


def known(name: str) -> LockInfo:
    info = get_lock(name)
    assert info is not None
    return info


# -- a lock of ours -------------------------------------------------------------------------------------------------


def test_of_a_free_lock_there_is_nothing_to_tell(crowd: Crowd) -> None:
    me = crowd()
    assert me(django_redislock, "get_lock", "a") is None
    assert me(Lock("a"), "info") is None
    assert me(Lock("a"), "status") is LockStatus.FREE


def test_info_tells_who_since_when_and_until_when(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    lock = Lock("a", ttl=60, note="of the holder", purpose="/orders/42/")
    before = datetime.now(timezone.utc)
    me(lock, "acquire")
    info = me(lock, "info")
    after = datetime.now(timezone.utc)
    fence, token = me.read(lambda: (lock.fence, lock.token))
    assert (info.name, info.fence, info.note, info.status) == ("a", fence, "of the holder", LockStatus.UNAVAILABLE)
    assert (info.waiters, info.queue, info.pool_waiters, info.pool_queue) == (0, (), 0, ())
    assert info.owner.endswith(" /orders/42/")
    assert before <= info.since <= after
    # Redis counts a lease in whole milliseconds
    assert abs(info.expires - info.since - timedelta(seconds=60)) < timedelta(milliseconds=5)
    assert 0 <= info.held_for <= (after - before).total_seconds()
    assert 0 < info.lease_left <= 60
    assert info.token_hint == f"{token[:4]}…"
    assert token not in repr(info)
    with Lock("b", token="known" * 5):
        assert known("b").token_hint == "know…"
    assert you(django_redislock, "get_lock", "a").since == info.since


def test_info_lists_the_first_hundred_waiters_in_order_and_counts_all(queue_up: Queue, crowd: Crowd) -> None:
    hold("a")
    owners = queue_up("a", 130)
    info = crowd()(django_redislock, "get_lock", "a")
    assert info.waiters == 130
    assert [waiter.owner for waiter in info.queue] == owners[:100]
    waited = [waiter.waited for waiter in info.queue]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] >= 0


def test_a_waiter_tells_who_it_is_and_its_note(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    token = hold("a")
    waiting = crowd().start(Lock("a", note="two\nlines", purpose="/pay/"), "acquire")
    (waiter,) = eventually(lambda: known("a").queue)
    assert waiter.owner.endswith(" /pay/")
    assert waiter.note == "two\nlines"
    Lock("a", token=token).release()
    assert waiting.result(30)


def test_a_queue_without_a_holder_is_no_lock(client: redis.Redis, queue_up: Queue) -> None:
    hold("a")
    queue_up("a", 2)
    client.delete(f"{PREFIX}lock:a")
    assert get_lock("a") is None


def test_it_tells_which_waiters_redis_cannot_reach(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """They still count, because they may come back."""
    hold("a", ttl=600)
    killed, there = ghost(alive=False), ghost()
    killed.queue("1" * 22, name="a")
    there.queue("2" * 22, name="a")
    client.zadd(f"{PREFIX}queue:a", {"3" * 22: "inf", "4" * 22: "inf"})
    now = server_time(client)
    for id, polls_until in (("3" * 22, now - 1), ("4" * 22, now + 30_000_000)):
        client.hset(f"{PREFIX}waiters:a", id, f"- 30000 {polls_until} - ghost")
    assert [waiter.gone for waiter in known("a").queue] == [True, False, True, False]
    assert known("a").waiters == 4
    LockPool("accounts").extend(["alice"])
    LockPool("accounts").acquire(ttl=600)
    killed.queue("1" * 22, name="pool:accounts:")
    assert [waiter.gone for waiter in LockPool("accounts").info().queue] == [True]
    assert [waiter.gone for waiter in known("pool:accounts:alice").pool_queue] == [True]


def test_of_a_pools_member_it_tells_who_wants_this_one_and_who_wants_any(ghost: Callable[..., Ghost]) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    for _ in range(2):
        pool.acquire(ttl=600)
    there = ghost()
    for number in range(105):
        name = "pool:accounts:alice" if number < 2 else "pool:accounts:"
        there.queue(f"{number:025}", name=name, age=200 - number)
    alice, bob = known("pool:accounts:alice"), known("pool:accounts:bob")
    assert (alice.waiters, len(alice.queue), alice.pool_waiters, len(alice.pool_queue)) == (2, 2, 103, 100)
    assert (bob.waiters, bob.queue, bob.pool_waiters, bob.pool_queue[0].owner) == (0, (), 103, "ghost")
    assert 500 < alice.lease_left <= 600
    assert alice.pool_queue[0].waited == pytest.approx(198, abs=30)


def test_the_memory_mode_has_locks_to_tell_of_too() -> None:
    with Lock("a", using="memory") as lock:
        info = get_lock("a", using="memory")
        assert info is not None
        assert info.fence == lock.fence
        assert get_lock("a") is None
    assert get_lock("a", using="memory") is None


@pytest.mark.parametrize("name", ["", "a\n", "x" * 513, "pool:accounts:"])
@pytest.mark.parametrize("ask", ["get_lock", "force_release"])
def test_what_cannot_be_a_name_is_refused(ask: str, name: str, crowd: Crowd) -> None:
    with pytest.raises(ValueError, match=r"name|pool") as caught:
        crowd()(django_redislock, ask, name)
    assert not isinstance(caught.value, LockUnavailable)


@pytest.mark.parametrize("ask", ["get_lock", "list_locks", "force_release", "list_pools"])
def test_redis_out_of_reach_is_lock_unavailable(ask: str, crowd: Crowd) -> None:
    nowhere = alias(DJANGO_REDIS, "redis://127.0.0.1:1/0")
    with caches(nowhere):
        with pytest.raises(LockUnavailable, match=r"cannot be reached.*alias 'default'"):
            crowd()(django_redislock, ask, "a")
        with pytest.raises(LockUnavailable, match="alias 'default'"):
            page()


# -- what somebody else may have written ----------------------------------------------------------------------------

FOREIGN = [
    b"",
    b"x",
    b"\xff\xfe\x00",
    b"id channel c 1",
    b"id channel c 1 1 -",
    b"id channel c one two - owner",
    b"id channel c -1 -1 - owner",
    b"id channel c \xc2\xb2 \xc2\xb2 - owner",
    b"id channel c 1 " + b"9" * 18 + b" - owner",
    b"id channel c 1 " + b"9" * 400 + b" - owner",
    b"id channel c " + b"9" * 5000 + b" 1 - owner",
]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value[:40]))
def test_a_foreign_value_keeps_the_lock_from_everybody_until_it_is_forced_away(
    value: bytes, client: redis.Redis
) -> None:
    for left in (60, math.inf):
        client.set(f"{PREFIX}lock:foreign", value, px=60_000 if left == 60 else None)
        info = known("foreign")
        assert (info.status, info.owner, info.fence, info.note, info.token_hint) == (LockStatus.ERROR, "?", 0, "", "")
        assert info.held_for == 0
        assert left - 10 < info.lease_left <= left or info.lease_left == left
        assert Lock("foreign").status() is LockStatus.ERROR
        assert not Lock("foreign").acquire(blocking=False)
        force_release("foreign")
        with Lock("foreign", blocking=False):
            pass


@pytest.mark.parametrize("entry", [None, b"", b"channel", b"channel x y z w", b"c 1 0 -", b"\xff \xff \xff \xff \xff"])
def test_a_foreign_entry_in_the_queue_hides_no_lock(entry: bytes | None, client: redis.Redis) -> None:
    hold("a")
    client.zadd(f"{PREFIX}queue:a", {"stranger": "-inf", "other": "inf"})
    if entry is not None:
        client.hset(f"{PREFIX}waiters:a", "stranger", entry)
    info = known("a")
    assert (info.waiters, [waiter.owner for waiter in info.queue]) == (2, ["?", "?"])
    assert [waiter.waited for waiter in info.queue] == [pytest.approx(10 * 365 * 86400), 0.0]
    assert [lock.waiters for lock in list_locks()] == [2]


@pytest.mark.parametrize("key", ["lock:a", "queue:a"])
def test_a_lock_behind_a_key_of_the_wrong_type_is_a_clear_error(key: str, client: redis.Redis) -> None:
    hold("a")
    client.delete(f"{PREFIX}{key}")
    client.rpush(f"{PREFIX}{key}", "some", "list")
    with pytest.raises(LockUnavailable, match=r"alias 'default'.*(WRONGTYPE|wrong kind)") as caught:
        get_lock("a")
    assert caught.value.name == "a"


# -- locks that never end -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("endless")
def test_a_lock_of_ours_that_never_ends_says_so() -> None:
    info = known("persisted")
    assert (info.status, info.lease_left, info.expires.year) == (LockStatus.ERROR, math.inf, 9999)
    assert info.owner == "web-1"
    assert force_release("persisted")
    assert known("sound").status is LockStatus.UNAVAILABLE
    with Lock("persisted", blocking=False):
        pass


def test_a_pools_member_whose_end_was_taken_away_has_it_again_from_the_index(client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    with pool.acquire(ttl=600) as alice:
        client.zrem(f"{PREFIX}busy:pool:accounts:", "alice")
        info = known(alice.name)
        assert (info.status, info.fence) == (LockStatus.UNAVAILABLE, alice.fence)
        assert 500 < info.lease_left <= 600
        assert alice.status() is LockStatus.LOCKED


def test_a_pools_member_that_somebody_else_holds_without_end_says_so_until_it_is_forced_away(
    client: redis.Redis,
) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    client.hset(f"{PREFIX}held:pool:accounts:", "alice", "somebody's")
    info = known("pool:accounts:alice")
    assert (info.status, info.lease_left) == (LockStatus.ERROR, math.inf)
    assert Lock("pool:accounts:alice").status() is LockStatus.ERROR
    force_release("pool:accounts:alice")
    with pool.acquire(blocking_timeout=0) as alice:
        assert alice.key == "alice"


# -- suspensions; for their effects, see tests/protocol/test_r20_suspensions.py ---------------------------------------

HOUR = 3600


@pytest.fixture
def me() -> str:
    """How lists name this thread."""
    with Lock("another") as lock:
        info = lock.info()
        assert info is not None
        return info.owner


def test_it_says_who_suspended_the_lock_until_when_and_why(me: str) -> None:
    Lock("a").suspend(timedelta(hours=1), note="rate\nlimited")
    (listed,), shown = list_locks(), get_lock("a")
    for info in (listed, shown):
        assert info is not None
        assert (info.held, info.owner, info.note) == (False, f"nobody (suspended by {me})", "rate\nlimited")
        assert info.suspension is not None
        assert (info.suspension.owner, info.suspension.note) == (me, "rate\nlimited")
        assert HOUR - 100 < info.suspension.left == info.lease_left <= HOUR


def test_of_a_held_lock_it_tells_the_holder_and_the_suspension_to_come(me: str) -> None:
    hold("a", note="of the holder")
    Lock("a").suspend(HOUR, note="rate limited")
    info = get_lock("a")
    assert info is not None
    assert info.suspension is not None
    assert (info.held, info.owner, info.note) == (True, me, "of the holder")
    assert info.suspension.note == "rate limited"
    assert info.lease_left < HOUR - 100 < info.suspension.left


def test_the_log_says_who_suspends_and_resumes(me: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_redislock")
    lock = Lock("a")
    lock.suspend(60, note="rate limited")
    lock.resume()
    lock.resume()
    assert caplog.messages == [
        f'event=suspended name=a seconds=60.000000 by={me} note="rate limited"',
        f"event=resumed name=a by={me}",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), ValueError, "seconds must be at least 0.001 seconds and finite, not 0"),
        ((float("inf"),), ValueError, "seconds must be at least"),
        (("60",), TypeError, "seconds must be seconds"),
        ((60, 7), TypeError, "note must be a str, not 7"),
        ((60, "x" * 1001), ValueError, "note must have at most 1000 bytes, not 1001"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    arguments: tuple[Any, ...], error: type[Exception], says: str, own: RedisServer
) -> None:
    own.stop()
    with pytest.raises(error, match=says):
        Lock("a").suspend(*arguments)


def test_where_redis_cannot_be_reached_it_says_so(own: RedisServer, retry_for: Any) -> None:
    retry_for(0.0)
    own.stop()
    for call in (lambda: Lock("a").suspend(60), Lock("a").resume):
        with pytest.raises(LockUnavailable):
            call()
