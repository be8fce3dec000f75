"""Whose acquisition it is: that of whoever has called, wherever the call is run."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async

from django_redislock import Lock, LockError, locked
from tests.helpers import bridges
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.bridges import InThread, aowns, arefuses, owns, refuses, settled
from tests.helpers.state import NAME, flag, holder, queued

from .children import CHILDREN, Child, by_wait_for

Eventually = Callable[..., Any]
AEventually = Callable[..., Awaitable[Any]]

FOR_ITSELF = "would wait for itself without end"


async def is_renewed(lock: Lock) -> bool:
    """Whether its lease is moved on, sooner or later."""
    end = lock.remaining()
    while 0 < lock.remaining() <= end:
        end = lock.remaining()
        await asyncio.sleep(0.01)
    return not lock.lost


@pytest.mark.parametrize("equal", [True, False])
def test_objects_that_are_equal_or_have_no_hash_are_told_apart(equal: bool, client: redis.Redis) -> None:
    class Odd(Lock):
        def __eq__(self, other: object) -> bool:
            return equal

    first, second = Odd("first"), Odd("second")
    with first:
        assert (owns(first), owns(second)) == (True, False)
        with second:
            assert (first.token, second.token) == (holder(client, "first"), holder(client, "second"))
        assert (owns(first), owns(second)) == (True, False)
    assert not owns(first)


# -- who is started by a holder ----------------------------------------------------------------------------------------


def by_thread(pool: ThreadPoolExecutor, lock: Lock) -> bool:
    return pool.submit(refuses, lock).result()


def by_thread_of_the_same_context(pool: ThreadPoolExecutor, lock: Lock) -> bool:
    return pool.submit(contextvars.copy_context().run, refuses, lock).result()


def by_coroutine_of_the_same_context(pool: ThreadPoolExecutor, lock: Lock) -> bool:
    return pool.submit(contextvars.copy_context().run, async_to_sync(arefuses), lock).result()


def by_event_loop(pool: ThreadPoolExecutor, lock: Lock) -> bool:
    return asyncio.run(arefuses(lock))


@pytest.mark.parametrize(
    "asks", [by_thread, by_thread_of_the_same_context, by_coroutine_of_the_same_context, by_event_loop]
)
def test_whoever_a_thread_starts_owns_nothing_of_it(asks: Callable[[ThreadPoolExecutor, Lock], bool]) -> None:
    with Lock(NAME) as lock, ThreadPoolExecutor(1) as pool:
        assert asks(pool, lock)
        assert lock.owned()


async def test_a_thread_that_a_task_starts_owns_nothing_of_it_and_the_task_nothing_of_the_thread() -> None:
    run = asyncio.get_running_loop().run_in_executor
    async with Lock(NAME) as lock:
        assert await run(None, refuses, lock)
        assert await aowns(lock)
    assert await run(None, lock.acquire)
    assert await arefuses(lock)
    assert await bridges.to_thread(refuses, lock)


@pytest.mark.parametrize("child", CHILDREN)
async def test_parent_and_child_task_own_nothing_of_each_other(child: Child) -> None:
    async def hold() -> None:
        assert await arefuses(lock)
        async with its_own:
            taken.set()
            await asked.wait()
            assert await aowns(its_own)

    lock, its_own, taken, asked = Lock("parents"), Lock("of-the-child"), asyncio.Event(), asyncio.Event()
    async with lock:
        holding = asyncio.ensure_future(child(hold))
        await taken.wait()
        assert await arefuses(its_own)
        assert not await its_own.aacquire(blocking=False)
        assert await aowns(lock)
        asked.set()
        await holding
        assert await aowns(lock)


async def test_a_child_task_waits_for_its_parent_and_gets_the_lock_after_it(
    client: redis.Redis, aeventually: AEventually
) -> None:
    """Through the same object, and without end: it does not wait for itself."""

    async def section() -> None:
        async with lock:
            theirs.append(lock.token)
            go_on.set()
            await done.wait()

    lock, go_on, done, theirs = Lock(NAME), asyncio.Event(), asyncio.Event(), list[str | None]()
    async with lock:
        mine = lock.token
        waiting = asyncio.create_task(section())
        await aeventually(lambda: queued(client))
        assert lock.token == mine
    await go_on.wait()
    assert not await aowns(lock)
    done.set()
    await waiting
    async with lock:
        assert lock.token not in (mine, *theirs)


# -- calls that another task awaits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [*CHILDREN, by_wait_for])
async def test_a_call_that_is_awaited_elsewhere_is_for_the_task_that_made_it(
    elsewhere: Child, client: redis.Redis
) -> None:
    lock = Lock(NAME, ttl=1.5)
    assert await elsewhere(lock.aacquire) is True
    assert await aowns(lock)
    assert await is_renewed(lock)
    assert await elsewhere(lock.aowned) is True
    assert await elsewhere(lambda: lock.aextend(1)) is True
    await elsewhere(lock.arelease)
    assert not await aowns(lock)
    await elsewhere(lock.aseize)
    await elsewhere(lock.adetach)
    assert flag(client) == "d"
    assert await arefuses(lock)


async def test_several_calls_that_are_gathered_are_for_one_task(client: redis.Redis) -> None:
    locks = [Lock(f"seat:{number}") for number in range(20)]
    assert all(await asyncio.gather(*(lock.aacquire(blocking_timeout=1) for lock in locks)))
    assert [lock.token for lock in locks] == [holder(client, lock.name) for lock in locks]
    with pytest.raises(LockError, match=FOR_ITSELF):
        await asyncio.gather(locks[0].aacquire())
    await asyncio.gather(*(lock.arelease() for lock in locks))
    assert not any(await asyncio.gather(*(lock.alocked() for lock in locks)))


async def test_a_call_without_a_living_owner_is_refused_before_anything_is_sent(client: redis.Redis) -> None:
    loop, made = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    loop.call_soon(lambda: made.set_result(asyncio.ensure_future(Lock(NAME).aacquire())))  # that is in no task
    with pytest.raises(LockError, match="Await it in the task that needs the lock"):
        await (await made)

    async def make() -> list[Any]:
        return [lock.aacquire(), lock.aacquire()]

    lock = Lock(NAME)
    first, second = await asyncio.create_task(make())
    with pytest.raises(LockError, match="would belong to a task that ends with this call"):
        await asyncio.create_task(first)
    assert not client.exists("redislock{0}:index")
    assert await second  # whoever awaits it without a task between has the lock
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


# -- sync code that a task calls ---------------------------------------------------------------------------------------


async def test_sync_code_of_a_task_goes_on_under_its_lock(in_thread: InThread, client: redis.Redis) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    assert await in_thread(lambda: lock.token) == lock.token
    assert await in_thread(lock.owned)
    assert await in_thread(lock.extend, 1)
    for acquire in (Lock(NAME).acquire, async_to_sync(Lock(NAME).aacquire)):
        with pytest.raises(LockError, match=FOR_ITSELF):
            await in_thread(acquire)
    assert not await in_thread(functools.partial(Lock(NAME).acquire, blocking_timeout=0.01))
    await in_thread(lock.release)
    assert holder(client) == ""
    assert await arefuses(lock)


async def test_what_sync_code_acquires_is_renewed_and_can_be_released_in_other_sync_code_or_in_the_task(
    in_thread: InThread, client: redis.Redis
) -> None:
    lock = Lock(NAME, ttl=3)
    assert await in_thread(lock.acquire)
    assert await lock.aowned()
    assert await is_renewed(lock)
    await in_thread(lock.release)
    assert await in_thread(refuses, lock)
    assert await in_thread(lock.acquire)
    await lock.arelease()
    assert holder(client) == ""


async def test_sync_code_whose_task_was_cancelled_keeps_the_lock_of_its_block(
    in_thread: InThread, aeventually: AEventually
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
            found.append(async_to_sync(aowns)(lock))

    task = asyncio.ensure_future(in_thread(work))
    await aeventually(inside.is_set)
    task.cancel()
    await asyncio.wait([task])
    assert await is_renewed(lock)
    go_on.set()
    await aeventually(lambda: found)
    assert found == [True]
    await aeventually(lambda: is_free(lock))


async def is_free(lock: Lock) -> bool:
    return not await lock.alocked()


async def test_sync_code_of_different_tasks_is_told_apart_though_it_runs_in_one_thread(in_thread: InThread) -> None:
    async def use(number: int) -> None:
        lock = Lock(f"seat:{number}")
        assert await in_thread(lock.acquire)
        assert await in_thread(owns, lock)
        assert not any(await asyncio.gather(*(in_thread(owns, other) for other in locks)))
        locks.append(lock)
        assert await in_thread(lock.reacquire)
        await lock.arelease()

    locks: list[Lock] = []
    await asyncio.gather(*(use(number) for number in range(30)))


async def test_sync_code_and_its_coroutines_enter_a_reentrant_lock_of_their_task(
    in_thread: InThread, client: redis.Redis
) -> None:
    lock = Lock(NAME, reentrant=True)

    def sync_code() -> None:
        with lock, Lock(NAME, reentrant=True):
            async_to_sync(coroutine)()
            assert holder(client) == token

    async def coroutine() -> None:
        async with lock, Lock(NAME, reentrant=True):
            assert holder(client) == token

    async with lock:
        token = holder(client)
        await in_thread(sync_code)
        assert await in_thread(lock.acquire)
        await lock.arelease()
        assert holder(client) == token
    assert holder(client) == ""
    assert await arefuses(lock)


async def test_sync_code_of_a_child_task_belongs_to_that_child(in_thread: InThread) -> None:
    async def child() -> None:
        assert await in_thread(refuses, parents)
        assert await in_thread(async_to_sync(arefuses), parents)
        assert await in_thread(lock.acquire)
        taken.set()
        await asked.wait()
        await lock.arelease()

    lock, parents, taken, asked = Lock(NAME), Lock("parents", reentrant=True), asyncio.Event(), asyncio.Event()
    async with parents:
        assert all(await asyncio.gather(in_thread(refuses, parents)))  # a child that runs nothing else
        holding = asyncio.create_task(child())
        await taken.wait()
        assert await arefuses(lock)
        assert await in_thread(refuses, lock)
        assert await in_thread(owns, parents)
        asked.set()
        await holding


# -- coroutines that sync code calls -----------------------------------------------------------------------------------


def test_a_coroutine_of_sync_code_goes_on_under_its_lock(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    assert async_to_sync(aowns)(lock)
    assert async_to_sync(lock.aextend)(1)
    with pytest.raises(LockError, match=FOR_ITSELF):
        async_to_sync(Lock(NAME).aacquire)()
    assert not async_to_sync(Lock(NAME).aacquire)(blocking_timeout=0.01)
    async_to_sync(lock.arelease)()
    assert holder(client) == ""
    assert refuses(lock)


def test_what_a_coroutine_of_sync_code_acquires_is_renewed_as_long_as_its_caller_lives(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock, forgotten, thread = Lock(NAME, ttl=3), Lock("forgotten", ttl=1), other()
    assert async_to_sync(lock.aacquire)()
    assert lock.owned()
    assert async_to_sync(is_renewed)(lock)
    assert "owner-ended" not in caplog.text
    assert thread(async_to_sync(forgotten.aacquire))
    thread.end()
    eventually(lambda: not holder(client, "forgotten"))
    lock.release()
    assert holder(client) == ""


def test_child_tasks_of_a_coroutine_of_sync_code_own_nothing_of_the_caller() -> None:
    async def below(lock: Lock) -> None:
        assert await aowns(lock)
        assert await asyncio.create_task(arefuses(lock))
        assert await asyncio.create_task(bridges.in_thread(refuses, lock))
        assert all(await asyncio.gather(sync_to_async(settled(refuses))(lock)))
        assert await aowns(lock)

    with Lock(NAME) as lock:
        async_to_sync(below)(lock)


# -- sync code that calls coroutines that call sync code that calls coroutines -----------------------------------------

Then = Callable[[Lock], Awaitable[Any]]


def below(lock: Lock, levels: int, then: Then) -> Any:
    """Sync code that calls a coroutine that calls sync code, so many levels deep; the last one does ``then``."""

    async def abelow() -> Any:
        if levels == 0:
            return await then(lock)
        return await bridges.in_thread(below, lock, levels - 1, then)

    return async_to_sync(abelow)()


async def arelease(lock: Lock) -> None:
    await lock.arelease()


async def release_in_thread(lock: Lock) -> None:
    await bridges.in_thread(lock.release)


async def child_refuses(lock: Lock) -> None:
    assert await aowns(lock)
    child = asyncio.create_task(bridges.in_thread(refuses, lock))
    assert await asyncio.create_task(arefuses(lock))
    assert await child
    await lock.arelease()


deep = pytest.mark.parametrize("levels", [0, 1, 2])
thens = pytest.mark.parametrize("then", [arelease, release_in_thread, child_refuses])


def release_below(levels: int, then: Then) -> bool:
    lock = Lock(NAME)
    lock.acquire()
    below(lock, levels, then)
    return refuses(lock)


@deep
@thens
def test_the_lowest_level_releases_for_the_sync_code_above_it(levels: int, then: Then, client: redis.Redis) -> None:
    assert release_below(levels, then)
    assert holder(client) == ""


@deep
@thens
async def test_the_lowest_level_releases_for_the_task_above_it(
    levels: int, then: Then, in_thread: InThread, client: redis.Redis
) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    await in_thread(below, lock, levels, then)
    assert await arefuses(lock)
    # asgiref runs the coroutines of sync code in the loop that has called it
    assert await in_thread(release_below, levels, then)
    assert holder(client) == ""


# -- where it is hard to tell ------------------------------------------------------------------------------------------


class Slow(ThreadPoolExecutor):
    """Whoever submits something comes to wait for it late, as where other threads keep the processor busy."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        wait([future], timeout=0.1)
        return future


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


@pytest.mark.parametrize("executor", [Slow, Popular])
async def test_sync_code_owns_the_lock_of_its_task_in_any_executor(executor: type[ThreadPoolExecutor]) -> None:
    asyncio.get_running_loop().set_default_executor(executor(1))
    lock = Lock(NAME)
    assert await sync_to_async(lock.acquire, thread_sensitive=False)()
    assert await asyncio.to_thread(owns, lock)
    await lock.arelease()


def test_a_coroutine_owns_the_lock_of_a_caller_whose_frames_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a greenlet."""
    monkeypatch.setattr("sys._current_frames", dict)
    with Lock(NAME) as lock:
        assert async_to_sync(aowns)(lock)
