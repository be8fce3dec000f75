"""What only coroutines meet: blocking calls are refused, and an event loop may be blocked or end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, force_release, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Other, server_time
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import drop_idle

Eventually = Callable[..., Any]

# -- sync calls in a coroutine ----------------------------------------------------------------------------------------

SYNC_CALLS: list[tuple[str, Callable[[Lock], object]]] = [
    (r"Await aacquire\(\)", lambda lock: lock.acquire()),
    (r"Await aseize\(\)", lambda lock: lock.seize()),
    ("Use async with", lambda lock: lock.__enter__()),
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


async def test_sync_calls_in_a_coroutine_are_allowed_where_django_allows_its_own_and_may_wait(
    using: str, other: Callable[[], Other], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, say, whose cells run in an event loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    lock, held, holder = Lock(NAME, using=using, blocking_timeout=GENEROUS), Lock(NAME, using=using), other()
    holder(held.acquire)

    def release_for_a_waiter() -> None:
        eventually(lambda: (info := get_lock(NAME, using=using)) and info.waiters)
        held.release()

    released = holder.start(release_for_a_waiter)
    with lock:
        released.result(GENEROUS)
        assert lock.owned()
        assert lock.extend(1)
        assert [info.name for info in list_locks(using=using)] == [NAME]
    assert not lock.locked()
    assert lock.acquire()
    await lock.arelease()
    assert get_lock(NAME, using=using) is None


# -- event loops that stand still, or end -----------------------------------------------------------------------------


async def test_the_lock_is_renewed_while_the_event_loop_is_blocked(client: redis.Redis, eventually: Eventually) -> None:
    async with Lock(NAME, ttl=3) as lock:
        end = server_time(client) / 1000 + int(client.pttl(LOCK))
        eventually(lambda: server_time(client) / 1000 + int(client.pttl(LOCK)) > end + 500)  # blocks
        assert not lock.lost


def test_waiters_whose_event_loop_was_closed_delay_nobody_however_many_they_are(client: redis.Redis) -> None:
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


@pytest.mark.parametrize(
    ("ends", "on_lost"), [("inside its block", None), ("inside its block", "cancel"), ("finished", None)]
)
async def test_the_lock_of_a_task_that_was_collected_is_not_renewed(
    ends: str, on_lost: Any, client: redis.Redis, aeventually: Callable[..., Any]
) -> None:
    held = asyncio.Event()

    async def hold() -> None:
        if ends == "finished":
            await Lock(NAME, ttl=1.5).aacquire()
            held.set()
            return
        async with Lock(NAME, ttl=1.5, on_lost=on_lost):
            held.set()
            await asyncio.get_running_loop().create_future()

    asyncio.create_task(hold())  # noqa: RUF006
    await asyncio.wait_for(held.wait(), GENEROUS)
    gc.collect()
    await aeventually(lambda: holder(client) == "")


def test_a_loop_that_ends_in_the_middle_of_a_block_gives_the_lock_back(
    client: redis.Redis, eventually: Eventually
) -> None:
    async def main() -> None:
        held = asyncio.Event()

        async def hold() -> None:
            async with Lock(NAME, ttl=600):
                held.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(hold())
        await held.wait()
        assert holder(client)
        assert not task.done()

    asyncio.run(main())  # cancels the tasks that still run
    eventually(lambda: holder(client) == "")
