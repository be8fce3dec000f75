"""Signals; and losing a lock: what notices it, how its holder is told or cancelled, and which ``expired`` instead."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import django
import pytest
import redis
from asgiref.sync import sync_to_async
from django.db import connections

from django_redislock import (
    Lock,
    LockLost,
    LockNotOwned,
    LockPool,
    Semaphore,
    aforce_release,
    aget_lock,
    force_release,
    lock_acquired,
    lock_force_released,
    lock_lost,
    lock_released,
)
from django_redislock.testing import lose
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Actor, Crowd, Other, auntil, until
from tests.helpers.databases import Account
from tests.helpers.state import NAME, fence_of, holder, put
from tests.inside import HAS_ENDED, HAS_VANISHED, WAS_TAKEN, become_another_process, end_process
from tests.project.programs import run_code

from .conftest import Block, Heard, receiving, until_told

Events = Callable[[], list[tuple[str, str]]]

ALL = (lock_acquired, lock_released, lock_lost, lock_force_released)
SHORT = 0.5  # seconds
LONGER = 4.0  # its renewal would come well before its end
COUNTS = hasattr(asyncio.Task, "uncancel")  # Python 3.10 does not count the cancellations of a task


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Events:
    caplog.set_level(logging.INFO, "django_redislock")

    def events() -> list[tuple[str, str]]:
        found = [(each.levelname, re.match(r"event=(\S+) name=", each.getMessage())) for each in caplog.records]
        return [(level, match[1]) for level, match in found if match]

    return events


def losses_in(heard: Heard) -> list[tuple[str, bool]]:
    return [(facts["name"], facts["expired"]) for which, facts in heard if which == "lost"]


def test_acquiring_and_releasing_send_signals(me: Any, you: Any, queue: Any, heard: Heard) -> None:
    lock = Lock(NAME)
    me(lock, "acquire")
    first = me.read(lambda: lock.fence)
    waiting = queue(Lock(NAME), you)
    me(lock, "release")
    assert waiting.result(GENEROUS)
    # the next holder's signal may come before that of the release that handed the lock over
    (left,) = [facts for which, facts in heard if which == "released"]
    mine, next_one = [facts for which, facts in heard if which == "acquired"]
    assert (mine["name"], mine["fence"], left["name"], left["fence"]) == (NAME, first, NAME, first)
    assert 0 <= mine["waited"] < GENEROUS
    assert 0 < next_one["waited"] < left["held"] + GENEROUS
    assert next_one["fence"] > first


HOW = ["well", "a function that raises", "a coroutine that raises"]


@pytest.mark.parametrize("how", [*HOW, *["a coroutine that is cancelled"] * COUNTS])
def test_every_signal_is_sent_by_lock_whose_users_its_receivers_neither_stop_nor_meet(
    how: str, crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    """Losses are told by a thread of their own. What a receiver raises is logged."""
    # Django 6.1 drops the error of a coroutine that is cancelled
    logged = 0 if how == "well" or ("cancelled" in how and django.VERSION >= (6, 1)) else 5
    seen: list[tuple[object, type, str]] = []

    def receiver(*, sender: type, signal: object, **facts: Any) -> None:
        seen.append((signal, sender, threading.current_thread().name))
        if how != "well":
            raise asyncio.CancelledError if "cancelled" in how else ZeroDivisionError

    async def areceiver(**facts: Any) -> None:
        receiver(**facts)

    me, lock = crowd(), Lock(NAME)
    with receiving(areceiver if "coroutine" in how else receiver, *ALL):
        me(Block(lock), "run")
        me(lock, "acquire")
        assert force_release(NAME) is not None
        with pytest.raises(LockLost):
            me(lock, "release")
        until(lambda: len(seen) == 5)
        until(lambda: caplog.text.count("event=receiver-failed") == logged)
    assert {signal for signal, _, _ in seen} == set(ALL)
    assert {sender for _, sender, _ in seen} == {Lock}
    if "coroutine" not in how:
        assert [thread for signal, _, thread in seen if signal is lock_lost] == ["redislock-notifier"]


async def test_a_task_that_is_cancelled_while_an_async_receiver_runs_for_its_sync_code_is_cancelled() -> None:
    began, ran = asyncio.Event(), list[str]()

    async def receiver(**facts: Any) -> None:
        began.set()
        await asyncio.sleep(600)

    def view() -> None:
        with Lock(NAME):
            ran.append("to its end")

    with receiving(receiver, lock_acquired):
        task = asyncio.create_task(sync_to_async(view)())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ran == []

    async def is_free() -> bool:
        return await aget_lock(NAME) is None

    await auntil(is_free)


@pytest.mark.parametrize("call", ["force_release(NAME)", "asyncio.run(aforce_release(NAME))"])
def test_a_process_that_has_not_imported_lock_sends_its_signals_by_it_too(call: str) -> None:
    """An admin's, say."""
    Lock(NAME).acquire()
    code = f"""
        import asyncio, sys
        from django_redislock import aforce_release, force_release, lock_force_released
        senders, NAME = [], {NAME!r}
        lock_force_released.connect(note := lambda sender, **facts: senders.append(sender))
        assert "django_redislock.lock" not in sys.modules
        assert {call} is not None
        from django_redislock import Lock
        assert senders == [Lock], senders
    """
    run_code(code)


async def test_signals_reach_coroutine_receivers_in_the_loop_of_the_lock(using: str) -> None:
    seen: list[tuple[object, asyncio.AbstractEventLoop]] = []

    async def receiver(*, signal: object, **facts: object) -> None:
        await asyncio.sleep(0)
        seen.append((signal, asyncio.get_running_loop()))

    lock = Lock(NAME, using=using)
    with receiving(receiver, *ALL):
        await lock.aacquire()
        await aforce_release(NAME, using=using)
        with pytest.raises(LockLost):
            await lock.arelease()
        await Lock("short", ttl=1, auto_renew=False, using=using).aacquire()
        await auntil(lambda: len(seen) == 5)
    assert [signal for signal, _ in seen].count(lock_lost) == 2
    assert {loop for signal, loop in seen if signal is not lock_lost} == {asyncio.get_running_loop()}


@pytest.mark.parametrize(
    "how", ["flushed", "taken", "forced while polling", "found by the release", "taken, found by the release"]
)
def test_a_loss_is_noticed_at_the_next_renewal_or_the_release_and_reported_once(
    how: str, crowd: Crowd, client: redis.Redis, heard: Heard, events: Events
) -> None:
    losses, taken = list[LockLost](), how.startswith("taken")
    ttl = 600 if "found" in how else 6  # renewals, which would notice it as well, come long after the release; or soon
    me, lock = crowd(), Lock(NAME, ttl=ttl, on_lost=losses.append, poll=how == "forced while polling")
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    if taken:
        put(client, NAME)
    elif how == "forced while polling":
        force_release(NAME)
    else:
        until_told(me, lock)
        client.flushall()
    theirs, reason = holder(client), WAS_TAKEN if how == "taken" else HAS_VANISHED  # not because of the local clock
    if "found" not in how:
        until(lambda: losses)
        with pytest.raises(LockLost, match=re.escape(reason)):
            me.read(lock.check)
    with pytest.raises(LockLost, match=rf"was lost while it was held here.*{re.escape(reason)}") as caught:
        me(lock, "release")
    assert (caught.value.name, caught.value.fence, caught.value.reason) == (NAME, fence, reason)
    assert me.read(lambda: (lock.token, fence_of(lock))) == (None, None)
    with pytest.raises(LockNotOwned) as again:
        me(lock, "release")
    assert type(again.value) is LockNotOwned
    until(lambda: losses and losses_in(heard))
    assert [loss.reason for loss in losses] == [reason]
    facts = {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    assert [found for which, found in heard if which == "lost"] == [facts]
    assert events().count(("WARNING", "lost")) == 1
    assert holder(client) == theirs


@pytest.mark.complete
def test_the_end_of_a_lease_is_reported_when_redis_refuses_the_renewal(
    crowd: Crowd, own: RedisServer, settings: Any
) -> None:
    database = {**settings.CACHES["default"], "LOCATION": f"redis://127.0.0.1:{own.port}/1"}
    settings.CACHES = {**settings.CACHES, "default": database}
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=3, on_lost=losses.append)
    me(lock, "acquire")
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-select")  # no new connection reaches its database
        client.client_kill_filter(_type="normal", skipme=True)
    until(lambda: losses)
    assert losses[0].reason == HAS_ENDED


def test_an_on_lost_that_raises_stops_neither_renewals_nor_reports_of_other_losses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_lost(error: LockLost) -> None:
        raise ZeroDivisionError if error.name == NAME else SystemExit

    losses: list[LockLost] = []
    kept = Lock("kept", ttl=4.5)
    kept.acquire()
    for name, told in ((NAME, on_lost), ("order:43", on_lost), ("last", losses.append)):
        Lock(name, ttl=1, auto_renew=False, on_lost=told).acquire()
    until(lambda: losses)
    until(lambda: caplog.text.count("event=on-lost-failed") == 2)
    until(lambda: kept.remaining() < 3.6)
    until(lambda: kept.remaining() > 3.6)


@pytest.mark.parametrize("make", [lambda: Lock(NAME), lambda: Semaphore(NAME, limit=1)], ids=["lock", "semaphore"])
async def test_two_releases_at_once_are_no_loss(make: Callable[[], Lock], heard: Heard) -> None:
    for _ in range(60):
        lock = make()
        await lock.aacquire()
        ends = await asyncio.gather(lock.arelease(), lock.arelease(), return_exceptions=True)
        assert [end for end in ends if end is not None and type(end) is not LockNotOwned] == []
        assert not await lock.alocked()
    assert losses_in(heard) == []


def test_on_lost_waits_for_no_receiver_that_hangs() -> None:
    go_on, losses = threading.Event(), list[LockLost]()
    locks = [Lock(f"order:{number}", on_lost=losses.append) for number in range(20)]
    with receiving(lambda **facts: go_on.wait(2 * GENEROUS), lock_lost):
        try:
            for lock in locks:
                lock.acquire()
                lose(lock)
            until(lambda: len(losses) == len(locks))
        finally:
            go_on.set()


def test_the_end_of_a_process_waits_until_a_loss_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    become_another_process(monkeypatch)
    told = set[str]()

    def tell(how: str) -> None:
        sleep(0.3)
        told.add(how)

    lock = Lock(NAME, on_lost=lambda error: tell("called"))
    with receiving(lambda **facts: tell("received"), lock_lost):
        lock.acquire()
        lose(lock)
        end_process()
    assert told == {"called", "received"}


def test_a_slow_on_lost_runs_in_a_thread_of_its_own_and_delays_no_waiter(crowd: Crowd) -> None:
    told, go_on = [], threading.Event()

    def on_lost(error: LockLost) -> None:
        told.append((lost.lost, threading.current_thread().name))
        go_on.wait(2 * GENEROUS)

    me, you, lost, held = crowd(), crowd(), Lock("lost", on_lost=on_lost), Lock(NAME)
    for lock in (lost, held):
        me(lock, "acquire")
    waiting = you.start(Lock(NAME), "acquire")
    force_release("lost")
    with pytest.raises(LockLost):
        me(lost, "extend", 1)
    until(lambda: told)
    me(held, "release")
    assert waiting.result(GENEROUS)
    go_on.set()
    assert told == [(True, "redislock-notifier")]


def test_the_thread_that_tells_of_a_loss_closes_its_connections_to_the_database(account: Account) -> None:
    used: list[Any] = []

    def on_lost(error: LockLost) -> None:
        account.book()
        used.append(connections["default"])

    mine = connections["default"].connection
    Lock(NAME, ttl=SHORT, auto_renew=False, on_lost=on_lost).acquire()
    until(lambda: used)
    assert used[0] is not connections["default"]
    until(lambda: used[0].connection is None)
    assert account.balance == 1
    assert connections["default"].connection is mine is not None


ENDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings and options
    "option": ({}, {"auto_renew": False}),
    "setting": ({"AUTO_RENEW": False}, {}),
    "pool": ({}, {"auto_renew": False}),
    "cache.lock": ({}, {}),
    "max_hold": ({"MAX_HOLD": 3600}, {"max_hold": SHORT, "ttl": LONGER}),
    "MAX_HOLD": ({"MAX_HOLD": SHORT}, {"ttl": LONGER}),
}


@pytest.mark.parametrize("kind", ENDED)
@pytest.mark.complete
def test_a_lock_that_was_not_to_be_renewed_and_runs_out_has_expired_and_one_that_runs_into_max_hold_is_lost(
    kind: str, crowd: Crowd, settings: Any, cache_lock: Callable[..., Any], events: Events, heard: Heard,
) -> None:  # fmt: skip
    settings.REDISLOCK, options = ENDED[kind][0], {"ttl": SHORT, **ENDED[kind][1]}
    me, pool, expires = crowd(), LockPool("accounts"), "max_hold" not in kind.lower()
    me(pool, "assign", ["alice"])
    if kind == "pool":
        lock: Any = me(pool, "acquire", **options)
    elif kind == "cache.lock":
        lock = cache_lock(NAME, timeout=SHORT)  # as tasks do that must not run again so soon
        assert lock.acquire()
    else:
        lock = Lock(NAME, **options)
        me(lock, "acquire")
    until(lambda: losses_in(heard))
    assert losses_in(heard) == [(lock.name, expires)]
    reason = "not to be renewed" if expires else "not to be renewed beyond max_hold"
    if kind != "cache.lock":
        with pytest.raises(LockLost, match=reason):
            me.read(lock.check)
        with pytest.raises(LockLost, match=reason):
            me(lock, "release")
    assert events() == ([("INFO", "expired")] if expires else [("WARNING", "max-hold"), ("WARNING", "lost")])


@pytest.mark.parametrize("ends", ["thread", "event loop"])
@pytest.mark.complete
def test_one_whose_thread_or_event_loop_has_ended_is_warned_of_once_and_expires(
    ends: str, using: str, events: Events, heard: Heard, other: Callable[[], Other]
) -> None:
    lock, me = Lock(NAME, ttl=4, using=using), other()

    def end_of_lease() -> float:
        return monotonic() + lock.remaining()

    async def hold() -> None:
        assert await lock.aacquire()
        begun = end_of_lease()
        await auntil(lambda: end_of_lease() > begun + 0.1)  # renewed

    if ends == "thread":
        me(lock.acquire)
        begun = me(end_of_lease)
        until(lambda: me(end_of_lease) > begun + 0.1)
        me.end()
    else:
        asyncio.run(hold())
    until(lambda: losses_in(heard))
    assert losses_in(heard) == [(NAME, True)]
    assert events() == [("WARNING", "owner-ended"), ("INFO", "expired")]


def test_a_loss_is_known_though_somebody_else_acquires_through_the_same_object(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    force_release(NAME)
    until(lambda: me.read(lambda: lock.lost))
    you(lock, "acquire")
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost):
        me.read(lock.check)
    assert not you.read(lambda: lock.lost)
    you(lock, "release")


async def forever() -> None:
    await asyncio.sleep(GENEROUS)
    pytest.fail("nothing ended it")


def cancelling(**options: Any) -> Lock:
    """The task that holds this lock is cancelled when it is lost, and ``async with`` raises LockLost out of it."""
    return Lock(NAME, on_lost="cancel", **options)


def short(**options: Any) -> Lock:
    return cancelling(ttl=1.5, auto_renew=False, **options)


def cancellations() -> int:
    """How many cancellations of the running task are pending."""
    task: Any = asyncio.current_task()
    return int(task.cancelling()) if COUNTS else 0


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


async def test_a_forced_release_cancels_the_holder_and_ends_all_blocks_of_a_reentrant_lock(using: str) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with cancelling(ttl=30, reentrant=True, using=using) as lock, lock:
            inside.set()
            await forever()

    holding = Actor().start(hold)
    await asyncio.wait_for(inside.wait(), GENEROUS)
    await aforce_release(NAME, using=using)
    with pytest.raises(LockLost):
        await asyncio.wait_for(holding, GENEROUS)


@pytest.mark.parametrize("how", ["with", "acquire", "pool"])
async def test_a_loss_before_the_block_begins_is_lock_lost_as_well(how: str, using: str) -> None:
    pool, lock = LockPool("accounts", using=using), cancelling(using=using)
    await pool.aextend(["alice"])

    async def force_release_it(name: str, **facts: object) -> None:
        await aforce_release(name, using=using)
        await forever()

    async def enter() -> None:
        if how == "with":
            async with lock:
                pytest.fail("it was entered")
        elif how == "pool":
            await pool.aacquire(on_lost="cancel")
        else:
            await lock.aacquire()

    with receiving(force_release_it, lock_acquired), pytest.raises(LockLost):
        await enter()
    assert cancellations() == 0


@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_from_outside_at_the_same_time_is_not_swallowed(first: str) -> None:
    tellers: list[threading.Thread] = []

    async def hold() -> None:
        task: Any = asyncio.current_task()
        loop = task.get_loop()
        async with short():
            if first == "cancellation":
                loop.call_soon(task.cancel)
            until(lambda: tellers)  # which blocks the loop until the holder has been told
            tellers[0].join(GENEROUS)
            if first == "loss":
                loop.call_soon(task.cancel)
            await forever()

    with receiving(lambda **facts: tellers.append(threading.current_thread()), lock_lost):
        result = Actor().start(hold)
        await asyncio.wait([result], timeout=GENEROUS)
    # without a count, either may have come first
    assert result.cancelled() or (not COUNTS and isinstance(result.exception(), LockLost))


async def test_a_release_without_a_block_takes_back_its_own_cancellation_and_nobody_elses() -> None:
    async def hold() -> int:
        task: Any = asyncio.current_task()
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

    assert await Actor()(hold) == (1 if COUNTS else 0)


@pytest.mark.usefixtures("nowhere")
async def test_sync_code_cannot_be_cancelled_and_is_told_so_before_anything_is_sent() -> None:
    for call in (cancelling().acquire, cancelling().__enter__):
        with pytest.raises(TypeError, match=r"on_lost='cancel' cancels the task .* use aacquire\(\) or async with"):
            await asyncio.to_thread(call)
        with pytest.raises(TypeError, match="sync code is not a task"):
            await sync_to_async(call)()
