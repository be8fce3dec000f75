"""A call that is awaited in another task (wait_for, gather, create_task) belongs to the task that made it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockError, LockStatus
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.bridges import aowns, arefuses
from tests.helpers.state import NAME, flag, holder

from .children import CHILDREN, Child, by_create_task, by_wait_for

AEventually = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("elsewhere", [*CHILDREN, by_wait_for])
async def test_a_call_that_is_awaited_elsewhere_is_for_the_task_that_made_it(
    elsewhere: Child, client: redis.Redis
) -> None:
    lock = Lock(NAME)
    assert await elsewhere(lock.aacquire) is True
    assert await aowns(lock)
    assert await elsewhere(lock.aowned) is True
    assert await elsewhere(lock.astatus) is LockStatus.LOCKED
    assert await elsewhere(lambda: lock.aextend(1)) is True
    assert await elsewhere(lock.areacquire) is True
    await elsewhere(lock.arelease)
    assert not await aowns(lock)
    await elsewhere(lock.aseize)
    await elsewhere(lock.adetach)
    assert flag(client) == "d"
    assert await arefuses(lock)


@pytest.mark.parametrize("elsewhere", [by_create_task, by_wait_for])
async def test_a_lock_that_was_awaited_elsewhere_is_renewed_for_the_task_that_made_the_call(
    elsewhere: Child, aeventually: AEventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(NAME, ttl=3)
    assert await elsewhere(lock.aacquire)
    end = monotonic() + lock.remaining()
    await aeventually(lambda: monotonic() + lock.remaining() > end + 0.3)
    assert "owner-ended" not in caplog.text
    await lock.arelease()


async def test_several_calls_that_are_gathered_are_for_one_task(client: redis.Redis) -> None:
    locks = [Lock(f"seat:{number}") for number in range(20)]
    assert all(await asyncio.gather(*(lock.aacquire(blocking_timeout=1) for lock in locks)))
    assert [lock.token for lock in locks] == [holder(client, lock.name) for lock in locks]
    with pytest.raises(LockError, match="would wait for itself without end"):
        await asyncio.gather(locks[0].aacquire())
    await asyncio.gather(*(lock.arelease() for lock in locks))
    assert not any(await asyncio.gather(*(lock.alocked() for lock in locks)))


async def test_a_coroutine_of_the_sites_own_acquires_for_the_task_that_runs_it(
    client: redis.Redis, aeventually: AEventually
) -> None:
    async def acquire() -> bool:
        return await lock.aacquire()

    lock = Lock(NAME, ttl=1)
    assert await asyncio.create_task(acquire())
    assert not await aowns(lock)
    await aeventually(lambda: not holder(client))  # that task has ended, so nobody could release it


async def test_a_call_without_an_owner_is_refused_before_anything_is_sent(client: redis.Redis) -> None:
    """A callback of the event loop is not a task: the lock would belong to a task that ends with the call."""
    loop, made = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    loop.call_soon(lambda: made.set_result(asyncio.ensure_future(Lock(NAME).aacquire())))
    with pytest.raises(LockError, match="Await it in the task that needs the lock"):
        await (await made)
    assert not client.exists("redislock{0}:index")


async def test_a_call_whose_maker_has_ended_is_refused_where_nobody_else_awaits_it(client: redis.Redis) -> None:
    async def make() -> list[Any]:
        return [Lock(NAME).aacquire()]

    (call,) = await asyncio.create_task(make())
    with pytest.raises(LockError, match="would belong to a task that ends with this call"):
        await asyncio.create_task(call)
    assert holder(client) == ""
    lock = Lock(NAME)

    async def make_of(lock: Lock) -> list[Any]:
        return [lock.aacquire()]

    (call,) = await asyncio.create_task(make_of(lock))
    assert await call  # whoever awaits it without a task between has the lock
    assert await aowns(lock)


def test_a_call_that_is_handed_to_a_loop_in_another_thread_is_for_the_thread_that_made_it(
    other: Callable[[], Other],
) -> None:
    loop = asyncio.new_event_loop()
    running, lock = other().start(loop.run_forever), Lock(NAME)
    assert asyncio.run_coroutine_threadsafe(lock.aacquire(), loop).result(GENEROUS)
    assert lock.owned()
    asyncio.run_coroutine_threadsafe(lock.arelease(), loop).result(GENEROUS)
    assert not lock.owned()
    asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result(GENEROUS)
    loop.call_soon_threadsafe(loop.stop)
    running.result(GENEROUS)
    loop.close()
