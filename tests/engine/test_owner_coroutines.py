"""Whose acquisition it is in coroutines that sync code calls, and where both call each other: the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async

from django_redislock import Lock, LockError
from tests.helpers import bridges
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.bridges import InThread, aowns, arefuses, refuses, settled
from tests.helpers.state import NAME, holder

Eventually = Callable[..., Any]


# -- coroutines that sync code calls -----------------------------------------------------------------------------------


def test_a_coroutine_below_async_to_sync_owns_the_lock_of_the_caller(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    assert async_to_sync(lock.aowned)()
    assert async_to_sync(aowns)(lock)
    assert async_to_sync(lock.aextend)(1)
    with pytest.raises(LockError, match="would wait for itself without end"):
        async_to_sync(Lock(NAME).aacquire)()
    assert not async_to_sync(Lock(NAME).aacquire)(blocking_timeout=0.01)
    assert lock.owned()
    async_to_sync(lock.arelease)()
    assert holder(client) == ""
    assert refuses(lock)


def test_a_lock_acquired_below_async_to_sync_belongs_to_the_caller_that_continues(
    client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(NAME, ttl=3)
    assert async_to_sync(lock.aacquire)()
    assert lock.owned()
    end = monotonic() + lock.remaining()
    eventually(lambda: monotonic() + lock.remaining() > end + 0.3)  # the task has ended, but not who called it
    assert async_to_sync(aowns)(lock)
    assert "owner-ended" not in caplog.text
    lock.release()
    assert holder(client) == ""


def test_a_lock_from_below_async_to_sync_is_not_renewed_when_its_caller_has_ended(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    thread = other()
    assert thread(async_to_sync(Lock(NAME, ttl=1).aacquire))
    thread.end()
    eventually(lambda: not holder(client))


def test_a_child_task_below_async_to_sync_does_not_own_the_lock_of_the_caller() -> None:
    async def below(lock: Lock) -> None:
        assert await aowns(lock)
        assert await asyncio.create_task(arefuses(lock))
        assert await asyncio.create_task(bridges.in_thread(refuses, lock))
        assert await aowns(lock)

    with Lock(NAME) as lock:
        async_to_sync(below)(lock)
        assert lock.owned()


def test_a_task_of_nothing_but_sync_code_below_async_to_sync_does_not_own_the_lock_of_the_caller() -> None:
    async def below(lock: Lock) -> None:
        assert all(await asyncio.gather(sync_to_async(settled(refuses))(lock)))

    with Lock(NAME) as lock:
        async_to_sync(below)(lock)


# -- sync code that calls coroutines that call sync code that calls coroutines -----------------------------------------

Then = Callable[[Lock], Awaitable[Any]]


def below(lock: Lock, levels: int, then: Then, asks: bool) -> Any:
    """Sync code that calls a coroutine that calls sync code, so many levels deep; the last one does ``then``.

    ``asks``: each of them looks whether it owns the lock.
    """
    assert not asks or lock.owned()

    async def abelow() -> Any:
        assert not asks or await lock.aowned()
        if levels == 0:
            return await then(lock)
        return await bridges.in_thread(below, lock, levels - 1, then, asks)

    return async_to_sync(abelow)()


async def arelease(lock: Lock) -> None:
    await lock.arelease()


async def release_in_thread(lock: Lock) -> None:
    await bridges.in_thread(lock.release)


def release_below(levels: int, then: Then, asks: bool) -> bool:
    lock = Lock(NAME)
    lock.acquire()
    below(lock, levels, then, asks)
    return refuses(lock)


asking = pytest.mark.parametrize("asks", [True, False], ids=["all ask", "nobody asks"])
thens = pytest.mark.parametrize("then", [arelease, release_in_thread])


@pytest.mark.parametrize("levels", [0, 1, 2])
@asking
@thens
def test_a_release_at_the_lowest_level_counts_for_the_sync_code_above_it(
    levels: int, then: Then, asks: bool, client: redis.Redis
) -> None:
    assert release_below(levels, then, asks)
    assert holder(client) == ""


@pytest.mark.parametrize("levels", [0, 1, 2])
@asking
@thens
async def test_a_release_at_the_lowest_level_counts_for_the_task_above_it(
    levels: int, then: Then, asks: bool, in_thread: InThread, client: redis.Redis
) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    await in_thread(below, lock, levels, then, asks)
    assert await arefuses(lock)
    assert holder(client) == ""
    # asgiref runs the coroutines of sync code in the loop that has called it
    assert await in_thread(release_below, levels, then, asks)
    assert holder(client) == ""


@pytest.mark.parametrize("asks", [True, False], ids=["all ask", "nobody asks"])
async def test_a_lock_acquired_at_the_lowest_level_belongs_to_the_sync_code_above_it(
    asks: bool, in_thread: InThread, client: redis.Redis
) -> None:
    outer, inner = Lock("outer"), Lock(NAME)

    async def acquire(_: Lock) -> None:
        await inner.aacquire()

    def sync_code() -> None:
        with outer:
            below(outer, 2, acquire, asks)
            assert inner.owned()
            inner.release()

    await in_thread(sync_code)
    assert holder(client) == ""


@pytest.mark.parametrize("levels", [0, 1])
async def test_a_child_task_at_the_lowest_level_owns_nothing_of_the_levels_above_it(
    levels: int, in_thread: InThread
) -> None:
    async def ask(lock: Lock) -> bool:
        child = asyncio.create_task(bridges.in_thread(refuses, lock))
        return await asyncio.create_task(arefuses(lock)) and await child

    lock = Lock(NAME)
    assert await in_thread(lock.acquire)
    assert await in_thread(below, lock, levels, ask, True)
    await lock.arelease()
    async with lock:
        assert await in_thread(below, lock, levels, ask, True)


async def test_a_coroutine_below_sync_code_that_waits_for_its_task_without_end_raises(in_thread: InThread) -> None:
    async with Lock(NAME):
        with pytest.raises(LockError, match="would wait for itself without end"):
            await in_thread(async_to_sync(Lock(NAME).aacquire))


async def test_a_coroutine_below_sync_code_of_an_executor_owns_nothing_of_the_task(in_thread: InThread) -> None:
    """Whatever the same thread has run before."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    await in_thread(async_to_sync(Lock("another").alocked))
    async with Lock(NAME) as lock:
        assert await loop.run_in_executor(None, async_to_sync(arefuses), lock)
    assert await loop.run_in_executor(None, async_to_sync(lock.aacquire))
    assert await arefuses(lock)
    assert await loop.run_in_executor(None, lock.owned)


async def test_a_coroutine_below_to_thread_owns_the_lock_of_the_task_whatever_the_thread_has_run_before(
    in_thread: InThread,
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await in_thread(async_to_sync(Lock("another").alocked))

    async def child(lock: Lock) -> None:
        assert await bridges.to_thread(async_to_sync(arefuses), lock)
        async with Lock("another") as another:
            assert await bridges.to_thread(async_to_sync(aowns), another)

    async with Lock(NAME) as lock:
        assert await bridges.to_thread(async_to_sync(aowns), lock)
        await asyncio.create_task(child(lock))


async def test_a_coroutine_below_sync_code_whose_task_was_cancelled_owns_the_lock_of_its_block(
    in_thread: InThread, aeventually: Callable[..., Awaitable[Any]]
) -> None:
    lock, inside, go_on, found = Lock(NAME), threading.Event(), threading.Event(), list[bool]()

    def work() -> None:
        with lock:
            inside.set()
            assert go_on.wait(GENEROUS)
            found.append(async_to_sync(aowns)(lock))

    task = asyncio.ensure_future(in_thread(work))
    await aeventually(inside.is_set)
    task.cancel()
    await asyncio.wait([task])
    go_on.set()
    await aeventually(lambda: found)
    assert found == [True]


async def test_a_task_that_a_callback_refers_to_is_not_mistaken_for_the_waiting_one() -> None:
    def mention(_: object) -> None:
        assert not holding.done()

    async def hold(lock: Lock) -> None:
        async with lock:
            await asyncio.to_thread(over.wait, GENEROUS)

    lock, over = Lock(NAME), threading.Event()
    holding, begin = asyncio.create_task(hold(lock)), threading.Event()

    def work() -> bool:
        assert begin.wait(GENEROUS)
        return async_to_sync(arefuses)(lock)

    while not await lock.alocked():
        await asyncio.sleep(0)
    future = asyncio.get_running_loop().run_in_executor(None, work)
    future.add_done_callback(mention)
    begin.set()
    assert await future
    over.set()
    await holding


def test_a_coroutine_owns_the_lock_of_a_caller_whose_frames_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a greenlet."""
    monkeypatch.setattr("sys._current_frames", dict)
    with Lock(NAME) as lock:
        assert async_to_sync(aowns)(lock)
