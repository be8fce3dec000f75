"""A coroutine that waits for a member, cancelled wherever it is suspended, leaves no lock and no place in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from tests.helpers.cancelling import Interrupted, add_gates
from tests.helpers.pools import POOL, TTL, audit, in_line, leftovers
from tests.inside import parked

AEventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def _many_suspensions(monkeypatch: pytest.MonkeyPatch) -> None:
    add_gates(monkeypatch)


@pytest.mark.usefixtures("_many_suspensions", "no_look_by_the_clock", "listening")
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
async def test_a_checkout_cancelled_at_any_moment_leaves_nothing_behind(
    busy: bool, client: redis.Redis, aeventually: AEventually
) -> None:
    pool = LockPool(POOL)
    await pool.aextend(["alice"])

    async def want(at: int) -> None:
        member = await Interrupted(pool.aacquire(ttl=TTL), at)
        await member.arelease()

    for at in range(1, 200):
        holder = await pool.aacquire(ttl=TTL) if busy else None
        task = asyncio.create_task(want(at))
        if holder is not None:
            await aeventually(lambda task=task: task.done() or parked())
            await holder.arelease()
        await asyncio.wait([task])
        # not because a lease ends or somebody looks
        await aeventually(lambda: audit(client).free == {"alice"} and not in_line(client))
        if not task.cancelled():
            break
    assert at > 2
    assert await task is None  # type: ignore[func-returns-value]
    await aeventually(lambda: leftovers(client) == [])
