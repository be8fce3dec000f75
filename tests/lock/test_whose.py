"""Whose an acquisition is: parents and their children, siblings, sync code of tasks and coroutines of sync code.

A child is a task, or a thread that inherits its starter's context. It sees what was held when it was started. See also
``test_whose_calls.py`` and ``test_whose_object.py``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_redislock import Lock, LockError, LockLost, LockNotAcquired, LockNotOwned, force_release
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS
from tests.helpers.state import NAME

from .factories import FACTORIES
from .kin import BOTH, RUNS, Kin, both, owner_rule

objects = pytest.mark.parametrize("same", [True, False], ids=["same object", "another object"])
kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])


# -- parents and children ----------------------------------------------------------------------------------------------


@objects
@pytest.mark.parametrize("bound", [None, GENEROUS], ids=["without end", "bounded"])
@both()
async def test_a_child_that_wants_its_parents_lock_waits_and_gets_it_after_the_parent(
    kin: Kin, same: bool, bound: float | None
) -> None:
    mine = Lock(NAME)
    theirs = mine if same else Lock(NAME)

    async def want() -> int | None:
        if not await kin(theirs, "acquire", blocking_timeout=bound):
            return None
        fence = theirs.fence
        await kin(theirs, "release")
        return fence

    await kin(mine, "acquire")
    fence = mine.fence
    child = kin.child(want)
    await kin.queued()
    assert await kin(mine, "owned")
    await kin(mine, "release")
    assert (await child.result() or 0) > fence
    assert not await kin(mine, "locked")


class Inside:
    """Enters a lock, stays until it may leave, and keeps what it saw: the fence and the token, or None."""

    def __init__(self, kin: Kin, lock: Lock, **options: Any) -> None:
        self.kin, self.lock, self.options = kin, lock, options or {"blocking": False}
        self.seen: tuple[int, str | None] | None = None
        self.tried, self.may_leave = threading.Event(), threading.Event()

    async def __call__(self) -> None:
        got = await self.kin(self.lock, "acquire", **self.options)
        self.seen = (self.lock.fence, self.lock.token) if got else None
        self.tried.set()
        if got:
            await self.kin.until(self.may_leave.is_set)
            await self.kin(self.lock, "release")


@objects
@pytest.mark.parametrize("last", ["child", "parent"])
@both(fails=BOTH)
async def test_a_child_that_was_started_under_a_reentrant_lock_is_under_it_and_it_is_free_when_the_last_has_left(
    kin: Kin, same: bool, last: str
) -> None:
    mine = Lock(NAME, reentrant=True)
    await kin(mine, "acquire")
    here = mine.fence, mine.token
    inside = Inside(kin, mine if same else Lock(NAME, reentrant=True))
    child = kin.child(inside)
    await kin.until(inside.tried.is_set)
    assert inside.seen == here
    if last == "child":
        await kin(mine, "release")
        with pytest.raises(LockNotOwned):
            await kin(mine, "release")
    else:
        inside.may_leave.set()
        await child.result()
        assert await kin(mine, "owned")
    assert (info := await kin.info()) is not None
    assert info.fence == here[0]
    if last == "child":
        inside.may_leave.set()
        await child.result()
    else:
        await kin(mine, "release")
    assert await kin.info() is None


@both(fails=BOTH)
async def test_a_child_in_a_with_block_is_under_its_parents_lock(kin: Kin) -> None:
    async def block() -> int:
        lock = Lock(NAME, reentrant=True, blocking_timeout=0)
        if kin.tasks:
            async with lock:
                return lock.fence
        with lock:
            return lock.fence

    mine = Lock(NAME, reentrant=True)
    await kin(mine, "acquire")
    assert await kin.child(block).result() == mine.fence
    assert await kin(mine, "owned")
    await kin(mine, "release")
    assert await kin.info() is None


@both(fails=BOTH)
async def test_children_and_their_children_do_not_exclude_each_other_under_their_parents_lock(kin: Kin) -> None:
    mine = Lock(NAME, reentrant=True)
    await kin(mine, "acquire")
    fence = mine.fence
    first, second, deeper = (Inside(kin, Lock(NAME, reentrant=True)) for _ in range(3))

    async def with_a_child_of_its_own() -> None:
        below = kin.child(deeper)
        await second()
        await below.result()

    children = [kin.child(first), kin.child(with_a_child_of_its_own)]
    for inside in (first, second, deeper):
        await kin.until(inside.tried.is_set)
    assert [inside.seen and inside.seen[0] for inside in (first, second, deeper)] == [fence] * 3
    await kin(mine, "release")
    for inside in (second, first, deeper):
        assert await kin.info() is not None
        inside.may_leave.set()
    for child in children:
        await child.result()
    assert await kin.info() is None


@objects
@both()
async def test_a_child_that_was_started_before_its_parent_acquired_the_lock_waits_though_it_is_reentrant(
    kin: Kin, same: bool
) -> None:
    mine, begin = Lock(NAME, reentrant=True), threading.Event()
    inside = Inside(kin, mine if same else Lock(NAME, reentrant=True), blocking_timeout=GENEROUS)

    async def later() -> bool:
        await kin.until(begin.is_set)
        got: bool = await kin(inside.lock, "acquire", blocking=False)
        await inside()
        return got

    child = kin.child(later)
    await kin(mine, "acquire")
    fence = mine.fence
    begin.set()
    await kin.queued()
    inside.may_leave.set()
    await kin(mine, "release")
    assert await child.result() is False
    assert inside.seen is not None
    assert inside.seen[0] > fence
    assert await kin.info() is None


@pytest.mark.parametrize("how", ["released", "released, and held by others", "force-released, and held by others"])
@both()
async def test_a_child_is_not_under_a_lock_that_its_parent_no_longer_holds(kin: Kin, how: str) -> None:
    mine, inside, begin = Lock(NAME, reentrant=True), Inside(kin, Lock(NAME, reentrant=True)), threading.Event()

    async def later() -> None:
        await kin.until(begin.is_set)
        await inside()

    await kin(mine, "acquire")
    fence = mine.fence
    child = kin.child(later)
    inside.may_leave.set()

    def go_on() -> None:
        with hold(NAME):
            begin.set()
            assert inside.tried.wait(GENEROUS)

    if how.startswith("force"):
        await asyncio.to_thread(force_release, NAME) if kin.tasks else force_release(NAME)
    else:
        await kin(mine, "release")
    if how.endswith("others"):
        await asyncio.to_thread(go_on) if kin.tasks else go_on()
    else:
        begin.set()
    await child.result()
    if how.endswith("others"):
        assert inside.seen is None
    else:
        assert inside.seen is not None
        assert inside.seen[0] > fence
    if how.startswith("force"):
        with pytest.raises(LockLost):
            await kin(mine, "release")
    assert await kin.info() is None


@pytest.mark.parametrize(("who", "reentrant"), [("child", False), ("stranger", False), ("stranger", True)])
@both()
async def test_release_after_an_acquire_of_ones_own_that_failed_leaves_the_holder_its_lock(
    kin: Kin, who: str, reentrant: bool
) -> None:
    """``try: lock.acquire(blocking=False) finally: lock.release()``, as many write it. Not for a reentrant child, which
    is under the lock."""
    shared = Lock(NAME, reentrant=reentrant)

    async def careless() -> list[str]:
        got = await kin(shared, "acquire", blocking=False)
        refused = [str(got)]
        for method, arguments in (("release", ()), ("extend", (1,)), ("reacquire", ()), ("detach", ())):
            try:
                await kin(shared, method, *arguments)
            except LockNotOwned as error:
                refused.append(type(error).__name__)
        return refused

    await kin(shared, "acquire")
    here = shared.fence, shared.token
    for other in (getattr(kin, who)(careless) for _ in range(2)):
        assert await other.result() == ["False", *["LockNotOwned"] * 4]
    assert await kin(shared, "owned")
    assert (shared.fence, shared.token) == here
    assert await kin(shared, "extend", 1)
    await kin(shared, "release")
    assert await kin.info() is None


@both()
async def test_what_was_acquired_in_another_context_of_the_same_thread_or_task_is_its_own(kin: Kin) -> None:
    """Contexts are entered by frameworks too; the coroutine is made in one, and awaited outside."""
    lock = Lock(NAME)
    for context in (Context(), copy_context()):
        assert (await context.run(lock.aacquire)) if kin.tasks else context.run(lock.acquire)
        assert await kin(lock, "owned")
        await kin(lock, "release")
        assert await kin.info() is None


# -- waiting for oneself -----------------------------------------------------------------------------------------------


@objects
@both()
async def test_who_would_wait_without_end_for_its_own_lock_gets_an_error_at_once(kin: Kin, same: bool) -> None:
    mine = Lock(NAME)
    await kin(mine, "acquire")
    with pytest.raises(LockError, match=r"(?i)this (very )?(thread|task)") as caught:
        await kin(mine if same else Lock(NAME), "acquire")
    assert type(caught.value) is LockError
    assert (info := await kin.info()) is not None
    assert info.waiters == 0
    await kin(mine, "release")


@objects
@both()
async def test_who_waits_for_its_own_lock_with_an_end_does_not_acquire_it(kin: Kin, same: bool) -> None:
    mine = Lock(NAME)
    await kin(mine, "acquire")
    again = mine if same else Lock(NAME)
    assert await kin(again, "acquire", blocking=False) is False
    assert await kin(again, "acquire", blocking_timeout=0.05) is False
    assert await kin(mine, "owned")
    await kin(mine, "release")
    assert await kin.info() is None


@pytest.mark.parametrize("bound", [0, 0.05], ids=["at once", "in time"])
@both()
async def test_the_error_of_a_block_says_that_its_own_thread_or_task_holds_the_lock(kin: Kin, bound: float) -> None:
    async def block(lock: Lock) -> None:
        if kin.tasks:
            async with lock:
                raise AssertionError("not reached")
        with lock:
            raise AssertionError("not reached")

    mine = Lock(NAME)
    await kin(mine, "acquire")
    with pytest.raises(LockNotAcquired) as caught:
        await block(Lock(NAME, blocking_timeout=bound))
    await kin(mine, "release")
    assert any(f"this {who}" in str(caught.value) for who in ("thread", "task", "very thread", "very task"))


# -- sync code of tasks ------------------------------------------------------------------------------------------------


async def call(how: str, lock: Lock, method: str, *args: Any, **options: Any) -> Any:
    """A method of the lock in the task itself, or in sync code that it runs."""
    if how == "task":
        return await getattr(lock, f"a{method}")(*args, **options)
    return await RUNS[how](getattr(lock, method), *args, **options)


@asynccontextmanager
async def held(how: str, lock: Lock) -> AsyncIterator[None]:
    """Hold the lock in this task, or in sync code that it runs: for ``to_thread``, all the time in one call."""
    if how != "to_thread":
        await call(how, lock, "acquire")
        yield
        await call(how, lock, "release")
        return
    inside, leave = threading.Event(), threading.Event()

    def section() -> None:
        with lock:
            inside.set()
            assert leave.wait(GENEROUS)

    work = asyncio.ensure_future(asyncio.to_thread(section))
    try:
        while not inside.is_set() and not work.done():
            await asyncio.sleep(0.002)
        yield
    finally:
        leave.set()
        await work


@pytest.mark.parametrize("second", ["task", *RUNS])
@pytest.mark.parametrize("first", ["task", *RUNS])
@kinds
@objects
def test_siblings_exclude_each_other_in_sync_code_that_they_run_as_well(
    first: str, second: str, reentrant: bool, same: bool
) -> None:
    """And the sibling whose acquire failed cannot release, in whichever thread both of them run."""
    mine = Lock(NAME, reentrant=reentrant)
    theirs = mine if same else Lock(NAME, reentrant=reentrant)
    kin = Kin(tasks=True)

    def section() -> None:
        with Lock(NAME, reentrant=reentrant, blocking_timeout=GENEROUS) as lock:
            assert lock.owned()

    async def wait() -> None:
        if second != "task":
            await RUNS[second](section)
            return
        async with Lock(NAME, reentrant=reentrant, blocking_timeout=GENEROUS) as lock:
            assert await lock.aowned()

    async def siblings() -> None:
        has, leave = asyncio.Event(), asyncio.Event()

        async def have() -> None:
            async with held(first, mine):
                has.set()
                await leave.wait()

        async def want() -> None:
            await has.wait()
            assert await call(second, theirs, "acquire", blocking=False) is False
            with pytest.raises(LockNotOwned):
                await call(second, theirs, "release")
            if not first == second == "one thread":  # to wait there would keep the holder from its release
                waiting = asyncio.ensure_future(wait())
                await kin.queued()
                leave.set()
                await waiting

        having, wanting = asyncio.create_task(have()), asyncio.create_task(want())
        try:
            await wanting
        finally:
            leave.set()
            await asyncio.wait([having])
        having.result()
        assert await kin.info() is None

    kin.live(siblings())


@kinds
@both()
async def test_siblings_exclude_each_other(kin: Kin, reentrant: bool) -> None:
    shared = Lock(NAME, reentrant=reentrant)
    first, second = Inside(kin, shared), Inside(kin, shared)
    having = kin.child(first)
    await kin.until(first.tried.is_set)
    await kin.child(second).result()
    assert first.seen is not None
    assert second.seen is None
    third = Inside(kin, Lock(NAME, reentrant=reentrant), blocking_timeout=GENEROUS)
    third.may_leave.set()
    waiting = kin.child(third)
    await kin.queued()
    first.may_leave.set()
    await having.result()
    await waiting.result()
    assert third.seen is not None
    assert third.seen[0] > first.seen[0]


@pytest.mark.parametrize("run", RUNS)
def test_sync_code_of_a_task_is_under_its_lock(run: str) -> None:
    def section() -> int:
        with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return lock.fence

    async def task() -> None:
        async with Lock(NAME, reentrant=True) as lock:
            assert await RUNS[run](section) == lock.fence
            assert await lock.aowned()
        assert not await lock.alocked()

    Kin(tasks=True).live(task())


@pytest.mark.parametrize(
    ("run", "factory"),
    [
        pytest.param(run, factory, marks=owner_rule if "wrapping" in factory and run != "to_thread" else ())
        for run in RUNS
        for factory in FACTORIES
    ],
)
@pytest.mark.parametrize("top", ["coroutine", "sync code"])
def test_sync_code_and_coroutines_that_call_each_other_are_under_the_lock_of_the_first(
    run: str, factory: str, top: str
) -> None:
    def dive(levels: int) -> list[int]:
        with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return [lock.fence, *(async_to_sync(adive)(levels - 1) if levels else [])]

    async def adive(levels: int) -> list[int]:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])
        async with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return [lock.fence, *(await RUNS[run](dive, levels - 1) if levels else [])]

    kin, fences = Kin(tasks=top == "coroutine"), list[int]()

    async def begin() -> None:
        fences.extend((await adive(4)) if kin.tasks else dive(4))
        assert await kin.info() is None

    kin.live(begin())
    assert len(fences) == 5
    assert len(set(fences)) == 1


@pytest.mark.parametrize("release", ["task", *RUNS])
@pytest.mark.parametrize("acquire", ["task", "one thread", "any thread"])
def test_what_one_call_of_sync_to_async_has_acquired_another_or_the_task_itself_releases(
    acquire: str, release: str
) -> None:
    async def task() -> None:
        lock = Lock(NAME)
        assert await call(acquire, lock, "acquire")
        assert await call(release, lock, "owned")
        assert await call(release, lock, "extend", 1)
        assert lock.token is not None
        await call(release, lock, "release")
        with pytest.raises(LockNotOwned):
            await call(release, lock, "release")
        assert not await lock.alocked()

    Kin(tasks=True).live(task())


@pytest.mark.parametrize("second", ["task", *RUNS])
@pytest.mark.parametrize("first", ["task", "one thread", "any thread"])
def test_a_task_and_its_sync_code_enter_again_what_either_of_them_holds(first: str, second: str) -> None:
    def section() -> int:
        with Lock(NAME, reentrant=True, blocking_timeout=0) as lock:
            return lock.fence

    async def again() -> int:
        if second != "task":
            return int(await RUNS[second](section))
        async with (lock := Lock(NAME, reentrant=True, blocking_timeout=0)):
            return lock.fence

    async def task() -> None:
        lock = Lock(NAME, reentrant=True)
        async with held(first, lock):
            assert await again() == lock.fence
            assert await lock.aowned()
        assert not await lock.alocked()

    Kin(tasks=True).live(task())


@pytest.mark.parametrize("release", ["sync code", "coroutine"])
def test_what_a_coroutine_of_sync_code_has_acquired_its_caller_releases(release: str) -> None:
    lock = Lock(NAME)

    async def code() -> None:
        assert async_to_sync(lock.aacquire)()
        assert lock.owned()
        assert async_to_sync(lock.aextend)(1)
        with pytest.raises(LockError, match=r"(?i)this (very )?(thread|task)"):
            lock.acquire()
        async_to_sync(lock.arelease)() if release == "coroutine" else lock.release()
        assert not lock.locked()

    Kin(tasks=False).live(code())


# -- greenlets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=owner_rule)], ids=["plain", "reentrant"])
def test_a_greenlet_is_on_its_own(reentrant: bool) -> None:
    greenlets = pytest.importorskip("greenlet")
    tried: list[bool] = []

    def attempt() -> None:
        lock = Lock(NAME, reentrant=reentrant)
        tried.append(lock.acquire(blocking=False))
        if tried[-1]:
            lock.release()
        with Lock("order:43") as own:
            tried.append(own.owned())

    async def code() -> None:
        with Lock(NAME, reentrant=reentrant):
            greenlets.greenlet(attempt).switch()

    Kin(tasks=False).live(code())
    assert tried == [False, True]


GREENLETS = """
shared = Lock(name, reentrant=True)

def careless():
    got = shared.acquire(blocking=False)
    try:
        shared.release()
    except LockNotOwned:
        return [got, "refused"]
    return [got, "released"]

def wait():
    with Lock(name, reentrant=True, blocking_timeout=60) as lock:
        return lock.fence

shared.acquire()
fence = shared.fence
say("careless", *gevent.spawn(careless).get(), shared.owned())
waiting = gevent.spawn(wait)
while get_lock(name).waiters == 0:
    gevent.sleep(0.002)
shared.release()
say("later", waiting.get() > fence)
"""


def test_greenlets_of_gevent_are_on_their_own(start: Callable[..., Any]) -> None:
    pytest.importorskip("gevent")
    worker = start("import gevent\n" + GREENLETS, first="from gevent import monkey\nmonkey.patch_all()\n", name=NAME)
    assert worker.expect("careless") == ["False", "refused", "True"]
    assert worker.expect("later") == ["True"]
