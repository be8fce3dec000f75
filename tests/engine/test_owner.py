"""Whose acquisition it is, where that is hard to tell. See also ``tests/lock/test_whose.py``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async

from django_redislock import Lock, LockError, locked
from tests.helpers.actors import GENEROUS, InThread, Other
from tests.helpers.state import NAME, holder


async def test_a_call_without_a_living_owner_is_refused_before_anything_is_sent(client: redis.Redis) -> None:
    loop, made, lock = asyncio.get_running_loop(), asyncio.get_running_loop().create_future(), Lock(NAME)
    loop.call_soon(lambda: made.set_result(asyncio.ensure_future(Lock(NAME).aacquire())))  # that is in no task
    with pytest.raises(LockError, match="Await it in the task that needs the lock"):
        await (await made)

    async def make() -> list[Any]:
        return [lock.aacquire(), lock.aacquire()]

    first, second = await asyncio.create_task(make())
    with pytest.raises(LockError, match="would belong to a task that ends with this call"):
        await asyncio.create_task(first)
    assert not client.exists("redislock{0}:index")
    assert await second  # whoever awaits it without a task between has the lock
    assert await lock.aowned()


def test_a_call_that_is_handed_to_a_loop_in_another_thread_is_for_the_thread_that_made_it(
    other: Callable[[], Other],
) -> None:
    loop = asyncio.new_event_loop()
    running, lock = other().start(loop.run_forever), Lock(NAME)
    assert asyncio.run_coroutine_threadsafe(lock.aacquire(), loop).result(GENEROUS)
    assert lock.owned()
    for call in (lock.arelease(), loop.shutdown_asyncgens()):
        asyncio.run_coroutine_threadsafe(call, loop).result(GENEROUS)
    assert not lock.owned()
    loop.call_soon_threadsafe(loop.stop)
    running.result(GENEROUS)
    loop.close()


async def test_sync_code_whose_task_was_cancelled_keeps_the_lock_of_its_block(
    in_thread: InThread, client: redis.Redis, aeventually: Callable[..., Awaitable[Any]]
) -> None:
    lock, inside, go_on, found = Lock(NAME, ttl=1), threading.Event(), threading.Event(), list[bool]()

    @locked(NAME, reentrant=True, blocking_timeout=0)
    def again() -> None:
        lock.check()

    def work() -> None:
        with lock:
            inside.set()
            assert go_on.wait(GENEROUS)
            again()
            found.append(async_to_sync(lock.aowned)())

    task = asyncio.ensure_future(in_thread(work))
    await aeventually(inside.is_set)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(1.2)  # longer than its lease
    assert not lock.lost
    go_on.set()
    await aeventually(lambda: found)
    assert found == [True]
    await aeventually(lambda: not holder(client))


class Popular(ThreadPoolExecutor):
    """Much else is to be called at the end of what is submitted."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def begin() -> Any:
            assert waits.wait(GENEROUS)
            return function(*args, **kwargs)

        waits, mentioned, later = threading.Event(), asyncio.current_task(), None
        future = super().submit(begin)
        for _ in range(30):
            future.add_done_callback(lambda done: None if done else (mentioned, later))  # noqa: F821
        del later  # it is defined further down, say
        asyncio.get_running_loop().call_soon(waits.set)
        return future


async def test_sync_code_owns_the_lock_of_its_task_in_any_executor() -> None:
    asyncio.get_running_loop().set_default_executor(Popular(1))
    lock = Lock(NAME)
    assert await sync_to_async(lock.acquire, thread_sensitive=False)()
    assert await asyncio.to_thread(lock.owned)
    # a child that runs nothing else
    assert not any(await asyncio.gather(sync_to_async(lock.owned)(), sync_to_async(lock.owned)()))
    await lock.arelease()


def test_a_coroutine_owns_the_lock_of_a_caller_whose_frames_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a greenlet."""
    monkeypatch.setattr("sys._current_frames", dict)
    with Lock(NAME) as lock:
        assert async_to_sync(lock.aowned)()
