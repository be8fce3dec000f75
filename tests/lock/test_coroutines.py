"""What only coroutines meet: blocking calls are refused, and an event loop may be blocked or end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, force_release, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Other, server_time
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import drop_idle, listener

AEventually = Callable[..., Any]
Eventually = Callable[..., Any]


async def forever() -> None:
    await asyncio.sleep(GENEROUS)
    pytest.fail("nothing ended it")


async def test_a_lock_is_held_within_async_with() -> None:
    async with Lock(NAME) as lock:
        assert isinstance(lock, Lock)
        assert await lock.aowned()
    assert not await lock.alocked()


# -- sync calls in a coroutine ----------------------------------------------------------------------------------------


def enter(lock: Lock) -> None:
    with lock:
        raise AssertionError("not reached")


SYNC_CALLS: list[tuple[str, Callable[[Lock], object]]] = [
    (r"Await aacquire\(\)", lambda lock: lock.acquire()),
    (r"Await aseize\(\)", lambda lock: lock.seize()),
    ("Use async with", enter),
    (r"Await arelease\(\)", lambda lock: lock.release()),
    ("Use async with", lambda lock: lock.__exit__(None, None, None)),
    (r"Await aextend\(\)", lambda lock: lock.extend(1)),
    (r"Await areacquire\(\)", lambda lock: lock.reacquire()),
    (r"Await adetach\(\)", lambda lock: lock.detach()),
    (r"Await alocked\(\)", lambda lock: lock.locked()),
    (r"Await aowned\(\)", lambda lock: lock.owned()),
    (r"Await astatus\(\)", lambda lock: lock.status()),
    (r"Await ainfo\(\)", lambda lock: lock.info()),
    (r"Await alist_locks\(\)", lambda lock: list_locks()),
    (r"Await aget_lock\(\)", lambda lock: get_lock(NAME)),
    (r"Await aforce_release\(\)", lambda lock: force_release(NAME)),
]


@pytest.mark.parametrize(("what", "call"), SYNC_CALLS)
async def test_a_sync_call_in_a_coroutine_names_the_async_one_and_does_nothing(
    what: str, call: Callable[[Lock], object]
) -> None:
    lock = Lock(NAME)
    with pytest.raises(SynchronousOnlyOperation, match=f"{what} instead"):
        call(lock)
    assert not await lock.alocked()
    await lock.aacquire()
    with pytest.raises(SynchronousOnlyOperation, match=f"{what} instead"):
        call(lock)
    assert await lock.aowned()


async def test_sync_calls_in_a_coroutine_are_allowed_where_django_allows_its_own(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    lock = Lock(NAME, using=using)
    with lock:
        assert lock.owned()
        assert lock.extend(1)
        assert [info.name for info in list_locks(using=using)] == [NAME]
    assert not lock.locked()
    assert lock.acquire()
    await lock.arelease()
    assert get_lock(NAME, using=using) is None


async def test_sync_calls_that_are_allowed_in_a_coroutine_can_wait(
    using: str, other: Callable[[], Other], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, say, whose cells run in an event loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    holder, held = other(), Lock(NAME, using=using)
    holder(held.acquire)

    def release_for_a_waiter() -> None:
        eventually(lambda: (info := get_lock(NAME, using=using)) and info.waiters)
        held.release()

    released = holder.start(release_for_a_waiter)
    with Lock(NAME, using=using, blocking_timeout=GENEROUS):
        released.result(GENEROUS)


# -- event loops that stand still, or end -----------------------------------------------------------------------------


async def test_the_lock_is_renewed_while_the_event_loop_is_blocked(client: redis.Redis, eventually: Eventually) -> None:
    async with Lock(NAME, ttl=3) as lock:
        end = server_time(client) / 1000 + int(client.pttl(LOCK))
        eventually(lambda: server_time(client) / 1000 + int(client.pttl(LOCK)) > end + 500)  # blocks
        assert not lock.lost


def test_waiters_whose_event_loop_was_closed_delay_nobody_however_many_they_are(
    client: redis.Redis, eventually: Eventually
) -> None:
    async def wait() -> None:
        async with Lock(NAME, ttl=300):
            pytest.fail("it had ended")

    held, lost = Lock(NAME, ttl=300), 150
    held.acquire()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        tasks = [loop.create_task(wait()) for _ in range(lost)]

        async def all_wait() -> None:
            while queued(client) < lost:
                await asyncio.sleep(0.01)

        loop.run_until_complete(all_wait())
        drop_idle(loop)
    finally:
        loop.close()
    held.release()
    assert Lock(NAME, ttl=300).acquire(blocking_timeout=GENEROUS)  # the lease of a single handoff is 100 s
    assert not any(task.done() for task in tasks)


def test_the_lock_of_a_task_whose_event_loop_was_closed_is_not_renewed(
    client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def hold() -> None:
        async with Lock(NAME, ttl=1.5):
            inside.set_result(None)
            await forever()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        inside = loop.create_future()
        task = loop.create_task(hold())
        loop.run_until_complete(inside)
        drop_idle(loop)
    finally:
        loop.close()
    eventually(lambda: "event=owner-ended" in caplog.text)
    eventually(lambda: holder(client) == "")
    assert not task.done()


@pytest.mark.parametrize("on_lost", [None, "cancel"])
async def test_the_lock_of_a_task_that_was_collected_inside_its_block_is_not_renewed(
    on_lost: Any, client: redis.Redis, aeventually: AEventually
) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with Lock(NAME, ttl=1.5, on_lost=on_lost):
            inside.set()
            await asyncio.get_running_loop().create_future()

    asyncio.create_task(hold())  # noqa: RUF006
    await asyncio.wait_for(inside.wait(), GENEROUS)
    gc.collect()
    await aeventually(lambda: holder(client) == "")


async def test_the_lock_of_a_finished_task_that_was_collected_is_not_renewed(
    client: redis.Redis, aeventually: AEventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def take() -> None:
        await Lock(NAME, ttl=4).aacquire()

    await asyncio.create_task(take())
    gc.collect()
    await aeventually(lambda: "event=owner-ended" in caplog.text)
    await aeventually(lambda: holder(client) == "")


def test_a_loop_that_ends_in_the_middle_of_a_block_gives_the_lock_back(
    client: redis.Redis, eventually: Eventually
) -> None:
    held = threading.Event()

    async def hold() -> None:
        async with Lock(NAME, ttl=600):
            held.set()
            await forever()

    async def main() -> None:
        task = asyncio.create_task(hold())
        while not held.is_set():
            await asyncio.sleep(0)
        assert holder(client)
        assert not task.done()

    asyncio.run(main())  # cancels the tasks that still run
    eventually(lambda: holder(client) == "")


def test_waking_a_waiter_whose_loop_has_ended_delays_no_other_waiter() -> None:
    loop, ears = asyncio.new_event_loop(), listener()
    gone = ears.make_waiter("x" * 22, NAME, loop)
    alive = ears.make_waiter("y" * 22, NAME, None)
    ears.register(gone)
    ears.register(alive)
    try:
        loop.close()
        ears.tell_all()
        assert alive.told
        assert ears.waiters.of(NAME) == [alive]
    finally:
        ears.waiters.discard(alive)
