"""Locks that others hold, locks that are lost, and a Redis that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any
from unittest import IsolatedAsyncioTestCase

import pytest
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockUnavailable,
    force_release,
    get_lock,
    lock_acquired,
    locked_view,
)
from django_redislock.testing import assert_locked, assert_not_locked, hold, lose, redis_away
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.state import NAME
from tests.inside import Ears

Eventually = Callable[..., Any]


@locked_view("order:{pk}")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    assert_locked(f"order:{pk}")
    if "lose" in request.GET:
        lose(f"order:{pk}")
    return HttpResponse("paid")


def expires(name: str) -> datetime:
    info = get_lock(name)
    assert info is not None
    return info.expires


def request_pay(query: str = "") -> Any:
    return pay(RequestFactory().get(f"/{query}"), pk=42)


# -- hold --------------------------------------------------------------------------------------------------------------


def test_what_somebody_else_holds_is_busy_until_it_is_force_released(crowd: Crowd) -> None:
    me = crowd()
    with hold(NAME):
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


def test_a_view_finds_its_lock_busy_and_then_free_and_can_lose_it_by_name() -> None:
    with hold("order:42", ttl=7):
        busy = request_pay()
    assert (busy.status_code, busy["Retry-After"].isdecimal()) == (423, True)
    assert request_pay().status_code == 200
    with pytest.raises(LockLost):
        request_pay("?lose")


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_whoever_waits_gets_the_lock_at_the_end_of_the_block(crowd: Crowd, eventually: Eventually) -> None:
    me = crowd()
    with hold(NAME):
        got = me.start(Lock(NAME, blocking_timeout=GENEROUS), "acquire")
        eventually(lambda: get_lock(NAME).waiters)  # type: ignore[union-attr]
        assert not got.done()
    assert got.result(GENEROUS)


def test_what_set_up_holds_is_busy_in_the_test_and_free_after_tear_down() -> None:
    class Orders(IsolatedAsyncioTestCase):
        async def asyncSetUp(self) -> None:
            self.held = hold(NAME)
            self.held.__enter__()

        async def test_busy(self) -> None:
            assert not await Lock(NAME).aacquire(blocking=False)

        async def asyncTearDown(self) -> None:
            self.held.__exit__(None, None, None)

    result = Orders("test_busy").run()
    assert result is not None
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])
    assert_not_locked(NAME)


def test_it_is_nothing_that_this_process_has_done() -> None:
    heard: list[object] = []
    receiver = lambda **facts: heard.append(facts)  # noqa: E731
    lock_acquired.connect(receiver)
    with hold(NAME):
        assert heard == []
    lock_acquired.disconnect(receiver)


def test_what_is_held_already_cannot_be_held_by_somebody_else() -> None:
    with (
        hold(NAME),
        pytest.raises(LockNotAcquired, match=rf"^Could not hold the lock '{NAME}' as somebody else: it is not free\.$"),
        hold(NAME),
    ):
        pytest.fail("two hold it")
    assert not Lock(NAME).locked()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "soon"])
def test_bad_input_is_an_error_before_anything_is_sent(ttl: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="ttl"), hold(NAME, ttl=ttl):
        pytest.fail("it is held")
    with pytest.raises(ValueError, match="must not be empty"), hold(""):
        pytest.fail("it is held")


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


# -- lose --------------------------------------------------------------------------------------------------------------


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


def test_a_lock_of_the_drop_in_backend_can_be_lost() -> None:
    lock: Any = cache.lock(NAME)  # type: ignore[attr-defined]
    assert lock.acquire()
    lose(lock)
    assert not lock.owned()


def test_the_task_of_a_lost_lock_is_cancelled() -> None:
    async def work() -> None:
        async with Lock(NAME, on_lost="cancel") as lock:
            lose(lock)
            await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        asyncio.run(work())


@pytest.mark.parametrize("held", [True, False], ids=["held elsewhere", "free"])
def test_what_this_process_does_not_hold_it_cannot_lose(held: bool) -> None:
    with hold(NAME if held else "another"):
        Lock("mine").acquire()
        with pytest.raises(LockNotOwned, match=rf"^Cannot lose the lock '{NAME}': nobody in this process holds it\.$"):
            lose(NAME)
        assert Lock(NAME).locked() == held


# -- a Redis that is away ----------------------------------------------------------------------------------------------


def test_while_redis_is_away_whoever_asks_or_releases_gets_an_error(crowd: Crowd) -> None:
    """Also over connections that stand, and at once: RETRY_FOR is not waited for."""
    me, before = crowd(), Lock("before")
    me(before, "acquire")
    with redis_away():
        with pytest.raises(LockUnavailable, match="it stays locked for"):
            me(before, "release")
        with pytest.raises(LockUnavailable, match=r"out of reach inside django_redislock\.testing\.redis_away\(\)$"):
            me(Lock(NAME), "acquire")
        with pytest.raises(LockUnavailable):
            request_pay()
    assert me(Lock(NAME), "acquire", blocking=False)
    assert_locked("before")
    me(before, "release")
    assert_not_locked("before")


def test_a_held_lock_is_not_renewed_and_lost_in_the_end(crowd: Crowd, eventually: Eventually) -> None:
    me, lock = crowd(), Lock(NAME, ttl=2)
    me(lock, "acquire")
    ends = expires(NAME)
    eventually(lambda: expires(NAME) > ends)  # it has been renewed before, over a connection that is kept
    with redis_away():
        eventually(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost, match="its lease ended before it could be renewed"):
        me.read(lock.check)


def test_it_is_as_before_afterwards(other: Callable[[], Other], eventually: Eventually, where: str) -> None:
    ears = Ears()
    with hold(NAME):
        got = other().start(lambda: Lock(NAME, blocking_timeout=GENEROUS).acquire())
        eventually(lambda: ears.ready and get_lock(NAME).waiters)  # type: ignore[union-attr]
        generation = ears.generation
        with redis_away():
            eventually(lambda: where == "memory" or not ears.ready)
        eventually(lambda: ears.ready and (where == "memory" or ears.generation > generation))
    assert got.result(GENEROUS)


# -- assertions --------------------------------------------------------------------------------------------------------


def test_assertions_hold_or_say_what_there_is() -> None:
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
    Lock("a").resume()
    with pytest.raises(AssertionError, match=r"held: none\.$"):
        assert_locked("c")
