"""The tests of a site freeze its clock. Locks go by one of their own, which freezegun and time-machine leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
import time_machine
from freezegun import freeze_time

from django_redislock import Lock, LockNotAcquired, LockPool, locked
from django_redislock.testing import hold
from tests.helpers.state import LOCK, NAME

Eventually = Callable[..., Any]
Freeze = Callable[[], Any]

DATE = "2040-02-29 12:00"
TTL = 3.0  # seconds
WAIT = 0.1  # seconds
LONG = pytest.mark.complete

FREEZERS: dict[str, Freeze] = {
    "freezegun": lambda: freeze_time(DATE),
    "time-machine": lambda: time_machine.travel(DATE, tick=False),
    "real asyncio": lambda: freeze_time(DATE, real_asyncio=True),
    "ticking": lambda: freeze_time(DATE, tick=True),
}


@pytest.fixture(params=[*list(FREEZERS)[:2], *(pytest.param(how, marks=LONG) for how in list(FREEZERS)[2:])])
def freeze(request: pytest.FixtureRequest) -> Freeze:
    """Makes what freezes the clock, as a context manager or as a decorator."""
    return FREEZERS[request.param]


@pytest.fixture(params=["block", "decorator"])
def frozen(request: pytest.FixtureRequest, freeze: Freeze) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function, or a coroutine function in a loop of its own, while the clock stands still."""

    def frozen(function: Callable[[], Any]) -> Any:
        def in_block() -> Any:
            with freeze():
                return function()

        async def ain_block() -> Any:
            with freeze():
                return await function()

        runs = asyncio.iscoroutinefunction(function)
        call = freeze()(function) if request.param == "decorator" else ain_block if runs else in_block
        return asyncio.run(call()) if runs else call()

    return frozen


# -- a wait for a busy lock ends -------------------------------------------------------------------------------------


def wait_for_a_lock() -> bool:
    return Lock(NAME).acquire(blocking_timeout=WAIT)


async def await_a_lock() -> bool:
    return await Lock(NAME).aacquire(blocking_timeout=WAIT)


def wait_by_polling() -> bool:
    return Lock(NAME, poll=True).acquire(blocking_timeout=WAIT)


async def await_by_polling() -> bool:
    return await Lock(NAME, poll=True).aacquire(blocking_timeout=WAIT)


def wait_in_a_block() -> bool:
    with Lock(NAME, blocking_timeout=WAIT):
        return True


async def await_in_a_block() -> bool:
    async with Lock(NAME, blocking_timeout=WAIT):
        return True


@locked(NAME, blocking_timeout=WAIT)
def wait_in_a_function() -> bool:
    return True


@locked(NAME, blocking_timeout=WAIT)
async def await_in_a_function() -> bool:
    return True


def wait_for_a_member() -> bool:
    return bool(LockPool("empty").acquire(blocking_timeout=WAIT))


async def await_a_member() -> bool:
    return bool(await LockPool("empty").aacquire(blocking_timeout=WAIT))


WAITS = [
    *(wait_for_a_lock, wait_by_polling, wait_in_a_block, wait_in_a_function, wait_for_a_member),
    *(await_a_lock, await_by_polling, await_in_a_block, await_in_a_function, await_a_member),
]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: str(wait.__name__))
def test_a_bounded_wait_ends(wait: Callable[[], Any], frozen: Callable[..., Any]) -> None:
    with hold(NAME), suppress(LockNotAcquired):
        assert frozen(wait) is False


def test_a_bounded_wait_ends_in_the_memory_mode(frozen: Callable[..., Any]) -> None:
    def wait() -> bool:
        with hold(NAME, using="memory"):  # inside: that server goes by the frozen clock
            return Lock(NAME, using="memory").acquire(blocking_timeout=WAIT)

    assert frozen(wait) is False


async def test_a_wait_that_begins_before_the_freeze_ends_inside(freeze: Freeze) -> None:
    with hold(NAME):
        waiting = asyncio.ensure_future(Lock(NAME).aacquire(blocking_timeout=1))
        while not ((info := await Lock(NAME).ainfo()) and info.waiters):
            pass
        with freeze():
            assert await waiting is False


# -- a lock is held through it ---------------------------------------------------------------------------------------


def expiry(client: redis.Redis) -> int:
    """The end of the lease, in milliseconds by the server's clock."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000 + int(client.pttl(LOCK))


@pytest.mark.parametrize("since", ["before", "inside"])
def test_a_held_lock_is_renewed_and_not_lost(
    since: str, freeze: Freeze, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=TTL)
    if since == "before":
        lock.acquire()
    with freeze():
        if since == "inside":
            lock.acquire()
        lock.check()
        assert 0 < lock.remaining() <= TTL
        before = expiry(client)
        eventually(lambda: expiry(client) > before + 500)
        lock.check()
        assert lock.owned()
    lock.check()
    lock.release()


async def test_a_coroutine_holds_a_lock_through_it(freeze: Freeze, client: redis.Redis, eventually: Eventually) -> None:
    async with Lock(NAME, ttl=TTL) as outer:
        with freeze():
            before = expiry(client)
            async with Lock("inner", ttl=TTL) as inner:
                await asyncio.to_thread(eventually, lambda: expiry(client) > before + 500)
                inner.check()
            outer.check()
        outer.check()
