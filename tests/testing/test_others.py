"""Locks that others hold, locks that are lost, and a Redis that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
from django.core.cache import cache

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockUnavailable,
    force_release,
    get_lock,
)
from django_redislock.testing import assert_locked, assert_not_locked, hold, lose, redis_away
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME

Eventually = Callable[..., Any]
Heard = list[tuple[str, dict[str, Any]]]


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_what_somebody_else_holds_is_busy_until_the_end_of_the_block_or_until_it_is_force_released(
    crowd: Crowd, heard: Heard, eventually: Eventually
) -> None:
    me = crowd()
    with hold("waited-for"):
        got = me.start(Lock("waited-for", blocking_timeout=GENEROUS), "acquire")
        eventually(lambda: get_lock("waited-for").waiters)  # type: ignore[union-attr]
        assert not got.done()
    assert got.result(GENEROUS)
    heard.clear()
    with hold(NAME):
        assert heard == []  # it is nothing that this process has done
        assert not me(Lock(NAME), "acquire", blocking=False)
        assert not me(Lock(NAME, reentrant=True), "acquire", blocking_timeout=0.05)
        with pytest.raises(LockNotOwned):
            me(Lock(NAME), "release")
        info = get_lock(NAME)
        assert info is not None
        assert info.owner == "another-host:1:MainThread"
        assert force_release(NAME)
        assert me(Lock(NAME), "acquire", blocking=False)
    assert me(Lock(NAME), "owned")  # it is not taken away in the end
    pool = LockPool("accounts")
    me(pool, "extend", ["alice", "bob"])
    with hold("pool:accounts:alice"):
        assert me(pool, "acquire", blocking_timeout=0).key == "bob"


def test_what_cannot_be_held_is_an_error() -> None:
    text = rf"^Could not hold the lock '{NAME}' as somebody else: it is not free\.$"
    with hold(NAME), pytest.raises(LockNotAcquired, match=text), hold(NAME):
        pytest.fail("two hold it")
    assert not Lock(NAME).locked()
    with pytest.raises(ValueError, match="ttl"), hold(NAME, ttl=0):
        pytest.fail("it is held")
    with pytest.raises(ValueError, match="must not be empty"), hold(""):
        pytest.fail("it is held")


async def work() -> None:
    async with Lock(NAME, on_lost="cancel") as lock:
        lose(lock)
        await asyncio.sleep(GENEROUS)


async def test_all_of_it_can_be_used_in_a_coroutine() -> None:
    with hold(NAME):
        assert_locked(NAME)
        assert not await Lock(NAME).aacquire(blocking=False)
    assert_not_locked(NAME)
    lock = Lock(NAME)
    await lock.aacquire()
    lose(lock)
    assert lock.lost
    with redis_away(), pytest.raises(LockUnavailable):
        await lock.aacquire()
    with pytest.raises(LockLost):  # and its task is cancelled
        await work()


def test_a_lock_that_is_lost_is_lost_at_once(crowd: Crowd, eventually: Eventually) -> None:
    told: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, on_lost=told.append)
    me(lock, "acquire")
    lose(lock)
    assert me.read(lambda: lock.lost)
    assert_not_locked(NAME)
    with pytest.raises(LockLost, match="it was force-released"):
        me(lock, "release")
    eventually(lambda: [error.name for error in told] == [NAME])
    drop_in: Any = cache.lock(NAME)  # type: ignore[attr-defined]
    assert drop_in.acquire()
    lose(drop_in)
    assert not drop_in.owned()
    assert Lock(NAME).acquire()
    lose(NAME)
    assert_not_locked(NAME)


def test_what_this_process_does_not_hold_it_cannot_lose() -> None:
    Lock("mine").acquire()
    with hold(NAME):
        for name in (NAME, "free"):
            text = rf"^Cannot lose the lock '{name}': nobody in this process holds it\.$"
            with pytest.raises(LockNotOwned, match=text):
                lose(name)
        assert_locked(NAME)


def test_while_redis_is_away_whoever_asks_or_releases_gets_an_error(crowd: Crowd) -> None:
    """Also over connections that stand, and at once: RETRY_FOR is not waited for."""
    me, before = crowd(), Lock("before")
    me(before, "acquire")
    with redis_away():
        with pytest.raises(LockUnavailable, match="it stays locked for"):
            me(before, "release")
        with pytest.raises(LockUnavailable, match=r"out of reach inside django_redislock\.testing\.redis_away\(\)$"):
            me(Lock(NAME), "acquire")
    assert me(Lock(NAME), "acquire", blocking=False)
    assert_locked("before")
    me(before, "release")
    assert_not_locked("before")


def test_whoever_waits_gets_the_lock_though_redis_was_away_meanwhile(crowd: Crowd, eventually: Eventually) -> None:
    with hold(NAME):
        waiting = crowd().start(Lock(NAME, blocking_timeout=GENEROUS), "acquire")
        eventually(lambda: get_lock(NAME).waiters)  # type: ignore[union-attr]
        with redis_away():
            sleep(0.2)
        assert not waiting.done()
    assert waiting.result(GENEROUS)


def test_a_held_lock_is_not_renewed_and_lost_in_the_end(crowd: Crowd, eventually: Eventually) -> None:
    me, lock = crowd(), Lock(NAME, ttl=1)
    me(lock, "acquire")
    ends = get_lock(NAME).expires  # type: ignore[union-attr]
    # it has been renewed before, over a connection that is kept
    eventually(lambda: get_lock(NAME).expires > ends)  # type: ignore[union-attr]
    with redis_away():
        eventually(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost, match="its lease ended before it could be renewed"):
        me.read(lock.check)


def test_assertions_hold_or_say_what_there_is() -> None:
    with pytest.raises(AssertionError, match=r"held: none\.$"):
        assert_locked("c")
    Lock("a").acquire()
    Lock("b").acquire()
    assert_locked("a")
    assert_not_locked("c")
    with pytest.raises(AssertionError, match=r"^Nobody holds the lock 'c'\. The locks that are held: 'a', 'b'\.$"):
        assert_locked("c")
    with pytest.raises(AssertionError, match=r"^The lock 'a' is held by \S+ for [\d.]+ s more\.$"):
        assert_not_locked("a")
    for name in "ab":
        force_release(name)
    Lock("a").suspend(60)
    with pytest.raises(AssertionError, match=r"^Nobody holds the lock 'a'"):
        assert_locked("a")
