"""Coroutines and generators that are closed, collected or abandoned by their loop leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, locked
from tests import inside
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.cancelling import TTL, auntil, got_in_turn, leftovers, nothing_left, section, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import drop_idle, pending_releases

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

RELEASE = inside.RELEASE


async def finish(task: asyncio.Task[Any]) -> None:
    """End a task whose coroutine was closed."""
    task.cancel()
    with contextlib.suppress(RuntimeError):  # it cannot continue
        await task


# -- closed ------------------------------------------------------------------------------------------------------------


async def test_an_asynchronous_generator_that_is_closed_within_a_section_leaves_the_lock_to_it(
    client: redis.Redis,
) -> None:
    async def items() -> AsyncIterator[int]:
        async with Lock(NAME, ttl=TTL, reentrant=True):
            yield 1

    async with Lock(NAME, ttl=TTL) as lock:
        generator: Any = items()
        await generator.__anext__()
        await generator.aclose()
        await auntil(lambda: not pending_releases())
        await lock.aextend(1)
        assert holder(client) == lock.token
    await nothing_left(client)


async def test_a_release_closed_inside_another_task_does_not_release_the_lock_of_that_task(
    network: Proxy, client: redis.Redis
) -> None:
    async def hold() -> None:
        async with lock:
            await gate

    lock, gate = Lock(NAME, ttl=TTL), asyncio.get_running_loop().create_future()
    await section(Lock("any", ttl=TTL))  # the script is known
    coroutine = hold()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    late = network.hold_answer(RELEASE)
    gate.set_result(None)
    await auntil(lambda: late.caught.is_set() and not holder(client))
    async with lock:  # through the same object
        coroutine.close()
        assert holder(client) == lock.token
    late.let_go()
    await finish(task)
    await nothing_left(client)


async def test_a_decorated_coroutine_closed_inside_another_task_releases_its_own_lock(client: redis.Redis) -> None:
    @locked(NAME, ttl=TTL)
    async def function() -> None:
        await asyncio.get_running_loop().create_future()

    coroutine: Coroutine[Any, Any, None] = function()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    async with Lock("another", ttl=TTL) as lock:
        coroutine.close()
        await auntil(lambda: not holder(client))
        assert holder(client, "another") == lock.token
    await finish(task)
    await nothing_left(client)


# -- forgotten, and left by their loop ---------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    made.set_exception_handler(lambda *args: None)  # it reports abandoned tasks, as it should
    yield made
    made.close()


@pytest.fixture
def held(other: Callable[[], Other]) -> Callable[[], None]:
    """A thread holds the lock, and releases it when this is called."""
    thread, lock = other(), Lock(NAME, ttl=TTL)
    thread(lock.acquire)
    return lambda: thread(lock.release)


def test_a_section_that_is_closed_after_its_loop_leaves_the_lock_of_the_thread_that_closes_it(
    loop: asyncio.AbstractEventLoop, client: redis.Redis
) -> None:
    async def forgotten() -> None:
        async with lock:
            await asyncio.get_running_loop().create_future()

    lock, coroutine = Lock(NAME, ttl=TTL), forgotten()
    task = loop.create_task(coroutine)
    loop.run_until_complete(auntil(lambda: holder(client)))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    client.delete(LOCK)
    with lock:  # through the same object
        coroutine.close()
        assert holder(client) == lock.token
        until(lambda: not pending_releases())
        assert lock.owned()
    assert not task.done()


def test_waiters_leave_at_once_when_asyncio_run_ends(held: Callable[[], None], client: redis.Redis) -> None:
    async def hold() -> None:
        async with Lock("another", ttl=TTL):
            await asyncio.sleep(GENEROUS)

    async def main() -> None:
        tasks.extend(asyncio.create_task(section(Lock(NAME, ttl=TTL))) for _ in range(3))
        tasks.append(asyncio.create_task(hold()))
        await auntil(lambda: queued(client) == 3 and holder(client, "another"))

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert all(task.cancelled() for task in tasks)
    until(lambda: not queued(client) and not holder(client, "another"))
    held()
    until(lambda: not leftovers(client))
    assert not inside.loops_with_connections()


def test_a_blocked_loop_continues_with_the_lock_that_it_was_handed(
    loop: asyncio.AbstractEventLoop, held: Callable[[], None], client: redis.Redis
) -> None:
    before, waiting = holder(client), loop.create_task(section(Lock(NAME, ttl=TTL)))
    loop.run_until_complete(auntil(lambda: queued(client)))
    held()
    until(lambda: holder(client) not in ("", before))
    loop.run_until_complete(asyncio.wait_for(waiting, GENEROUS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    until(lambda: not leftovers(client))


@pytest.mark.parametrize(
    ("state", "free"),
    [
        ("shut down", "released"),
        ("just closed", "released"),
        # nobody is told of the end of a lease: somebody has to look
        ("shut down", "at the end of its lease"),
        ("just closed", "at the end of its lease"),
        ("standing still", "at the end of its lease"),
    ],
)
def test_a_waiter_whose_loop_does_not_run_blocks_nobody_behind_it(
    state: str, free: str, loop: asyncio.AbstractEventLoop, client: redis.Redis, other: Callable[[], Other]
) -> None:
    thread = other()
    held = Lock(NAME, ttl=TTL) if free == "released" else Lock(NAME, ttl=1, auto_renew=False)
    thread(held.acquire)
    task = loop.create_task(section(Lock(NAME, ttl=0.5)))
    loop.run_until_complete(auntil(lambda: queued(client)))
    bystander = other().start(got_in_turn)
    loop.run_until_complete(auntil(lambda: queued(client) == 2))
    if state == "shut down":
        loop.run_until_complete(loop.shutdown_asyncgens())
        until(lambda: queued(client) == 1)
    if state == "just closed":
        drop_idle(loop)
    if state != "standing still":
        loop.close()
    if free == "released":
        thread(held.release)
    assert bystander.result(GENEROUS)
    if state == "standing still":
        loop.run_until_complete(asyncio.wait_for(task, GENEROUS))
        loop.run_until_complete(loop.shutdown_asyncgens())
    gc.collect()
    until(lambda: not leftovers(client))


def test_a_release_that_is_closed_when_its_loop_is_gone_is_finished_in_the_background(
    network: Proxy, client: redis.Redis
) -> None:
    async def hold() -> None:
        async with Lock(NAME, ttl=TTL):
            await gate

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        loop.run_until_complete(section(Lock("any", ttl=TTL)))  # the script is known
        gate = loop.create_future()
        coroutine = hold()
        task = loop.create_task(coroutine)
        loop.run_until_complete(auntil(lambda: holder(client)))
        late = network.hold_request(RELEASE)
        gate.set_result(None)
        loop.run_until_complete(auntil(late.caught.is_set))
    finally:
        loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its connection was left open
        coroutine.close()
        del loop, task, coroutine
        gc.collect()
    until(lambda: not holder(client))
    late.let_go()
    until(late.over.is_set)
    until(lambda: not leftovers(client))
