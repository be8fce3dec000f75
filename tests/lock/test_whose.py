"""Whose an acquisition is: parents and their children, siblings, sync code of tasks and coroutines of sync code.

A child is a task, or a thread that inherits its starter's context. It sees what was held when it was started.
"""

import asyncio
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_redislock import Lock, LockError, LockLost, LockNotAcquired, LockNotOwned, aforce_release, force_release
from tests.helpers.actors import GENEROUS, RUNS
from tests.helpers.state import NAME

from .kin import FACTORIES, Kin, both, in_a_task, in_a_thread

objects = pytest.mark.parametrize("same", [True, False], ids=["same object", "another object"])
kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
ITSELF = r"(?i)this (very )?(thread|task)"
firsts = pytest.mark.parametrize("first", ["task", "one thread", "any thread"])
seconds = pytest.mark.parametrize("second", ["task", *RUNS])


class Inside:
    """Enters a lock, stays until it may leave, and keeps what it saw: the fence and the token."""

    def __init__(self, kin: Kin, lock: Lock, **options: Any) -> None:
        self.kin, self.lock, self.options = kin, lock, options or {"blocking": False}
        self.seen: tuple[int, str | None] = 0, None
        self.may_begin, self.tried, self.may_leave = threading.Event(), threading.Event(), threading.Event()

    async def later(self) -> None:
        await self.kin.until(self.may_begin.is_set)
        await self()

    async def __call__(self) -> None:
        if await self.kin(self.lock, "acquire", **self.options):
            self.seen = self.lock.fence, self.lock.token
        self.tried.set()
        if self.seen[0]:
            await self.kin.until(self.may_leave.is_set)
            await self.kin(self.lock, "release")


@objects
@both
async def test_a_child_that_wants_its_parents_lock_waits_and_gets_it_after_the_parent(kin: Kin, same: bool) -> None:
    mine = Lock(NAME)
    inside = Inside(kin, mine if same else Lock(NAME), blocking_timeout=None)
    await kin(mine, "acquire")
    fence = mine.fence
    child = kin.child(inside)
    await kin.queued()
    assert await kin(mine, "owned")
    await kin(mine, "release")
    await kin.until(inside.tried.is_set)
    assert inside.seen[0] > fence
    assert not await kin(mine, "owned")
    with pytest.raises(LockNotOwned):
        await kin(mine, "release")
    inside.may_leave.set()
    await kin.end(child)
    assert await kin.info() is None


@both
async def test_children_of_a_reentrant_lock_are_under_it_and_it_is_free_when_the_last_has_left(kin: Kin) -> None:
    mine = Lock(NAME, reentrant=True)
    await kin(mine, "acquire")
    here = mine.fence, mine.token
    first, second, below = Inside(kin, mine), Inside(kin, mine), Inside(kin, Lock(NAME, reentrant=True))

    async def with_a_child_of_its_own() -> None:
        child = kin.child(below)
        await second()
        await kin.end(child)

    children = [kin.child(first), kin.child(with_a_child_of_its_own)]
    for inside in (first, second, below):
        await kin.until(inside.tried.is_set)
        assert inside.seen == here
    first.may_leave.set()
    await kin.end(children[0])
    assert await kin(mine, "owned")
    await kin(mine, "release")
    with pytest.raises(LockNotOwned):
        await kin(mine, "release")
    second.may_leave.set()
    assert (await kin.info()).fence == here[0]  # type: ignore[union-attr]
    below.may_leave.set()
    await kin.end(children[1])
    assert await kin.info() is None


@both
async def test_children_that_enter_while_their_parent_and_siblings_leave_lose_nothing(kin: Kin) -> None:
    """Each is under the parent's lock or waits for its own; which of both is decided in that moment."""
    for _ in range(30):
        parent, may_enter = Lock(NAME, reentrant=True, ttl=600), threading.Event()

        async def enters(may_enter: threading.Event = may_enter) -> None:
            lock = Lock(NAME, reentrant=True, ttl=600, blocking_timeout=GENEROUS)
            await kin.until(may_enter.is_set)
            assert await kin(lock, "acquire")
            lock.check()
            await kin(lock, "release")

        await kin(parent, "acquire")
        children = [kin.child(enters) for _ in range(4)]
        may_enter.set()
        await kin(parent, "release")
        for child in children:
            await kin.end(child)
        assert not await kin(parent, "locked")


@objects
@both
async def test_a_child_that_was_started_before_its_parent_acquired_the_lock_waits_though_it_is_reentrant(
    kin: Kin, same: bool
) -> None:
    mine = Lock(NAME, reentrant=True)
    inside = Inside(kin, mine if same else Lock(NAME, reentrant=True), blocking_timeout=GENEROUS)
    child = kin.child(inside.later)
    await kin(mine, "acquire")
    fence = mine.fence
    inside.may_begin.set()
    await kin.queued()
    inside.may_leave.set()
    await kin(mine, "release")
    await kin.end(child)
    assert inside.seen[0] > fence
    assert await kin.info() is None


@pytest.mark.parametrize("by_force", [False, True], ids=["released", "force-released"])
@both
async def test_a_child_is_not_under_a_lock_that_its_parent_no_longer_holds(kin: Kin, by_force: bool) -> None:
    mine, inside = Lock(NAME, reentrant=True), Inside(kin, Lock(NAME, reentrant=True))
    await kin(mine, "acquire")
    fence = mine.fence
    child = kin.child(inside.later)
    if by_force:
        await aforce_release(NAME) if kin.tasks else force_release(NAME)
    else:
        await kin(mine, "release")
    inside.may_begin.set()
    inside.may_leave.set()
    await kin.end(child)
    assert inside.seen[0] > fence
    if by_force:
        with pytest.raises(LockLost):
            await kin(mine, "release")
    assert await kin.info() is None


@both
async def test_what_was_acquired_in_another_context_of_the_same_thread_or_task_is_its_own(kin: Kin) -> None:
    """The coroutine is made in one, and awaited outside."""
    lock = Lock(NAME)
    for context in (Context(), copy_context()):
        assert (await context.run(lock.aacquire)) if kin.tasks else context.run(lock.acquire)
        assert await kin(lock, "owned")
        await kin(lock, "release")
        assert await kin.info() is None


@objects
@both
async def test_who_would_wait_for_its_own_lock_is_refused_and_told_whose_it_is(kin: Kin, same: bool) -> None:
    mine = Lock(NAME)
    again = mine if same else Lock(NAME)
    await kin(mine, "acquire")
    for method in ("acquire", "enter"):
        with pytest.raises(LockError, match=ITSELF) as without_end:
            await kin(again, method)
        assert (type(without_end.value), without_end.value.name) == (LockError, NAME)
        assert re.search(r"wait for itself.*pass a .* or \(to a Lock\) reentrant=True\.", str(without_end.value))
    for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
        assert await kin(again, "acquire", **options) is False
    for bound in (0, 0.05):
        with pytest.raises(LockNotAcquired, match=ITSELF):
            await kin(Lock(NAME, blocking_timeout=bound), "enter")
    assert await kin(mine, "owned")
    await kin.queued(0)
    await kin(mine, "release")
    assert await kin.info() is None


async def call(how: str, lock: Lock, method: str, *args: Any, **options: Any) -> Any:
    """A method of the lock in the task itself, or in sync code that it runs."""
    if how == "task":
        return await getattr(lock, f"a{method}")(*args, **options)
    return await RUNS[how](getattr(lock, method), *args, **options)


@firsts
@seconds
@kinds
@in_a_task
async def test_siblings_exclude_each_other_in_sync_code_that_they_run_as_well(
    kin: Kin, first: str, second: str, reentrant: bool
) -> None:
    lock, has, leave = Lock(NAME, reentrant=reentrant), asyncio.Event(), asyncio.Event()

    async def have() -> None:
        assert await call(first, lock, "acquire")
        has.set()
        await leave.wait()
        await call(first, lock, "release")

    async def want() -> None:
        await has.wait()
        assert not await call(second, lock, "acquire", blocking=False)
        with pytest.raises(LockNotOwned):
            await call(second, lock, "release")
        leave.set()

    await asyncio.wait_for(asyncio.gather(have(), want()), GENEROUS)
    assert not await lock.alocked()


@firsts
@seconds
@in_a_task
async def test_a_task_and_its_sync_code_hold_together_what_either_of_them_acquires(
    kin: Kin, first: str, second: str
) -> None:
    lock = Lock(NAME, reentrant=True)

    def again() -> int:
        with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return lock.fence

    assert await call(first, lock, "acquire")
    assert await call(second, lock, "owned")
    assert await call(second, lock, "extend", 1)
    if second == "task":
        async with Lock(NAME, reentrant=True, blocking_timeout=0) as once_more:
            assert once_more.fence == lock.fence
    else:
        assert await RUNS[second](again) == lock.fence
    assert lock.token is not None
    await call(second, lock, "release")
    with pytest.raises(LockNotOwned):
        await call(second, lock, "release")
    assert not await lock.alocked()


@in_a_task
async def test_what_a_call_of_to_thread_has_acquired_its_task_does_not_hold(kin: Kin) -> None:
    lock = Lock(NAME)
    assert await call("to_thread", lock, "acquire")
    with pytest.raises(LockNotOwned):
        await lock.arelease()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("factory", FACTORIES)
@both
async def test_sync_code_and_coroutines_that_call_each_other_are_under_the_lock_of_the_first(
    kin: Kin, run: str, factory: str
) -> None:
    def dive(levels: int) -> list[int]:
        with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return [lock.fence, *(async_to_sync(adive)(levels - 1) if levels else [])]

    async def adive(levels: int) -> list[int]:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])
        async with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return [lock.fence, *(await RUNS[run](dive, levels - 1) if levels else [])]

    fences = await adive(4) if kin.tasks else dive(4)
    assert fences == [fences[0]] * 5
    assert await kin.info() is None


@pytest.mark.parametrize("run", RUNS)
@both
async def test_a_coroutine_of_sync_code_may_use_the_lock_of_whoever_runs_that(kin: Kin, run: str) -> None:
    lock = Lock(NAME)

    async def use() -> bool:
        lock.check()
        with pytest.raises(LockError, match=ITSELF):
            await Lock(NAME).aacquire()
        return await lock.aextend(1)

    await kin(lock, "acquire")
    for factory in FACTORIES.values() if kin.tasks else ():
        asyncio.get_running_loop().set_task_factory(factory)
        assert await RUNS[run](async_to_sync(use))
    assert kin.tasks or async_to_sync(use)()
    await kin(lock, "release")


@pytest.mark.parametrize("release", ["sync code", "coroutine"])
@in_a_thread
async def test_what_a_coroutine_of_sync_code_has_acquired_its_caller_releases(kin: Kin, release: str) -> None:
    lock = Lock(NAME)
    assert async_to_sync(lock.aacquire)()
    assert lock.owned()
    assert async_to_sync(lock.aextend)(1)
    with pytest.raises(LockError, match=ITSELF):
        lock.acquire()
    async_to_sync(lock.arelease)() if release == "coroutine" else lock.release()
    assert not lock.locked()


@in_a_thread
async def test_in_a_loop_of_another_thread_a_call_is_for_the_thread_that_hands_it_over_and_a_coroutine_is_a_child(
    kin: Kin,
) -> None:
    def elsewhere(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    async def child() -> bool:
        assert not await lock.aowned()
        with pytest.raises(LockNotOwned):
            await lock.arelease()
        async with lock:
            return await lock.aowned()

    lock, loop = Lock(NAME), asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    assert elsewhere(lock.aacquire()).result(GENEROUS)
    assert lock.owned()
    waits = elsewhere(child())
    await kin.queued()
    elsewhere(lock.arelease()).result(GENEROUS)
    assert waits.result(GENEROUS)
    assert not lock.locked()
    elsewhere(loop.shutdown_asyncgens()).result(GENEROUS)
    loop.call_soon_threadsafe(loop.stop)
    running.join(GENEROUS)
    loop.close()


@kinds
@in_a_thread
async def test_a_greenlet_is_on_its_own(kin: Kin, reentrant: bool) -> None:
    greenlets, tried = pytest.importorskip("greenlet"), list[bool]()

    def attempt() -> None:
        lock = Lock(NAME, reentrant=reentrant)
        tried.append(lock.acquire(blocking=False))
        with pytest.raises(LockNotOwned):
            lock.release()
        with Lock("order:43") as own:
            tried.append(own.owned())

    with Lock(NAME, reentrant=reentrant):
        greenlets.greenlet(attempt).switch()
    assert tried == [False, True]
