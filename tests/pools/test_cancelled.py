"""A coroutine that wants a member, cancelled wherever it is suspended: it leaves no lock and no place in the line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from django_redislock.engine.waiters import Park, TaskWaiter
from django_redislock.steps import Pause
from django_redislock.store.retry import Execute
from tests.helpers.pools import POOL, TTL, audit, in_line, leftovers
from tests.helpers.state import listener

AEventually = Callable[..., Awaitable[Any]]


class Interrupted:
    """Await ``coroutine`` and cancel the task that does so the ``at``-th time that it is suspended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self.coroutine = coroutine
        self.at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        inner = self.coroutine.__await__()
        resume: Callable[[], Any] = partial(inner.send, None)
        suspended = 0
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value
            suspended += 1
            if suspended == self.at:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield awaited
            except BaseException as error:
                resume = partial(inner.throw, error)
            else:
                resume = partial(inner.send, None)


@pytest.fixture
def _many_suspensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request lets other callbacks of the loop run before it begins and after it has ended."""

    def gated(arun: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def between_gates(request: object) -> Any:
            await asyncio.sleep(0)
            answer = await arun(request)
            await asyncio.sleep(0)
            return answer

        return between_gates

    requests: list[Any] = [Execute, Park, Pause]
    for request in requests:
        monkeypatch.setattr(request, "arun", gated(request.arun))


def parked() -> bool:
    """Whether a coroutine sleeps until it is told."""
    return any(isinstance(waiter, TaskWaiter) and waiter._parked for waiter in listener().waiters.of())


@pytest.mark.usefixtures("_many_suspensions", "no_look_by_the_clock", "listening")
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
async def test_who_is_cancelled_at_any_moment_leaves_nothing(
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
        # not by a lease that ends, nor by somebody who looks
        await aeventually(lambda: audit(client).free == {"alice"} and not in_line(client))
        if not task.cancelled():
            break
    assert at > 2
    assert await task is None  # type: ignore[func-returns-value]
    await aeventually(lambda: leftovers(client) == [])
