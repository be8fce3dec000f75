"""Whose acquisition it is in sync code that a task calls: the task's."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_redislock import Lock, LockError, LockNotOwned, locked
from django_redislock.engine.owners.bridges import _woken_task, runs_below
from tests.helpers.actors import GENEROUS
from tests.helpers.bridges import InThread, aowns, arefuses, owns, refuses, settled, to_thread
from tests.helpers.cancelling import until
from tests.helpers.state import NAME, holder
from tests.inside import leases

# -- sync code that a task calls ---------------------------------------------------------------------------------------


async def test_sync_code_owns_the_lock_of_the_task_that_calls_it(in_thread: InThread) -> None:
    async with Lock(NAME) as lock:
        assert await in_thread(lambda: lock.token) == lock.token
        assert await in_thread(lock.owned)
        assert await in_thread(lock.extend, 1)
        await in_thread(lock.check)
        with pytest.raises(LockError, match="would wait for itself without end"):
            await in_thread(Lock(NAME).acquire)
        assert not await in_thread(functools.partial(Lock(NAME).acquire, blocking_timeout=0.01))
        assert await lock.aowned()


async def test_after_sync_code_releases_a_lock_its_task_no_longer_holds_it(
    in_thread: InThread, client: redis.Redis
) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    await in_thread(lock.release)
    assert holder(client) == ""
    assert await arefuses(lock)
    await lock.aacquire()
    token = await in_thread(lock.detach)
    assert await arefuses(lock)
    await Lock(NAME, token=token).arelease()


async def test_a_lock_that_sync_code_acquires_belongs_to_its_task(in_thread: InThread, client: redis.Redis) -> None:
    lock = Lock(NAME)
    assert await in_thread(lock.acquire)
    assert await lock.aowned()
    assert await in_thread(lock.owned)
    await in_thread(lock.release)
    assert await in_thread(refuses, lock)
    assert await in_thread(lock.acquire)
    await lock.arelease()
    assert holder(client) == ""


async def test_a_lock_that_sync_code_has_acquired_is_renewed_for_the_task(in_thread: InThread) -> None:
    lock = Lock(NAME, ttl=3)
    assert await in_thread(lock.acquire)
    end = monotonic() + lock.remaining()
    while monotonic() + lock.remaining() < end + 0.3:
        assert not lock.lost
        await asyncio.sleep(0.01)
    await in_thread(lock.release)


async def test_sync_code_whose_task_was_cancelled_keeps_the_lock_of_its_block(
    in_thread: InThread, aeventually: Callable[..., Awaitable[Any]]
) -> None:
    lock, inside, go_on, done = Lock(NAME, ttl=1), threading.Event(), threading.Event(), threading.Event()

    @locked(NAME, reentrant=True, blocking_timeout=0)
    def again() -> None:
        lock.check()

    def work() -> None:
        with lock:
            inside.set()
            assert go_on.wait(GENEROUS)
            again()
            lock.check()
        done.set()

    task = asyncio.ensure_future(in_thread(work))
    await aeventually(inside.is_set)
    (lease,) = leases()
    task.cancel()
    await asyncio.wait([task])
    end = lease.ends
    await aeventually(lambda: lease.ends > end + lease.ttl)
    assert await lock.alocked()
    go_on.set()
    await aeventually(done.is_set)
    assert not await lock.alocked()


async def test_two_tasks_share_no_lock_though_their_sync_code_runs_in_one_thread(in_thread: InThread) -> None:
    async def hold() -> None:
        assert await in_thread(lock.acquire)
        taken.set()
        await asked.wait()
        await in_thread(lock.release)

    lock, taken, asked = Lock(NAME), asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(hold())
    await taken.wait()
    assert await in_thread(refuses, lock)
    assert await in_thread(functools.partial(lock.acquire, blocking=False)) is False
    asked.set()
    await holding


async def test_sync_code_of_many_simultaneous_tasks_is_told_apart(in_thread: InThread) -> None:
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


async def test_requests_with_threads_of_their_own_keep_their_locks_apart() -> None:
    lock, inside = Lock(NAME), list[int]()

    def section(number: int) -> None:
        with lock:
            inside.append(number)
            assert lock.owned()
            assert inside == [number]
            inside.remove(number)
        assert refuses(lock)

    async def request(number: int) -> None:
        async with ThreadSensitiveContext():
            await sync_to_async(settled(section))(number)
            await sync_to_async(settled(section))(number)

    await asyncio.gather(*(request(number) for number in range(5)))


async def test_code_in_an_executor_does_not_own_the_locks_of_the_task(client: redis.Redis) -> None:
    run_in_executor = asyncio.get_running_loop().run_in_executor
    async with Lock(NAME) as lock:
        assert await run_in_executor(None, refuses, lock)
    assert await run_in_executor(None, lock.acquire)
    assert await arefuses(lock)
    assert await to_thread(refuses, lock)
    assert holder(client)


async def test_any_code_of_the_task_can_release_what_its_sync_code_acquired_reentrantly(
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


# -- sync code that is faster than its task ----------------------------------------------------------------------------


class AtOnce(ThreadPoolExecutor):
    """What is submitted has begun before submit() returns, so before the task that has done so can wait for it.

    That is what happens when a thread has to be started first, or on a busy machine.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        begun = threading.Event()

        def begin() -> Any:
            begun.set()
            return function(*args, **kwargs)

        future = super().submit(begin)
        assert begun.wait(GENEROUS)
        return future


@pytest.fixture
def at_once() -> Iterator[InThread]:
    with AtOnce(1) as executor:

        async def at_once(function: Callable[..., Any], *args: Any) -> Any:
            return await sync_to_async(function, thread_sensitive=False, executor=executor)(*args)

        yield at_once


async def test_sync_code_that_begins_before_its_task_waits_owns_the_tasks_lock(at_once: InThread) -> None:
    async with Lock(NAME) as lock:
        assert await at_once(owns, lock)


async def test_a_lock_that_sync_code_acquires_before_its_task_waits_belongs_to_the_task(at_once: InThread) -> None:
    lock = Lock(NAME)
    assert await at_once(lock.acquire)
    assert await lock.aowned()


async def test_sync_code_that_begins_before_its_child_task_waits_owns_nothing_of_the_parent(at_once: InThread) -> None:
    async with Lock(NAME) as lock:
        assert await asyncio.create_task(at_once(refuses, lock))  # type: ignore[arg-type]


class LongBefore(ThreadPoolExecutor):
    """A task that submits comes to wait when what it has submitted has looked for it several times, or given up.

    That is what happens where other threads keep the processor busy.
    """

    def __init__(self, looks: list[object]) -> None:
        super().__init__(1)
        self._looks = looks

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        until(lambda: len(self._looks) > 3 or future.done())
        return future


@pytest.fixture
def long_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[LongBefore]:
    looks: list[object] = []

    def noted(*args: Any) -> asyncio.Task[Any] | None:
        looks.append(args)
        return _woken_task(*args)

    monkeypatch.setattr("django_redislock.engine.owners.bridges._woken_task", noted)
    monkeypatch.setattr("django_redislock.engine.owners.bridges.STARTING_WITHIN", 0.0)
    with LongBefore(looks) as executor:
        yield executor


async def test_sync_code_that_begins_long_before_its_task_waits_owns_the_tasks_lock(long_before: LongBefore) -> None:
    asyncio.get_running_loop().set_default_executor(long_before)
    async with Lock(NAME) as lock:
        assert await asyncio.to_thread(owns, lock)


async def test_a_lock_that_sync_code_acquires_long_before_its_task_waits_belongs_to_the_task(
    long_before: LongBefore,
) -> None:
    asyncio.get_running_loop().set_default_executor(long_before)
    lock = Lock(NAME)
    assert await sync_to_async(lock.acquire, thread_sensitive=False)()
    await lock.arelease()


# -- where in the task it stands ---------------------------------------------------------------------------------------

Way = Callable[[Awaitable[Any]], Awaitable[Any]]


async def by_await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def by_generator(awaitable: Awaitable[Any]) -> Any:
    async def items() -> AsyncIterator[Any]:
        yield await awaitable

    async for item in items():
        result = item
    return result


async def by_context_manager(awaitable: Awaitable[Any]) -> Any:
    @asynccontextmanager
    async def block() -> AsyncIterator[Any]:
        yield await awaitable

    async with block() as result:
        return result


async def by_awaitable(awaitable: Awaitable[Any]) -> Any:
    class Wrapped:
        def __await__(self) -> Generator[Any, Any, Any]:
            return (yield from awaitable.__await__())

    return await Wrapped()


ways = pytest.mark.parametrize("way", [by_await, by_generator, by_context_manager, by_awaitable])


@ways
async def test_sync_code_owns_the_locks_of_its_task_from_wherever_that_calls_it(way: Way, in_thread: InThread) -> None:
    async with Lock(NAME) as lock:
        assert await way(in_thread(owns, lock))


@ways
async def test_a_lock_that_sync_code_acquires_belongs_to_its_task_wherever_that_calls_it(
    way: Way, in_thread: InThread
) -> None:
    lock = Lock(NAME)
    assert await way(in_thread(lock.acquire))
    assert await lock.aowned()
    await lock.arelease()


# -- sync code of child tasks ------------------------------------------------------------------------------------------


async def test_sync_code_of_a_child_task_does_not_own_the_lock_of_the_parent(in_thread: InThread) -> None:
    async def release() -> None:
        with pytest.raises(LockNotOwned):
            await in_thread(lock.release)

    async with Lock(NAME, reentrant=True) as lock:
        assert await asyncio.create_task(in_thread(refuses, lock))  # type: ignore[arg-type]
        assert await asyncio.gather(in_thread(refuses, lock)) == [True]
        assert await asyncio.gather(in_thread(functools.partial(lock.acquire, blocking=False))) == [False]
        await asyncio.create_task(release())
        assert await lock.aowned()


async def test_a_lock_that_was_acquired_in_a_task_of_nothing_but_sync_code_is_not_renewed_when_that_has_ended(
    client: redis.Redis, aeventually: Callable[..., Awaitable[Any]]
) -> None:
    lock = Lock(NAME, ttl=1)
    assert all(await asyncio.gather(sync_to_async(settled(lock.acquire))()))
    await aeventually(lambda: not holder(client))


async def test_a_lock_that_sync_code_of_a_child_task_acquires_belongs_to_the_child(in_thread: InThread) -> None:
    lock, taken, asked = Lock(NAME), asyncio.Event(), asyncio.Event()

    async def child() -> None:
        assert await in_thread(lock.acquire)
        taken.set()
        await asked.wait()
        assert await lock.aowned()
        await lock.arelease()

    async with Lock("another") as another:
        holding = asyncio.create_task(child())
        await taken.wait()
        assert await arefuses(lock)
        assert await in_thread(refuses, lock)
        assert await in_thread(owns, another)
        asked.set()
        await holding


@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_coroutine_below_the_sync_code_of_a_child_task_owns_nothing_of_the_parents(
    asks_first: bool, in_thread: InThread
) -> None:
    def sync_code() -> bool:
        if asks_first:
            assert not owns(lock)
        return async_to_sync(arefuses)(lock)

    async with Lock(NAME) as lock:
        assert await asyncio.create_task(in_thread(sync_code))  # type: ignore[arg-type]


async def test_the_task_of_sync_code_is_found_without_a_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands, of connections that idle."""
    looks: list[object] = []

    def noted(task: asyncio.Task[Any]) -> bool:
        looks.append(task)
        return runs_below(task)

    def work(loop: asyncio.AbstractEventLoop) -> None:
        end = monotonic() + GENEROUS
        while asyncio.current_task(loop) is not None:  # the task that has called waits by now
            assert monotonic() < end
        with Lock(NAME) as lock:
            assert owns(lock)

    monkeypatch.setattr("django_redislock.engine.owners.bridges.runs_below", noted)
    idle = [asyncio.create_task(asyncio.sleep(GENEROUS)) for _ in range(300)]
    await asyncio.create_task(sync_to_async(work)(asyncio.get_running_loop()))
    for task in idle:
        task.cancel()
    assert 0 < len(looks) < 10


async def test_the_task_of_sync_code_is_found_even_if_the_futures_do_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_redislock.engine.owners.bridges._woken_task", lambda work: None)
    lock = Lock(NAME)
    assert await sync_to_async(lock.acquire)()
    assert await lock.aowned()
    await lock.arelease()


async def test_sync_code_in_a_context_of_its_own_owns_the_lock_of_the_task_that_calls_it(in_thread: InThread) -> None:
    async with Lock(NAME) as lock:
        assert await in_thread(lambda: contextvars.copy_context().run(owns, lock))


def test_the_task_that_waits_for_a_thread_is_found_through_functions_with_unset_cells() -> None:
    """A callback may mention what is to be defined further down."""
    complete = threading.Event()

    def work() -> bool:
        assert complete.wait(GENEROUS)
        with Lock(NAME) as lock:
            return owns(lock)

    with ThreadPoolExecutor() as executor:
        future = executor.submit(work)
        future.add_done_callback(lambda done: (done and None) or defined_later)
        complete.set()
        assert future.result(GENEROUS)
    defined_later = None


async def test_sync_code_is_matched_to_a_task_class_written_in_python_as_well() -> None:
    """Libraries derive their own from it: Python's own tasks are written in C."""
    lock = Lock(NAME)

    def sync_code() -> bool:
        return owns(lock) and async_to_sync(aowns)(lock)

    async def section() -> None:
        async with lock:
            assert await to_thread(sync_code)

    task: asyncio.Task[None] = asyncio.tasks._PyTask(section())  # type: ignore[attr-defined]
    await task
