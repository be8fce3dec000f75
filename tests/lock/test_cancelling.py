"""A task that is cancelled leaves no lock and no place in the queue. (At every moment: see tests/engine.)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, aget_lock
from tests.helpers.actors import GENEROUS, Actor
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, holder

AEventually = Callable[..., Any]


async def waiters(using: str) -> int:
    info = await aget_lock(NAME, using=using)
    return 0 if info is None else info.waiters


@pytest.fixture
def wait_for_waiters(using: str, aeventually: AEventually) -> Callable[[int], Any]:
    async def wait_for_waiters(number: int) -> None:
        async def so_many() -> bool:
            return await waiters(using) == number

        await aeventually(so_many)

    return wait_for_waiters


async def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_the_queue(
    using: str, actor: Callable[[], Actor], wait_for_waiters: Callable[[int], Any]
) -> None:
    task, lock = actor(), Lock(NAME, using=using)
    async with lock:
        waiting = task.start(Lock(NAME, using=using).aacquire)
        await wait_for_waiters(1)
        await task.end()
        await wait_for_waiters(0)
        assert waiting.cancelled()
        assert await lock.aowned()
    assert not await lock.alocked()


async def test_a_wait_that_is_limited_from_outside_leaves_the_queue(
    using: str, actor: Callable[[], Actor], wait_for_waiters: Callable[[int], Any]
) -> None:
    lock = Lock(NAME, using=using)
    async with lock:
        with pytest.raises(asyncio.TimeoutError):
            await actor()(lambda: asyncio.wait_for(Lock(NAME, using=using).aacquire(), 0.2))
        await wait_for_waiters(0)
    assert not await lock.alocked()


async def test_a_handoff_in_the_moment_of_the_cancellation_goes_to_the_next_one(
    using: str, actor: Callable[[], Actor], wait_for_waiters: Callable[[int], Any]
) -> None:
    lock, first, second = Lock(NAME, using=using), actor(), actor()
    await lock.aacquire()
    first.start(Lock(NAME, using=using).aacquire)
    await wait_for_waiters(1)
    waiting = second.start(Lock(NAME, using=using).aacquire)
    await wait_for_waiters(2)
    first.task.cancel()
    await lock.arelease()
    assert await asyncio.wait_for(waiting, GENEROUS)


async def test_a_lock_that_is_granted_in_the_moment_of_the_cancellation_is_given_back(
    network: Proxy, actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    async with Lock("warm-up", using="far"):
        pass
    task = actor()
    answer = network.hold_answer(LOCK)
    task.start(Lock(NAME, using="far").aacquire)
    await aeventually(answer.caught.is_set)
    assert holder(client)
    await task.end()
    answer.let_go()
    await aeventually(lambda: holder(client) == "")


async def test_a_release_that_is_cancelled_is_finished_in_the_background(
    network: Proxy, actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    task, lock = actor(), Lock(NAME, using="far")
    await task(lock.aacquire)
    request = network.hold_request(LOCK)
    releasing = task.start(lock.arelease)
    await aeventually(request.caught.is_set)
    await task.end()
    assert releasing.cancelled()
    await aeventually(lambda: holder(client) == "")


@pytest.mark.parametrize("closed_by", ["its own task", "another task"])
async def test_an_asynchronous_generator_that_is_closed_in_its_section_gives_the_lock_back(
    closed_by: str, using: str, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock = Lock(NAME, using=using)

    async def generator() -> AsyncIterator[int]:
        async with lock:
            yield 1

    steps: Any = generator()
    await steps.__anext__()
    assert await lock.aowned()
    if closed_by == "another task":
        await actor()(steps.aclose)
    else:
        await steps.aclose()
    assert lock.token is None

    async def free() -> bool:
        return not await lock.alocked()

    await aeventually(free)
