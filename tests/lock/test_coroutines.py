"""What coroutines meet: sync calls are refused, an event loop may end, and whose the lock is that a call acquires."""

import asyncio
import contextlib
import gc
import re
import sys
import threading
import unittest
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

import django_redislock
from django_redislock import Lock, LockError, LockNotOwned, LockPool, LockSet, LockStatus, force_release, get_lock
from tests.helpers.actors import GENEROUS, Other, auntil, until
from tests.helpers.state import NAME, holder, queued
from tests.inside import hang_up_idle, hears, listen, watch_connections

from .kin import FACTORIES, Kin

TTL = 4.5
Around = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]


INSTEAD = {"__enter__": "Use async with", "__exit__": "Use async with", "__iter__": "Use async for"}
METHODS = [("acquire",), ("release",), ("owned",), ("extend", 1), ("__enter__",), ("__exit__", None, None, None)]
READS = ("keys", "info", "items_locked_status", "values_lock_status", "health_check", "__len__", "__iter__")
CALLS: list[tuple[Any, ...]] = [
    *((thing, *call) for thing in ("lock", "set") for call in METHODS),
    *(("pool", method) for method in (*READS, "acquire", "clear")),
    *(("pool", method, ["x"]) for method in ("extend", "shrink", "assign")),
    *[("pool", "__contains__", "x"), ("", "list_locks"), ("", "get_lock", NAME), ("", "force_release", NAME)],
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(map(str, call[:2])))
async def test_a_sync_call_in_a_coroutine_names_the_async_one_and_does_nothing(call: tuple[Any, ...]) -> None:
    lock, locks = Lock(NAME), LockSet("a", "b")
    things: dict[str, Any] = {"lock": lock, "set": locks, "pool": LockPool("seats"), "": django_redislock}
    thing, method, *args = call
    for held in (lock, locks):
        await held.aacquire()
    instead = INSTEAD.get(method, f"Await a{method.strip('_')}()")
    with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"{instead} instead")):
        getattr(things[thing], method)(*args)
    assert await lock.aowned()
    assert await locks.aowned()


async def test_in_a_notebook_whose_cells_run_in_an_event_loop_sync_calls_work(monkeypatch: pytest.MonkeyPatch) -> None:
    await Lock(NAME).aacquire()
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    threading.Timer(0.2, lambda: force_release(NAME)).start()
    with Lock(NAME, blocking_timeout=GENEROUS) as second:  # waits
        assert second.owned()
        assert [info.name for info in django_redislock.list_locks()] == [NAME]


@pytest.mark.parametrize("on_lost", [None, "cancel"])
async def test_the_lock_of_a_task_that_was_collected_inside_its_block_is_not_renewed(
    on_lost: Any, client: redis.Redis
) -> None:
    held = asyncio.Event()

    async def hold() -> None:
        async with Lock(NAME, ttl=0.6, on_lost=on_lost):
            held.set()
            await asyncio.get_running_loop().create_future()

    asyncio.create_task(hold())  # noqa: RUF006
    await asyncio.wait_for(held.wait(), GENEROUS)
    gc.collect()
    await auntil(lambda: holder(client) == "")


def test_waiters_whose_event_loop_was_closed_delay_nobody(client: redis.Redis, other: Callable[[], Other]) -> None:
    async def wait() -> None:
        await Lock(NAME, ttl=600).aacquire()

    listen()
    until(hears)  # else they look again while their connections are closed
    you, held, loop = other(), Lock(NAME, ttl=600), asyncio.new_event_loop()
    you(held.acquire)
    loop.set_exception_handler(lambda *args: None)  # it reports abandoned tasks, as it should
    tasks = [loop.create_task(wait()) for _ in range(3)]
    loop.run_until_complete(auntil(lambda: queued(client) == 3 and not watch_connections()()[0]))
    hang_up_idle(loop)
    loop.close()
    you(held.release)
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)  # the lease of a single handoff is 200 s
    assert not any(task.done() for task in tasks)


async def gathered(call: Coroutine[Any, Any, Any]) -> Any:
    return (await asyncio.gather(call))[0]


async def in_a_helper(call: Coroutine[Any, Any, Any]) -> Any:
    """As a library does that adds something around what it is given."""

    async def helper() -> Any:
        return await call

    return await asyncio.create_task(helper())


AROUND: dict[str, Around] = {
    "await": lambda call: call,
    "wait_for": lambda call: asyncio.wait_for(call, GENEROUS),
    "gather": gathered,
    "create_task": asyncio.create_task,
    "shield": asyncio.shield,
    "helper": in_a_helper,
}

if sys.version_info >= (3, 11):

    async def grouped(call: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call)
        return task.result()

    AROUND["TaskGroup"] = grouped


def live(factory: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])
        await asyncio.create_task(body())

    Kin(tasks=True).live(begin())


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("factory", FACTORIES)
def test_what_a_call_acquires_belongs_to_the_task_that_has_made_the_call(around: str, factory: str) -> None:
    run = AROUND[around]

    async def task() -> None:
        lock, pool = Lock(NAME, ttl=TTL, reentrant=True), LockPool("seats")
        assert await run(lock.aacquire())
        assert lock.token is not None
        if around in ("create_task", "gather"):
            assert await Kin(tasks=True).renewed(TTL)
        lock.check()
        async with Lock(NAME, reentrant=True, blocking_timeout=0) as again:
            assert again.fence == lock.fence
        assert await lock.aowned()
        for call in (lock.aowned(), lock.aextend(1), lock.areacquire()):
            assert await run(call) is True
        await run(lock.arelease())
        assert not await lock.alocked()
        assert await lock.aacquire()
        token = await run(lock.adetach())
        assert lock.token is None
        await Lock(NAME, token=token).arelease()
        await pool.aextend(["a"])
        member = await run(pool.aacquire())
        assert await member.aowned()
        assert await run(pool.aitems_locked_status()) == [("a", LockStatus.LOCKED)]
        assert await run(pool.avalues_lock_status()) == [LockStatus.LOCKED]
        await run(member.arelease())
        assert not await member.alocked()

    live(factory, task)


@pytest.mark.parametrize("factory", FACTORIES)
def test_calls_that_wait_at_once_in_tasks_of_their_own_get_their_caller_the_locks(factory: str) -> None:
    async def task() -> None:
        async def have() -> None:
            async with Lock(NAME):
                has.set()
                await leave.wait()

        has, leave = asyncio.Event(), asyncio.Event()
        locks = [Lock(NAME), *(Lock(f"{NAME}:{number}") for number in range(20))]
        having = asyncio.create_task(have())
        await has.wait()
        calls = [asyncio.create_task(lock.aacquire(blocking_timeout=GENEROUS)) for lock in locks]
        await Kin(tasks=True).queued()
        assert locks[0].token is None
        leave.set()
        assert (await asyncio.gather(having, *calls))[1:] == [True] * 21
        assert all(await asyncio.gather(*(lock.aowned() for lock in locks)))
        await asyncio.gather(*(lock.arelease() for lock in locks))
        assert not any([await lock.alocked() for lock in locks])

    live(factory, task)


@pytest.mark.parametrize("around", [*sorted(AROUND.keys() - {"TaskGroup"}), "made by a task that has ended"])
def test_a_call_that_would_wait_for_its_callers_lock_is_refused(around: str) -> None:
    async def make() -> Coroutine[Any, Any, bool]:
        return Lock(NAME).aacquire()

    async def task() -> None:
        async with Lock(NAME):
            helper = asyncio.create_task(make())
            theirs, mine = await helper, await make()
            run = AROUND.get(around)
            with pytest.raises(LockError, match="would wait for itself without end"):
                await (theirs if run is None else run(mine))
            mine.close()
            theirs.close()

    live("plain", task)


def test_a_call_that_was_cancelled_in_a_task_of_its_own_leaves_its_caller_nothing() -> None:
    async def task() -> None:
        async with Lock(NAME):
            lock, kin = Lock(NAME), Kin(tasks=True)
            # bounded, since the holder's own call would be refused without an end
            call = asyncio.create_task(lock.aacquire(blocking_timeout=GENEROUS))
            await kin.queued()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await kin.queued(0)
        with pytest.raises(LockNotOwned):
            await lock.arelease()
        assert lock.token is None
        assert not await lock.alocked()

    live("plain", task)


# before Python 3.11, setUp() runs in another context than what is asynchronous
@pytest.mark.parametrize("how", ["methods", "a stack", *(["sync code"] if sys.version_info >= (3, 11) else [])])
def test_a_lock_is_held_and_renewed_from_the_set_up_of_a_test_case_to_its_tear_down(how: str) -> None:
    """Each of which is a task of its own, in one context. Sync code is in the thread of the event loop, which stands
    still then."""
    lock = Lock(NAME, ttl=TTL)

    class Case(unittest.IsolatedAsyncioTestCase):
        def setUp(self) -> None:
            if how == "sync code":
                assert lock.acquire()
                self.addCleanup(lock.release)

        async def asyncSetUp(self) -> None:
            if sys.version_info < (3, 11):  # which leaves them to the garbage collection, and with them our connections
                self.addAsyncCleanup(asyncio.get_running_loop().shutdown_asyncgens)
            if how == "methods":
                assert await lock.aacquire()
            elif how == "a stack":
                stack = contextlib.AsyncExitStack()
                self.addAsyncCleanup(stack.aclose)
                await stack.enter_async_context(lock)

        async def asyncTearDown(self) -> None:
            if how == "methods":
                await lock.arelease()

        async def test(self) -> None:
            assert await lock.aowned()
            assert await lock.aextend(0.1)
            assert await Kin(tasks=True).renewed(TTL)
            lock.check()

    result = unittest.TestResult()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Context().run(lambda: Case("test").run(result))
        left = get_lock(NAME)
        gc.collect()  # of what was never awaited
    assert [traceback for _, traceback in result.errors + result.failures] == []
    assert left is None
    assert [str(warning.message) for warning in warned] == []
