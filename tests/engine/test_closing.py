"""Coroutines and generators that are closed before their end, collected, or abandoned by their loop leave nothing
behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock, locked
from django_redislock.store.loop_connections import ENTERING
from django_redislock.store.stores import get_partition
from tests import inside
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.cancelling import (
    TTL,
    Closed,
    Closing,
    Operation,
    acquire,
    auntil,
    auntil_done_or,
    decorated,
    failing_section,
    got_in_turn,
    leftovers,
    nothing,
    nothing_left,
    release,
    section,
    until,
)
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import drop_idle, parked

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

RELEASE = inside.RELEASE


# -- closed ------------------------------------------------------------------------------------------------------------

ALONE: dict[str, tuple[Operation, Operation]] = {  # before, and what is closed
    "acquire": (nothing, acquire),
    "release": (acquire, release),
    "section": (nothing, section),
    "failing section": (nothing, failing_section),
    "decorated": (nothing, decorated),
}


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", ALONE)
async def test_an_uncontended_call_closed_at_any_await_leaves_nothing_behind(
    what: str, connect: Callable[[], Awaitable[None]], client: redis.Redis, other: Callable[[], Other]
) -> None:
    before, operation = ALONE[what]
    bystander = other()
    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        await before(lock)
        await connect()
        try:
            await Closing(operation(lock), at)
        except Closed:
            assert lock.token is None
        else:
            over = True
            if lock.token is not None:
                await lock.arelease()
        assert await asyncio.wrap_future(bystander.start(got_in_turn))
        await nothing_left(client)
    assert at > 3


@pytest.mark.usefixtures("gates")
async def test_a_waiter_closed_at_any_await_blocks_nobody_behind_it(
    connect: Callable[[], Awaitable[None]], client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = Lock(NAME, ttl=TTL), Lock(NAME, ttl=TTL)
        first(held.acquire)
        await connect()

        async def wait(lock: Lock = lock, at: int = at) -> bool:
            try:
                await Closing(section(lock), at)
            except Closed:
                return False
            return True

        waiting = asyncio.create_task(wait())
        await auntil_done_or(waiting, parked)
        bystander = behind.start(got_in_turn)
        await auntil_done_or(waiting, lambda: queued(client) == 2)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(bystander)
        await nothing_left(client)
    assert at > 5


@pytest.mark.usefixtures("one_connection")
async def test_a_coroutine_that_is_closed_while_it_waits_for_a_connection_takes_none(client: redis.Redis) -> None:
    await get_partition().aexchange([("PING",)], urgency=ENTERING)
    connections = get_partition().store._loops[asyncio.get_running_loop()]
    blocked = get_partition().aexchange([("BLPOP", "gate", str(GENEROUS))], urgency=ENTERING)
    occupied = asyncio.create_task(blocked)
    await auntil(lambda: connections._loans)
    with pytest.raises(Closed):
        await Closing(Lock(NAME).aacquire(), 1)
    client.rpush("gate", "open")
    await occupied
    await nothing_left(client)


async def test_an_asynchronous_generator_that_is_closed_within_a_section_leaves_the_lock_to_it(
    client: redis.Redis,
) -> None:
    async def items() -> AsyncIterator[int]:
        async with Lock(NAME, ttl=TTL, reentrant=True):
            yield 1
            yield 2

    async with Lock(NAME, ttl=TTL) as lock:
        generator = items()
        assert await generator.__anext__() == 1
        await generator.aclose()  # type: ignore[attr-defined]
        await auntil(lambda: not leftovers(client).get("pending releases"))
        await lock.aextend(1)
        assert holder(client) == lock.token
    await nothing_left(client)


def test_a_generator_that_is_closed_within_a_section_leaves_the_lock_to_it(client: redis.Redis) -> None:
    def items() -> Iterator[int]:
        with Lock(NAME, ttl=TTL, reentrant=True):
            yield 1
            yield 2

    with Lock(NAME, ttl=TTL) as lock:
        generator: Any = items()
        assert next(generator) == 1
        generator.close()
        lock.extend(1)
        assert holder(client) == lock.token
    assert holder(client) == ""


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
    task.cancel()
    with contextlib.suppress(RuntimeError):  # it cannot continue a closed coroutine
        await task
    await nothing_left(client)


async def test_a_decorated_coroutine_closed_inside_another_task_releases_its_own_lock(
    client: redis.Redis,
) -> None:
    @locked(NAME, ttl=TTL)
    async def function() -> None:
        await asyncio.get_running_loop().create_future()

    coroutine = function()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    async with Lock("another", ttl=TTL) as lock:
        coroutine.close()
        await auntil(lambda: not holder(client))
        assert holder(client, "another") == lock.token
    task.cancel()
    with contextlib.suppress(RuntimeError):
        await task
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


async def test_an_unreferenced_task_is_not_collected_while_it_waits(
    held: Callable[[], None], client: redis.Redis
) -> None:
    done = []

    async def wait() -> None:
        async with Lock(NAME, ttl=TTL):
            done.append(True)

    asyncio.create_task(wait())  # noqa: RUF006
    await auntil(parked)
    gc.collect()
    held()
    await auntil(lambda: done)
    await nothing_left(client)


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
        until(lambda: not leftovers(client).get("pending releases"))
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
    assert not get_partition().store._loops


def test_a_blocked_loop_continues_with_the_lock_that_it_was_handed(
    loop: asyncio.AbstractEventLoop, held: Callable[[], None], client: redis.Redis
) -> None:
    async def wait() -> None:
        waiting = asyncio.create_task(section(Lock(NAME, ttl=TTL)))
        await auntil(lambda: queued(client))
        loop.stop()
        await waiting

    before, waiting = holder(client), loop.create_task(wait())
    loop.run_forever()
    held()
    until(lambda: holder(client) not in ("", before))
    loop.run_until_complete(asyncio.wait_for(waiting, GENEROUS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    until(lambda: not leftovers(client))


def wait_and_end(
    loop: asyncio.AbstractEventLoop, client: redis.Redis, queue_behind: Callable[[], Future[bool]], shut_down: bool
) -> Future[bool]:
    """Close an event loop in which a coroutine waits, ahead of another waiter."""
    task = loop.create_task(section(Lock(NAME, ttl=TTL)))
    loop.run_until_complete(auntil(lambda: queued(client)))
    bystander = queue_behind()
    loop.run_until_complete(auntil(lambda: queued(client) == 2))
    if shut_down:
        loop.run_until_complete(loop.shutdown_asyncgens())
    else:
        drop_idle(loop)
        assert not task.done()
    loop.close()
    return bystander


@pytest.mark.parametrize("shut_down", [True, False], ids=["shut down", "just closed"])
def test_a_waiter_whose_loop_was_closed_blocks_nobody_behind_it(
    shut_down: bool,
    loop: asyncio.AbstractEventLoop,
    held: Callable[[], None],
    client: redis.Redis,
    other: Callable[[], Other],
) -> None:
    bystander = wait_and_end(loop, client, lambda: other().start(got_in_turn), shut_down)
    until(lambda: queued(client) == (1 if shut_down else 2))
    held()
    assert bystander.result(GENEROUS)
    gc.collect()
    until(lambda: not leftovers(client))


def test_a_waiter_whose_loop_was_shut_down_no_longer_looks_for_others(
    loop: asyncio.AbstractEventLoop, client: redis.Redis, other: Callable[[], Other]
) -> None:
    other()(Lock(NAME, ttl=1, auto_renew=False).acquire)
    # nobody is woken when a lease ends: one of them has to look
    bystander = wait_and_end(loop, client, lambda: other().start(got_in_turn), shut_down=True)
    assert bystander.result(GENEROUS)
    until(lambda: not leftovers(client))


@pytest.mark.parametrize("closed", [False, True], ids=["stands still", "closed"])
def test_a_waiter_in_a_loop_that_is_not_running_does_not_look_for_others(
    closed: bool, loop: asyncio.AbstractEventLoop, client: redis.Redis, other: Callable[[], Other]
) -> None:
    other()(Lock(NAME, ttl=1, auto_renew=False).acquire)
    task = loop.create_task(section(Lock(NAME, ttl=0.5)))
    loop.run_until_complete(auntil(lambda: queued(client)))
    if closed:
        drop_idle(loop)
        loop.close()
    # nobody is woken when a lease ends
    assert other()(got_in_turn)
    if not closed:
        loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
    until(lambda: not queued(client) and not holder(client))


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
