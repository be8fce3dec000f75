"""The tests of a site freeze its clock. Locks go by one of their own, which freezegun and time-machine leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import time_machine
from freezegun import freeze_time

from django_redislock import Lock, LockNotAcquired, LockPool
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd, server_time
from tests.helpers.state import LOCK, NAME, queued

Freeze = Callable[[], Any]

DATE = "2040-02-29 12:00"
TTL = 1.5  # seconds
WAIT = 0.1  # seconds

FREEZERS: dict[str, Freeze] = {
    "freezegun": lambda: freeze_time(DATE),
    "time-machine": lambda: time_machine.travel(DATE, tick=False),
    "real asyncio": lambda: freeze_time(DATE, real_asyncio=True),
}


@pytest.fixture(params=FREEZERS)
def freeze(request: pytest.FixtureRequest) -> Freeze:
    """Makes what freezes the clock, as a context manager."""
    return FREEZERS[request.param]


def test_bounded_waits_end(crowd: Crowd, freeze: Freeze, client: redis.Redis, eventually: Callable[..., Any]) -> None:
    with hold(NAME):
        waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=0.5)
        eventually(lambda: queued(client))
        with freeze():
            for lock in (Lock(NAME), Lock(NAME, poll=True)):
                assert crowd()(lock, "acquire", blocking_timeout=WAIT) is False
            with pytest.raises(LockNotAcquired):
                crowd()(LockPool("empty"), "acquire", blocking_timeout=WAIT)
            assert waiting.result(GENEROUS) is False


@pytest.mark.parametrize("using", ["default", "memory"])
def test_a_bounded_wait_of_a_loop_that_begins_inside_ends(using: str, freeze: Freeze) -> None:
    async def wait() -> bool:
        return await Lock(NAME, using=using).aacquire(blocking_timeout=WAIT)

    with freeze(), hold(NAME, using=using):  # inside: the server of the memory mode goes by the frozen clock
        assert asyncio.run(wait()) is False
        assert Lock(NAME, using=using).acquire(blocking_timeout=WAIT) is False


def test_a_held_lock_is_renewed_and_not_lost(
    crowd: Crowd, freeze: Freeze, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    def end() -> float:
        return server_time(client) / 1e6 + int(client.pttl(LOCK)) / 1000

    me, lock = crowd(), Lock(NAME, ttl=TTL)
    me(lock, "acquire")
    with freeze():
        me.read(lock.check)
        assert 0 < me.read(lock.remaining) <= TTL
        before = end()
        eventually(lambda: end() > before + 0.3)
        assert me(lock, "owned")
    me.read(lock.check)
    me(lock, "release")
