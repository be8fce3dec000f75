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
from tests.helpers.actors import GENEROUS, server_time
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import hang_up_idle, hears, listen, watch_connections

Eventually = Callable[..., Any]


@pytest.mark.parametrize(
    ("what", "call"),
    [
        (r"Await aacquire\(\)", lambda lock: lock.acquire()),
        ("Use async with", lambda lock: lock.__enter__()),
        (r"Await arelease\(\)", lambda lock: lock.release()),
        ("Use async with", lambda lock: lock.__exit__(None, None, None)),
        (r"Await aextend\(\)", lambda lock: lock.extend(1)),
        (r"Await aowned\(\)", lambda lock: lock.owned()),
        (r"Await alist_locks\(\)", lambda lock: list_locks()),
        (r"Await aget_lock\(\)", lambda lock: get_lock(NAME)),
        (r"Await aforce_release\(\)", lambda lock: force_release(NAME)),
    ],
)
async def test_a_sync_call_in_a_coroutine_names_the_async_one_and_does_nothing(
    what: str, call: Callable[[Lock], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    with pytest.raises(SynchronousOnlyOperation, match=f"{what} instead"):
        call(lock)
    assert await lock.aowned()
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # as in a notebook, whose cells run in an event loop
    threading.Timer(0.2, lambda: force_release(NAME)).start()
    with Lock(NAME, blocking_timeout=GENEROUS) as second:  # waits
        assert second.owned()
        assert [info.name for info in list_locks()] == [NAME]


@pytest.mark.parametrize("on_lost", [None, "cancel"])
async def test_the_lock_of_a_task_that_was_collected_inside_its_block_is_not_renewed(
    on_lost: Any, client: redis.Redis, aeventually: Callable[..., Any]
) -> None:
    held = asyncio.Event()

    async def hold() -> None:
        async with Lock(NAME, ttl=0.6, on_lost=on_lost):
            held.set()
            await asyncio.get_running_loop().create_future()

    asyncio.create_task(hold())  # noqa: RUF006
    await asyncio.wait_for(held.wait(), GENEROUS)
    gc.collect()
    await aeventually(lambda: holder(client) == "")


async def test_the_lock_is_renewed_while_the_event_loop_is_blocked(client: redis.Redis, eventually: Eventually) -> None:
    async with Lock(NAME, ttl=1.5) as lock:
        end = server_time(client) / 1000 + int(client.pttl(LOCK))
        eventually(lambda: server_time(client) / 1000 + int(client.pttl(LOCK)) > end + 300)  # blocks
        assert not lock.lost


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


def test_waiters_whose_event_loop_was_closed_delay_nobody(
    client: redis.Redis, eventually: Eventually, aeventually: Callable[..., Any]
) -> None:
    async def wait() -> None:
        await Lock(NAME, ttl=600).aacquire()

    listen()
    eventually(hears)  # else they look again while their connections are closed
    held, loop = Lock(NAME, ttl=600), asyncio.new_event_loop()
    held.acquire()
    loop.set_exception_handler(lambda *args: None)  # it reports abandoned tasks, as it should
    tasks = [loop.create_task(wait()) for _ in range(3)]
    loop.run_until_complete(aeventually(lambda: queued(client) == 3 and not watch_connections()()[0]))
    hang_up_idle(loop)
    loop.close()
    held.release()
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)  # the lease of a single handoff is 200 s
    assert not any(task.done() for task in tasks)
