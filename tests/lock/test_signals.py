"""The signals ``lock_acquired``, ``lock_released``, ``lock_lost`` and ``lock_force_released``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import (
    Lock,
    LockLost,
    aforce_release,
    force_release,
    lock_acquired,
    lock_force_released,
    lock_lost,
    lock_released,
)
from tests.helpers.actors import GENEROUS, Actor, Crowd
from tests.helpers.state import NAME, queued

from .blocks import Block

Eventually = Callable[..., Any]

ALL = (lock_acquired, lock_released, lock_lost, lock_force_released)


@contextmanager
def receiving(receiver: Callable[..., Any], *signals: Any) -> Iterator[None]:
    for signal in signals or ALL:
        signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        for signal in signals or ALL:
            signal.disconnect(receiver)


def test_acquiring_and_releasing_send_signals(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    first, begin = me.read(lambda: lock.fence), monotonic()
    waiting = you.start(Lock(NAME), "acquire")
    eventually(lambda: queued(client) and monotonic() - begin > 0.05)
    me(lock, "release")
    assert waiting.result(GENEROUS)
    # the next holder's signal may come before that of the release that handed the lock over
    ((_, left),) = [entry for entry in heard if entry[0] == "released"]
    (_, mine), (_, next_one) = [entry for entry in heard if entry[0] == "acquired"]
    assert (mine["name"], mine["fence"], left["name"], left["fence"]) == (NAME, first, NAME, first)
    assert 0 <= mine["waited"] < GENEROUS
    assert left["held"] >= 0.05
    assert next_one["fence"] > first
    assert next_one["waited"] > 0


@pytest.mark.parametrize("how", ["well", "a function that raises", "a coroutine that raises"])
def test_every_signal_is_sent_by_lock_whose_users_its_receivers_neither_stop_nor_meet(
    how: str, crowd: Crowd, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """Losses are told by a thread of their own. What a receiver raises is logged."""
    seen: list[tuple[object, type, str]] = []

    def receiver(*, sender: type, signal: object, **facts: Any) -> None:
        seen.append((signal, sender, threading.current_thread().name))
        if how != "well":
            raise ZeroDivisionError

    async def areceiver(**facts: Any) -> None:
        receiver(**facts)

    me, lock = crowd(), Lock(NAME)
    with receiving(areceiver if how == "a coroutine that raises" else receiver):
        me(Block(lock), "run")
        assert not me(lock, "locked")
        me(lock, "acquire")
        assert force_release(NAME) is not None
        with pytest.raises(LockLost):
            me(lock, "release")
        eventually(lambda: len(seen) == 5)
        eventually(lambda: caplog.text.count("event=receiver-failed") == (0 if how == "well" else 5))
    assert {signal for signal, _, _ in seen} == set(ALL)
    assert {sender for _, sender, _ in seen} == {Lock}
    if how != "a coroutine that raises":
        assert [thread for signal, _, thread in seen if signal is lock_lost] == ["redislock-notifier"]


async def test_signals_reach_coroutine_receivers_in_the_loop_of_the_lock(
    using: str, aeventually: Callable[..., Any]
) -> None:
    seen: list[tuple[str, asyncio.AbstractEventLoop]] = []
    losses: list[str] = []

    async def receiver(*, name: str, **facts: object) -> None:
        await asyncio.sleep(0)
        seen.append((name, asyncio.get_running_loop()))

    async def hears_losses(*, name: str, **facts: object) -> None:
        await asyncio.sleep(0)
        losses.append(name)

    lock = Lock(NAME, using=using)
    with receiving(receiver, lock_acquired, lock_released, lock_force_released), receiving(hears_losses, lock_lost):
        async with lock:
            pass
        await lock.aacquire()
        await aforce_release(NAME, using=using)
        with pytest.raises(LockLost):
            await lock.arelease()
        await Lock("short", ttl=0.3, auto_renew=False, using=using).aacquire()
        await aeventually(lambda: len(losses) == 2)
    loop = asyncio.get_running_loop()
    assert seen == [(name, loop) for name in (NAME, NAME, NAME, NAME, "short")]
    assert losses == [NAME, "short"]


async def test_a_task_that_is_cancelled_while_a_receiver_runs_holds_no_lock(
    using: str, actor: Callable[[], Actor], aeventually: Callable[..., Any]
) -> None:
    reached = asyncio.Event()

    async def receiver(**facts: object) -> None:
        reached.set()
        await asyncio.sleep(GENEROUS)

    async def free() -> bool:
        return not await lock.alocked()

    task, lock = actor(), Lock(NAME, using=using)
    with receiving(receiver, lock_acquired):
        entering = task.start(lock.__aenter__)
        await asyncio.wait_for(reached.wait(), GENEROUS)
        assert await lock.alocked()
        await task.end()
    assert entering.cancelled()
    await aeventually(free)
