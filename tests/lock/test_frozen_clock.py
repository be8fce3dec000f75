"""The tests of a site freeze its clock. Locks go by one of their own, which freezegun and time-machine leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import time_machine
from freezegun import freeze_time

from django_redislock import Lock, LockNotAcquired, LockPool, get_lock
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME

Eventually = Callable[..., Any]
Freeze = Callable[[], Any]

DATE = "2040-02-29 12:00"
TTL = 3.0  # seconds
WAIT = 0.1  # seconds

FREEZERS: dict[str, Freeze] = {
    "freezegun": lambda: freeze_time(DATE),
    "time-machine": lambda: time_machine.travel(DATE, tick=False),
    "real asyncio": lambda: freeze_time(DATE, real_asyncio=True),
    "ticking": lambda: freeze_time(DATE, tick=True),
}


@pytest.fixture(params=FREEZERS)
def freeze(request: pytest.FixtureRequest) -> Freeze:
    """Makes what freezes the clock, as a context manager."""
    return FREEZERS[request.param]


@pytest.mark.parametrize(
    "lock", [Lock(NAME), Lock(NAME, poll=True), LockPool("empty")], ids=["woken", "polling", "of a pool"]
)
def test_a_bounded_wait_ends(lock: Any, crowd: Crowd, freeze: Freeze) -> None:
    with hold(NAME), freeze():
        try:
            assert crowd()(lock, "acquire", blocking_timeout=WAIT) is False
        except LockNotAcquired:
            assert isinstance(lock, LockPool)


@pytest.mark.parametrize("using", ["default", "memory"])
def test_a_bounded_wait_of_a_loop_that_begins_inside_ends(using: str, freeze: Freeze) -> None:
    async def wait() -> bool:
        return await Lock(NAME, using=using).aacquire(blocking_timeout=WAIT)

    with freeze(), hold(NAME, using=using):  # inside: the server of the memory mode goes by the frozen clock
        assert asyncio.run(wait()) is False
        assert Lock(NAME, using=using).acquire(blocking_timeout=WAIT) is False


def test_a_wait_that_begins_before_the_freeze_ends_inside(crowd: Crowd, freeze: Freeze, eventually: Eventually) -> None:
    with hold(NAME):
        waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=1)
        eventually(lambda: (info := get_lock(NAME)) and info.waiters)
        with freeze():
            assert waiting.result(GENEROUS) is False


def expiry(client: redis.Redis) -> int:
    """The end of the lease, in milliseconds by the server's clock."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000 + int(client.pttl(LOCK))


@pytest.mark.parametrize("since", ["before", "inside"])
def test_a_held_lock_is_renewed_and_not_lost(
    since: str, crowd: Crowd, freeze: Freeze, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=TTL)
    if since == "before":
        me(lock, "acquire")
    with freeze():
        if since == "inside":
            me(lock, "acquire")
        me.read(lock.check)
        assert 0 < me.read(lock.remaining) <= TTL
        before = expiry(client)
        eventually(lambda: expiry(client) > before + 500)
        me.read(lock.check)
        assert me(lock, "owned")
    me.read(lock.check)
    me(lock, "release")
