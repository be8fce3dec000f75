"""``on_lost="cancel"``: the task that holds a lost lock is cancelled, and ``async with`` raises LockLost out of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_redislock import Lock, LockLost, LockPool, aforce_release, lock_acquired, lock_lost
from tests.helpers.actors import GENEROUS, Actor
from tests.helpers.state import NAME

Eventually = Callable[..., Any]

COUNTS = hasattr(asyncio.Task, "uncancel")  # Python 3.10 does not count the cancellations of a task


async def forever() -> None:
    await asyncio.sleep(GENEROUS)
    pytest.fail("nothing ended it")


def cancelling(name: str = NAME, **options: Any) -> Lock:
    return Lock(name, on_lost="cancel", **options)


def short(name: str = NAME, **options: Any) -> Lock:
    """A lock with a short lease."""
    return cancelling(name, ttl=0.3, auto_renew=False, **options)


def cancellations() -> int:
    """How many cancellations of the running task are pending."""
    task: Any = asyncio.current_task()
    return int(task.cancelling()) if COUNTS else 0


@contextmanager
def receiving(signal: Any, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.mark.parametrize("own", ["raises it again", "goes on", "raises its own"])
async def test_the_task_that_holds_a_lost_lock_is_cancelled_and_async_with_raises_lock_lost(
    own: str, using: str
) -> None:
    lock, fences = short(using=using), list[int | None]()

    async def hold() -> None:
        async with lock:
            fences.append(lock.fence)
            try:
                await forever()
            except asyncio.CancelledError:
                if own == "raises it again":
                    raise
                await asyncio.sleep(0)
                if own == "raises its own":
                    raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError if own == "raises its own" else LockLost) as caught:
        await hold()
    if isinstance(caught.value, LockLost):
        assert (caught.value.name, [caught.value.fence]) == (NAME, fences)
    assert cancellations() == 0
    assert lock.token is None
    await asyncio.sleep(0)  # nothing follows


async def test_a_forced_release_cancels_the_holder_and_ends_all_blocks_of_a_reentrant_lock(
    using: str, actor: Callable[[], Actor]
) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with cancelling(ttl=3, reentrant=True, using=using) as lock, lock:
            inside.set()
            await forever()

    holding = actor().start(hold)
    await asyncio.wait_for(inside.wait(), GENEROUS)
    await aforce_release(NAME, using=using)
    with pytest.raises(LockLost):
        await asyncio.wait_for(holding, GENEROUS)


@pytest.mark.parametrize("how", ["with", "acquire", "seize", "pool"])
async def test_a_loss_before_the_block_begins_is_lock_lost_as_well(how: str, using: str) -> None:
    """This happens if a receiver of ``lock_acquired`` is slow, for example."""
    pool, lock = LockPool("accounts", using=using), cancelling(using=using)
    await pool.aextend(["alice"])

    async def force_release(name: str, **facts: object) -> None:
        await aforce_release(name, using=using)
        await forever()

    async def enter() -> None:
        if how == "with":
            async with lock:
                pytest.fail("it was entered")
        elif how == "pool":
            await pool.aacquire(on_lost="cancel")
        else:
            await getattr(lock, f"a{how}")()

    with receiving(lock_acquired, force_release), pytest.raises(LockLost):
        await enter()
    assert cancellations() == 0


@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_from_outside_at_the_same_time_is_not_swallowed(
    first: str, actor: Callable[[], Actor], eventually: Eventually
) -> None:
    tellers: list[threading.Thread] = []

    async def hold() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        async with short():
            if first == "cancellation":
                loop.call_soon(task.cancel)
            eventually(lambda: tellers)  # which blocks the loop until the holder has been told
            tellers[0].join(GENEROUS)
            if first == "loss":
                loop.call_soon(task.cancel)
            await forever()

    with receiving(lock_lost, lambda **facts: tellers.append(threading.current_thread())):
        result = actor().start(hold)
        await asyncio.wait([result], timeout=GENEROUS)
    # without a count, either may have come first
    assert result.cancelled() or (not COUNTS and isinstance(result.exception(), LockLost))


async def test_a_release_without_a_block_takes_back_its_own_cancellation_and_nobody_elses(
    actor: Callable[[], Actor],
) -> None:
    async def hold() -> int:
        task = asyncio.current_task()
        assert task is not None
        lock = short()
        await lock.aacquire()
        with pytest.raises(asyncio.CancelledError):
            await forever()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forever()
        with pytest.raises(LockLost):
            await lock.arelease()
        return cancellations()

    assert await actor()(hold) == (1 if COUNTS else 0)


@pytest.mark.usefixtures("nowhere")
async def test_sync_code_cannot_be_cancelled_and_is_told_so_before_anything_is_sent() -> None:
    for call in (cancelling().acquire, cancelling().__enter__):
        with pytest.raises(TypeError, match=r"on_lost='cancel' cancels the task .* use aacquire\(\) or async with"):
            await asyncio.to_thread(call)
        with pytest.raises(TypeError, match="sync code is not a task"):
            await sync_to_async(call)()
