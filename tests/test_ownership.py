"""Whose acquisition it is: of the thread or task that acquires, and of whom asgiref runs on its behalf."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, NamedTuple

import pytest
import redis
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_redislock import FairLock, Lock, LockError, LockLost, LockNotOwned

from .actors import GENEROUS, NAME, Other, holder, queued

Eventually = Callable[..., Any]


@pytest.fixture(params=[Lock, FairLock])
def kind(request: pytest.FixtureRequest) -> type[Lock]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=[True, False], ids=["thread-sensitive", "any thread"])
def in_thread(request: pytest.FixtureRequest) -> Callable[..., Awaitable[Any]]:
    """Call a function in a thread, on behalf of the task."""

    async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(function, thread_sensitive=request.param)(*args, **kwargs)

    return in_thread


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a state, in a coroutine."""

    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(look(), GENEROUS)


class Facts(NamedTuple):
    """What the lock says about itself, locally."""

    owned: bool
    has_fence: bool
    has_lease: bool


OURS, NOT_OURS = Facts(True, True, True), Facts(False, False, False)


def facts(lock: Lock) -> Facts:
    return Facts(lock.token is not None, lock.fence is not None, lock.remaining() > 0)


async def afacts(lock: Lock) -> Facts:
    assert await lock.aowned() is (lock.token is not None)
    return facts(lock)


def sync_facts(lock: Lock) -> Facts:
    assert lock.owned() is (lock.token is not None)
    return facts(lock)


def end_of(lock: Lock) -> float:
    """The local time at which the lease ends: it grows when the lease is renewed."""
    return monotonic() + lock.remaining()


async def refuses(lock: Lock) -> bool:
    """Whether everything that needs the lock is refused here, as to somebody who never held it."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lock.arelease,
        lambda: lock.aextend(1),
        lock.areacquire,
        lock.adetach,
    ]
    for call in calls:
        with pytest.raises(LockNotOwned) as caught:
            await call()
        assert not isinstance(caught.value, LockLost)
    with pytest.raises(LockNotOwned):
        lock.check()
    return True


# -- tasks -------------------------------------------------------------------------------------------------------------


async def test_a_task_owns_what_it_acquires_until_it_releases_it(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    assert await afacts(lock) == NOT_OURS
    assert await lock.aacquire()
    assert await afacts(lock) == OURS
    assert holder(client) == lock.token
    await lock.arelease()
    assert await afacts(lock) == NOT_OURS
    assert await refuses(lock)
    assert holder(client) == ""


async def by_create_task(call: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.create_task(call())  # type: ignore[arg-type]


async def by_gather(call: Callable[[], Awaitable[Any]]) -> Any:
    return (await asyncio.gather(call()))[0]


async def by_shield(call: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.shield(call())


async def by_context(call: Callable[[], Awaitable[Any]]) -> Any:
    return await contextvars.copy_context().run(asyncio.ensure_future, call())


CHILDREN = [by_create_task, by_gather, by_shield, by_context]
if sys.version_info >= (3, 11):

    async def by_group(call: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())
        return task.result()

    async def by_given_context(call: Callable[[], Awaitable[Any]]) -> Any:
        return await asyncio.create_task(call(), context=contextvars.copy_context())

    CHILDREN += [by_group, by_given_context]

Child = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
children = pytest.mark.parametrize("child", CHILDREN)


@children
async def test_a_child_task_does_not_own_the_lock_of_its_parent(
    kind: type[Lock], child: Child, client: redis.Redis
) -> None:
    async with kind(NAME) as lock:
        assert await child(lambda: afacts(lock)) == NOT_OURS
        assert await child(lambda: refuses(lock))
        assert await child(lock.alocked) is True
        assert await afacts(lock) == OURS
        assert holder(client) == lock.token


@children
async def test_a_child_task_that_holds_a_lock_leaves_it_to_itself(kind: type[Lock], child: Child) -> None:
    lock = kind(NAME)

    async def hold_and_ask() -> None:
        async with lock:
            assert await afacts(lock) == OURS
            taken.set()
            await asked.wait()
            assert await afacts(lock) == OURS

    taken, asked = asyncio.Event(), asyncio.Event()
    holding = asyncio.ensure_future(child(hold_and_ask))
    await taken.wait()
    assert await afacts(lock) == NOT_OURS
    assert await refuses(lock)
    assert not await lock.aacquire(blocking=False)
    asked.set()
    await holding


@children
async def test_a_child_task_waits_for_the_lock_that_its_parent_holds(
    kind: type[Lock], child: Child, client: redis.Redis
) -> None:
    lock = kind(NAME)

    async def section() -> Facts:
        assert not await lock.aacquire(blocking=False)
        assert not await lock.aacquire(blocking_timeout=0.01)
        refused.set()
        async with lock:  # without end, and no LockError
            return await afacts(lock)

    refused = asyncio.Event()
    await lock.aacquire()
    waiting = asyncio.ensure_future(child(section))
    await refused.wait()
    await until(lambda: queued(client))
    assert not waiting.done()
    await lock.arelease()
    assert await asyncio.wait_for(waiting, GENEROUS) == OURS
    assert await afacts(lock) == NOT_OURS


async def test_the_lock_of_a_child_task_through_the_same_object_does_not_disturb_that_of_its_parent(
    kind: type[Lock], client: redis.Redis
) -> None:
    lock = kind(NAME)
    theirs: list[str | None] = []

    async def section() -> None:
        async with lock:
            theirs.append(lock.token)
            go_on.set()
            await done.wait()

    go_on, done = asyncio.Event(), asyncio.Event()
    async with lock:
        mine = lock.token
        waiting = asyncio.create_task(section())  # knows of this acquisition, and has its own after it
        await until(lambda: queued(client))
        assert lock.token == mine
    await go_on.wait()
    assert theirs != [mine]
    assert await afacts(lock) == NOT_OURS
    done.set()
    await waiting
    async with lock:
        assert await afacts(lock) == OURS
        assert lock.token not in (mine, *theirs)


async def test_what_a_child_task_takes_and_releases_leaves_its_parent_what_it_holds(kind: type[Lock]) -> None:
    first, second = kind("first"), kind("second")

    async def take_and_release() -> None:
        async with second:
            assert (await afacts(first), await afacts(second)) == (NOT_OURS, OURS)

    async def take_and_keep() -> None:
        await second.aacquire()

    async with first:
        await asyncio.create_task(take_and_release())
        assert (await afacts(first), await afacts(second)) == (OURS, NOT_OURS)
        await asyncio.create_task(take_and_keep())
        assert (await afacts(first), await afacts(second)) == (OURS, NOT_OURS)
    assert await first.alocked() is False


async def test_many_tasks_share_one_object_and_each_has_an_acquisition_of_its_own(kind: type[Lock]) -> None:
    lock = kind(NAME)
    tokens = set()

    async def section() -> None:
        async with lock:
            token = lock.token
            await asyncio.sleep(0)
            assert lock.token == token
            tokens.add(token)
        assert lock.token is None

    await asyncio.gather(*(section() for _ in range(20)))
    assert len(tokens) == 20


async def test_a_lock_whose_task_has_ended_is_not_renewed_and_the_log_says_so(
    kind: type[Lock], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lock = kind(NAME, ttl=2)
    ended = asyncio.create_task(lock.aacquire())
    assert await ended is True
    assert await afacts(lock) == NOT_OURS
    await until(lambda: not holder(client))
    assert f"event=owner-ended name={NAME}" in caplog.text
    assert ended.done()


async def test_a_lock_taken_inside_wait_for_lasts_as_long_as_its_task_does(
    kind: type[Lock], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lock = kind(NAME, ttl=2)
    assert await asyncio.wait_for(lock.aacquire(), GENEROUS)
    if sys.version_info >= (3, 12):  # it waits in this task
        assert await afacts(lock) == OURS
        first = end_of(lock)
        await until(lambda: end_of(lock) > first + 0.3)
        await lock.arelease()
    else:  # it waited in a task of its own, which has ended
        assert await afacts(lock) == NOT_OURS
        await until(lambda: not holder(client))
        assert f"event=owner-ended name={NAME}" in caplog.text


# -- sync code that a task calls ---------------------------------------------------------------------------------------


async def test_sync_code_called_from_a_task_owns_the_lock_of_the_task(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]]
) -> None:
    async with kind(NAME) as lock:
        assert await in_thread(sync_facts, lock) == OURS
        assert await in_thread(lambda: lock.token) == lock.token
        assert await in_thread(lock.extend, 1) is True
        assert await in_thread(lock.reacquire) is True
        await in_thread(lock.check)
        assert await afacts(lock) == OURS


async def test_sync_code_can_release_the_lock_of_the_task_which_sees_it_released(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    lock = kind(NAME)
    await lock.aacquire()
    await in_thread(lock.release)
    assert holder(client) == ""
    assert await afacts(lock) == NOT_OURS
    assert await refuses(lock)
    assert await lock.aacquire(blocking=False)
    await lock.arelease()


async def test_sync_code_can_detach_the_lock_of_the_task(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]]
) -> None:
    lock = kind(NAME)
    await lock.aacquire()
    token = await in_thread(lock.detach)
    assert await refuses(lock)
    await kind(NAME, token=token).arelease()


async def test_a_lock_taken_in_sync_code_can_be_released_in_other_sync_code_of_the_same_task(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    lock = kind(NAME)
    assert await in_thread(lock.acquire) is True
    assert await in_thread(sync_facts, lock) == OURS
    assert await in_thread(lock.extend, 1) is True
    await in_thread(lock.release)
    assert await in_thread(sync_facts, lock) == NOT_OURS
    assert holder(client) == ""


async def test_a_lock_taken_in_sync_code_is_kept_for_the_other_sync_code_of_the_task(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]]
) -> None:
    lock = kind(NAME, ttl=2)
    assert await in_thread(lock.acquire)
    first = await in_thread(end_of, lock)
    while await in_thread(end_of, lock) <= first + 0.3:
        await asyncio.sleep(0.01)
    await in_thread(lock.release)


async def test_sync_code_of_two_tasks_in_one_thread_does_not_share_a_lock(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]]
) -> None:
    lock = kind(NAME)

    async def take() -> None:
        assert await in_thread(lock.acquire)
        taken.set()
        await asked.wait()
        await in_thread(lock.release)

    taken, asked = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(take())
    await taken.wait()
    assert await in_thread(sync_facts, lock) == NOT_OURS
    with pytest.raises(LockNotOwned):
        await in_thread(lock.release)
    assert await in_thread(functools.partial(lock.acquire, blocking=False)) is False
    asked.set()
    await holding


async def test_requests_with_threads_of_their_own_keep_their_locks_apart(kind: type[Lock]) -> None:
    lock = kind(NAME)
    inside: list[int] = []

    def section(number: int) -> None:
        with lock:
            inside.append(number)
            assert sync_facts(lock) == OURS
            assert inside == [number]
            inside.remove(number)
        assert sync_facts(lock) == NOT_OURS

    async def request(number: int) -> None:
        async with ThreadSensitiveContext():
            await sync_to_async(section)(number)
            await sync_to_async(section)(number)

    await asyncio.gather(*(request(number) for number in range(5)))


async def test_to_thread_takes_the_locks_of_the_task_along_and_an_executor_does_not(kind: type[Lock]) -> None:
    async with kind(NAME) as lock:
        assert await asyncio.to_thread(sync_facts, lock) == OURS
        assert await asyncio.get_running_loop().run_in_executor(None, sync_facts, lock) == NOT_OURS


# -- coroutines that sync code calls -----------------------------------------------------------------------------------


def test_a_coroutine_below_async_to_sync_owns_the_lock_of_the_sync_caller(
    kind: type[Lock], client: redis.Redis
) -> None:
    with kind(NAME) as lock:
        assert async_to_sync(afacts)(lock) == OURS
        assert async_to_sync(lock.aextend)(1) is True
        assert sync_facts(lock) == OURS
        assert holder(client) == lock.token


def test_a_coroutine_below_async_to_sync_can_release_the_lock_of_the_sync_caller(
    kind: type[Lock], client: redis.Redis
) -> None:
    lock = kind(NAME)
    lock.acquire()
    async_to_sync(lock.arelease)()
    assert holder(client) == ""
    assert sync_facts(lock) == NOT_OURS
    with pytest.raises(LockNotOwned):
        lock.release()


def test_a_lock_taken_below_async_to_sync_is_the_sync_callers_who_goes_on_with_it(
    kind: type[Lock], client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = kind(NAME, ttl=2)
    assert async_to_sync(lock.aacquire)() is True
    assert sync_facts(lock) == OURS
    first = end_of(lock)
    eventually(lambda: end_of(lock) > first + 0.3)  # the task has ended, but not who called it
    assert async_to_sync(afacts)(lock) == OURS
    assert "owner-ended" not in caplog.text
    lock.release()
    assert holder(client) == ""


@children
def test_a_child_task_below_async_to_sync_does_not_own_the_lock_of_the_sync_caller(
    kind: type[Lock], child: Child
) -> None:
    async def below(lock: Lock) -> None:
        assert await afacts(lock) == OURS
        assert await child(lambda: afacts(lock)) == NOT_OURS
        assert await child(lambda: refuses(lock))
        assert await afacts(lock) == OURS

    with kind(NAME) as lock:
        async_to_sync(below)(lock)
        assert sync_facts(lock) == OURS


# -- sync code that calls coroutines that call sync code that calls coroutines -----------------------------------------


def below(lock: Lock, levels: int, then: Callable[[Lock], Awaitable[Any]]) -> Any:
    """Sync code that calls a coroutine, and so on, so many levels deep; the last one does ``then``."""
    assert sync_facts(lock) == OURS

    async def abelow() -> Any:
        assert await afacts(lock) == OURS
        if levels == 0:
            return await then(lock)
        return await sync_to_async(below)(lock, levels - 1, then)

    return async_to_sync(abelow)()


async def arelease(lock: Lock) -> None:
    await lock.arelease()


async def release_in_thread(lock: Lock) -> None:
    await sync_to_async(lock.release)()


def sync_then_async(kind: type[Lock], levels: int, then: Callable[[Lock], Awaitable[Any]]) -> Facts:
    lock = kind(NAME)
    lock.acquire()
    below(lock, levels, then)
    found = sync_facts(lock)
    if found == OURS:
        lock.release()
    return found


levels = pytest.mark.parametrize("levels", [0, 1, 2])


@levels
@pytest.mark.parametrize("then", [arelease, release_in_thread])
def test_what_the_deepest_releases_is_released_for_the_sync_caller(
    kind: type[Lock], levels: int, then: Callable[[Lock], Awaitable[Any]], client: redis.Redis
) -> None:
    assert sync_then_async(kind, levels, then) == NOT_OURS
    assert holder(client) == ""


@levels
@pytest.mark.parametrize("then", [arelease, release_in_thread])
async def test_what_the_deepest_releases_is_released_for_sync_code_that_a_loop_called(
    kind: type[Lock], levels: int, then: Callable[[Lock], Awaitable[Any]], client: redis.Redis
) -> None:
    # asgiref runs the coroutines in the outer loop then
    assert await sync_to_async(sync_then_async)(kind, levels, then) == NOT_OURS
    assert holder(client) == ""


@levels
@pytest.mark.parametrize("then", [arelease, release_in_thread])
async def test_what_the_deepest_releases_is_released_for_the_task(
    kind: type[Lock], levels: int, then: Callable[[Lock], Awaitable[Any]], client: redis.Redis
) -> None:
    lock = kind(NAME)
    await lock.aacquire()
    await sync_to_async(below)(lock, levels, then)
    assert await afacts(lock) == NOT_OURS
    assert holder(client) == ""


@levels
async def test_what_the_deepest_takes_belongs_to_the_sync_code_above_it(
    kind: type[Lock], levels: int, client: redis.Redis
) -> None:
    outer, inner = kind("outer"), kind(NAME)

    async def take(_: Lock) -> None:
        await inner.aacquire()

    def sync_code() -> None:
        with outer:
            below(outer, levels, take)
            assert sync_facts(inner) == OURS
            inner.release()

    await sync_to_async(sync_code)()
    assert holder(client) == ""


@children
async def test_a_child_task_of_the_deepest_owns_nothing_of_those_above_it(kind: type[Lock], child: Child) -> None:
    async def ask(lock: Lock) -> Facts:
        assert await child(lambda: refuses(lock))
        return await child(lambda: afacts(lock))  # type: ignore[no-any-return]

    lock = kind(NAME)
    assert await sync_to_async(lock.acquire)()
    assert await sync_to_async(below)(lock, 1, ask) == NOT_OURS
    await sync_to_async(lock.release)()
    async with lock:
        assert await sync_to_async(below)(lock, 1, ask) == NOT_OURS


# -- contexts and threads ----------------------------------------------------------------------------------------------


async def test_a_copy_of_the_context_is_still_the_same_task(kind: type[Lock]) -> None:
    async with kind(NAME) as lock:
        assert contextvars.copy_context().run(facts, lock) == OURS
        assert contextvars.Context().run(facts, lock) == NOT_OURS


def test_a_thread_owns_nothing_of_the_thread_that_started_it(kind: type[Lock], other: Callable[[], Other]) -> None:
    found: list[Facts] = []

    def ask(lock: Lock) -> Facts:
        found.append(sync_facts(lock))
        with pytest.raises(LockNotOwned):
            lock.release()
        assert not lock.acquire(blocking=False)
        return found[-1]

    with kind(NAME) as lock:
        thread = threading.Thread(target=ask, args=(lock,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(ask, lock).result() == NOT_OURS
        assert other()(lambda: ask(lock)) == NOT_OURS
        assert found == [NOT_OURS] * 3
        assert sync_facts(lock) == OURS


async def test_a_thread_owns_nothing_of_the_task_that_started_it(kind: type[Lock]) -> None:
    async with kind(NAME) as lock:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(sync_facts, lock).result() == NOT_OURS
            with pytest.raises(LockNotOwned):
                pool.submit(lock.release).result()
        assert await afacts(lock) == OURS


def test_a_loop_that_a_thread_starts_owns_nothing_of_the_thread(kind: type[Lock]) -> None:
    async def ask() -> bool:
        assert await afacts(lock) == NOT_OURS
        return await refuses(lock)

    with kind(NAME) as lock:
        assert asyncio.run(ask())
        assert sync_facts(lock) == OURS


# -- taking what one holds already -------------------------------------------------------------------------------------


async def test_waiting_without_end_for_what_the_task_itself_holds_raises(kind: type[Lock], client: redis.Redis) -> None:
    async with kind(NAME) as lock:
        for again in (lock, Lock(NAME), FairLock(NAME)):
            with pytest.raises(LockError, match="would wait for itself without end"):
                await again.aacquire()
            with pytest.raises(LockError, match="would wait for itself without end"):
                async with again:
                    pass
        assert holder(client) == lock.token
        assert queued(client) == 0
        assert await afacts(lock) == OURS


async def test_with_a_bound_what_the_task_itself_holds_is_not_got(kind: type[Lock], client: redis.Redis) -> None:
    async with kind(NAME) as lock:
        for again in (lock, Lock(NAME), FairLock(NAME)):
            assert await again.aacquire(blocking=False) is False
            assert await again.aacquire(blocking_timeout=0.01) is False
        assert holder(client) == lock.token
        assert await afacts(lock) == OURS


async def test_sync_code_does_not_wait_without_end_for_what_its_task_holds(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]]
) -> None:
    async with kind(NAME):
        with pytest.raises(LockError, match="would wait for itself without end"):
            await in_thread(kind(NAME).acquire)
        assert await in_thread(functools.partial(kind(NAME).acquire, blocking_timeout=0.01)) is False


def test_a_coroutine_does_not_wait_without_end_for_what_its_sync_caller_holds(kind: type[Lock]) -> None:
    with kind(NAME):
        with pytest.raises(LockError, match="would wait for itself without end"):
            async_to_sync(kind(NAME).aacquire)()
        assert async_to_sync(kind(NAME).aacquire)(blocking_timeout=0.01) is False


async def test_a_task_takes_what_it_holds_again_when_reentrant(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME, reentrant=True)
    async with lock:
        token = holder(client)
        async with lock, kind(NAME, reentrant=True) as again:
            assert again.token == lock.token == token
        assert holder(client) == token
        assert await afacts(again) == NOT_OURS
    assert holder(client) == ""


async def test_reentrance_reaches_sync_code_and_coroutines_below_it(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    lock = kind(NAME, reentrant=True)

    def sync_code() -> None:
        with lock, kind(NAME, reentrant=True):
            async_to_sync(coroutine)()
            assert holder(client) == token

    async def coroutine() -> None:
        async with lock, kind(NAME, reentrant=True):
            assert holder(client) == token

    async with lock:
        token = holder(client)
        await in_thread(sync_code)
        assert holder(client) == token
    assert holder(client) == ""


async def test_what_sync_code_acquires_reentrantly_the_task_releases(
    kind: type[Lock], in_thread: Callable[..., Awaitable[Any]], client: redis.Redis
) -> None:
    lock = kind(NAME, reentrant=True)
    await lock.aacquire()
    assert await in_thread(lock.acquire)
    await lock.arelease()
    assert holder(client) == lock.token
    await in_thread(lock.release)
    assert holder(client) == ""
    assert await refuses(lock)


@children
async def test_reentrance_does_not_reach_child_tasks(kind: type[Lock], child: Child, client: redis.Redis) -> None:
    lock = kind(NAME, reentrant=True)

    async def take() -> bool:
        return await lock.aacquire(blocking_timeout=0.01) or await kind(NAME, reentrant=True).aacquire(blocking=False)

    async with lock:
        assert await child(take) is False
        assert holder(client) == lock.token
    assert holder(client) == ""
