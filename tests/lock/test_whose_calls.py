"""Whose an acquisition is: that of whoever has *called* the method, whichever task runs the coroutine; and set-up, test
and tear-down, which are tasks of one context."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import unittest
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_redislock import Lock, LockError, LockNotOwned, LockPool, get_lock
from tests.helpers.actors import GENEROUS
from tests.helpers.state import NAME
from tests.project.programs import environment

from . import cases
from .factories import FACTORIES
from .kin import Kin, owner_rule

# -- around a call -----------------------------------------------------------------------------------------------------

Around = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]


async def gathered(call: Coroutine[Any, Any, Any]) -> Any:
    return (await asyncio.gather(call))[0]


async def waited(call: Coroutine[Any, Any, Any]) -> Any:
    done, _ = await asyncio.wait([asyncio.create_task(call)])
    return done.pop().result()


async def completed(call: Coroutine[Any, Any, Any]) -> Any:
    for one in asyncio.as_completed([call]):
        return await one


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
    "wait": waited,
    "as_completed": completed,
    "helper": in_a_helper,
}

if sys.version_info >= (3, 11):

    async def grouped(call: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call)
        return task.result()

    async def timed(call: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(GENEROUS):
            return await call

    AROUND |= {"TaskGroup": grouped, "timeout": timed}


def in_one_task(around: str) -> bool:
    """Whether the call runs in the task that makes it."""
    return around in ("await", "timeout") or (around == "wait_for" and sys.version_info >= (3, 12))


def fails_today(around: str, factory: str) -> bool:
    return not in_one_task(around) and (around == "helper" or "wrapping" in factory)


def every_way(*ways: str) -> pytest.MarkDecorator:
    """Each of these ways (all of them, if none is named) under each factory."""
    some = [
        pytest.param(around, factory, marks=owner_rule if fails_today(around, factory) else ())
        for around in ways or AROUND
        for factory in FACTORIES
    ]
    return pytest.mark.parametrize(("around", "factory"), some)


every_factory = pytest.mark.parametrize(
    "factory", [pytest.param(name, marks=owner_rule if "wrapping" in name else ()) for name in FACTORIES]
)


@contextlib.contextmanager
def cancelled_after(seconds: float) -> Iterator[None]:
    """A way out of what must not wait, without a task of its own."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    yield
    timer.cancel()


def live(factory: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the body in a task that the factory has made."""

    async def begin() -> None:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])
        await asyncio.create_task(body())

    Kin(tasks=True).live(begin())


@every_way()
def test_what_a_call_acquires_belongs_to_the_task_that_has_made_the_call(around: str, factory: str) -> None:
    async def task() -> None:
        lock = Lock(NAME)
        assert await AROUND[around](lock.aacquire())
        assert lock.token is not None
        assert await lock.aowned()
        lock.check()
        assert await lock.aextend(1)
        await lock.arelease()
        assert not await lock.alocked()

    live(factory, task)


@every_way("create_task", "gather", "helper")
def test_such_a_lock_is_renewed(around: str, factory: str, caplog: pytest.LogCaptureFixture) -> None:
    async def task() -> None:
        lock = Lock(NAME, ttl=cases.TTL)
        assert await AROUND[around](lock.aacquire())
        assert await Kin(tasks=True).renewed(cases.TTL)
        assert not lock.lost
        await lock.arelease()

    live(factory, task)
    # of this lock: the listener may report that an earlier test's server has gone
    assert not [one for one in caplog.records if one.levelname == "WARNING" and NAME in one.getMessage()]


@every_way("await", "create_task", "gather", "helper")
def test_a_member_of_a_pool_belongs_to_the_task_that_has_made_the_call(around: str, factory: str) -> None:
    async def task() -> None:
        pool = LockPool("seats")
        await pool.aextend(["a"])
        member = await AROUND[around](pool.aacquire())
        assert await member.aowned()
        member.check()
        await AROUND[around](member.arelease())
        assert not await member.alocked()

    live(factory, task)


@every_way()
def test_whoever_has_made_the_call_enters_the_lock_again_and_does_not_wait_for_itself(
    around: str, factory: str
) -> None:
    async def task() -> None:
        lock = Lock(NAME, reentrant=True)
        assert await AROUND[around](lock.aacquire())
        async with Lock(NAME, reentrant=True, blocking_timeout=0) as again:
            assert again.fence == lock.fence
        with cancelled_after(10), pytest.raises(LockError, match=r"(?i)this (very )?(thread|task)"):
            await Lock(NAME).aacquire()
        assert await lock.aowned()
        await lock.arelease()
        assert not await lock.alocked()

    live(factory, task)


@every_way()
def test_the_other_calls_speak_of_the_lock_of_the_task_that_has_made_them(around: str, factory: str) -> None:
    async def task() -> None:
        async def run(call: Coroutine[Any, Any, Any]) -> Any:
            return await AROUND[around](call)

        lock = Lock(NAME)
        for method, arguments in (("owned", ()), ("extend", (1,)), ("reacquire", ())):
            await lock.aacquire()
            assert await run(getattr(lock, f"a{method}")(*arguments)) is True
            await run(lock.arelease())
            assert not await lock.alocked()
        await lock.aacquire()
        token = await run(lock.adetach())
        assert lock.token is None
        await Lock(NAME, token=token).arelease()
        assert not await lock.alocked()

    live(factory, task)


@every_factory
def test_the_locks_of_several_calls_at_once_belong_to_the_task_that_has_made_them(factory: str) -> None:
    async def task() -> None:
        locks = [Lock(f"{NAME}:{number}") for number in range(20)]
        assert all(await asyncio.gather(*(lock.aacquire() for lock in locks)))
        assert all(await asyncio.gather(*(lock.aowned() for lock in locks)))
        await asyncio.gather(*(lock.arelease() for lock in locks))
        assert not any([await lock.alocked() for lock in locks])

    live(factory, task)


@every_factory
def test_a_call_that_has_waited_in_a_task_of_its_own_gets_its_caller_the_lock(factory: str) -> None:
    async def task() -> None:
        async def have() -> None:
            async with Lock(NAME):
                has.set()
                await leave.wait()

        has, leave, lock, kin = asyncio.Event(), asyncio.Event(), Lock(NAME), Kin(tasks=True)
        having = asyncio.create_task(have())
        await has.wait()
        call = asyncio.create_task(lock.aacquire(blocking_timeout=GENEROUS))
        await kin.queued()
        assert lock.token is None
        assert not await lock.aowned()
        leave.set()
        assert await call
        await having
        assert await lock.aowned()
        await lock.arelease()
        assert not await lock.alocked()

    live(factory, task)


@every_factory
def test_sync_code_of_a_task_reenters_through_async_to_sync(factory: str) -> None:
    """It used to wait for itself without end, under a factory that wraps coroutines."""

    async def inner() -> int:
        async with (lock := Lock(NAME, reentrant=True, blocking_timeout=0)):
            return lock.fence

    async def task() -> None:
        async with Lock(NAME, reentrant=True) as lock:
            assert await sync_to_async(async_to_sync(inner))() == lock.fence
            assert await lock.aowned()
        assert not await lock.alocked()

    live(factory, task)


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


# -- set-up, test and tear-down ----------------------------------------------------------------------------------------

# in Python 3.10, they are one task, and what a cleanup returns is awaited
works_today = (
    (cases.TasksCase, cases.CleanupCase, cases.StackCase, cases.HandCase) if sys.version_info < (3, 11) else ()
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in works_today else owner_rule) for case in cases.CASES]
)
def test_a_lock_is_held_and_renewed_from_the_set_up_of_a_test_case_to_its_tear_down(case: type[cases.Case]) -> None:
    result = unittest.TestResult()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Context().run(lambda: case("test").run(result))
        left = get_lock(NAME)
        gc.collect()  # of what was never awaited
    assert [traceback for _, traceback in result.errors + result.failures] == []
    assert left is None
    assert [str(warning.message) for warning in warned] == []


FIXTURES = """
import pytest
from django_redislock import Lock, get_lock

@pytest.fixture
async def lock():
    lock = Lock("order:42", ttl=2)
    assert await lock.aacquire()
    yield lock
    await lock.arelease()

@pytest.fixture
async def block():
    async with Lock("order:43", ttl=2) as lock:
        yield lock

{mark}
async def test_held(lock, block):
    for one in (lock, block):
        assert await one.aowned()
        assert await one.aextend(0.1)
        one.check()

def test_free():
    assert get_lock("order:42") is None
    assert get_lock("order:43") is None
"""

PLUGINS = {
    "pytest_asyncio": ("asyncio_mode = auto", ""),
    "anyio": ("asyncio_mode = strict", "@pytest.mark.anyio\n@pytest.mark.parametrize('anyio_backend', ['asyncio'])"),
}


@pytest.mark.complete
@pytest.mark.parametrize("plugin", [pytest.param("pytest_asyncio", marks=owner_rule), "anyio"])
def test_an_async_fixture_that_yields_holds_a_lock_during_the_test(plugin: str, tmp_path: Path) -> None:
    pytest.importorskip(plugin)
    options, mark = PLUGINS[plugin]
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n{options}\n"
    )
    (tmp_path / "test_fixtures.py").write_text(FIXTURES.replace("{mark}", mark))
    known = environment(tmp_path)
    for name in [name for name in known if name.startswith(("PYTEST_", "COV_", "COVERAGE_"))]:
        del known[name]  # set by the test run that this test is part of
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:valkey", "-q"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=known, capture_output=True, text=True, timeout=4 * GENEROUS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
