"""What users see of Lock and FairLock in coroutines, with a real server and in memory, with real tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import (
    FairLock,
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    aforce_release,
    aget_lock,
    alist_locks,
    force_release,
    get_lock,
    list_locks,
    lock_acquired,
    lock_force_released,
    lock_lost,
    lock_released,
)
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, TOKEN, Actor, Other, holder
from .proxy import Proxy, proxy

AEventually = Callable[..., Awaitable[Any]]
Eventually = Callable[..., Any]
Heard = list[tuple[str, dict[str, Any]]]
Make = Callable[..., Lock]
Settings = Any  # its type has another name in each pytest-django


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest) -> str:
    alias: str = request.param
    if alias == "memory":
        get_backend(alias).execute(("FLUSHALL",))
    return alias


@pytest.fixture
def make(kind: type[Lock], using: str) -> Make:
    """Make a lock: of each kind, on each sort of alias."""
    return lambda name=NAME, **options: kind(name, using=using, **options)


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    """What lies between this process and the server."""
    with proxy(server.port) as between:
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": between.url}}
        yield between


@pytest.fixture
def told(eventually: Eventually) -> Iterator[Callable[[], None]]:
    """Block this thread, and its event loop, until the holder of a lost lock has been told."""
    tellers: list[threading.Thread] = []

    def receiver(**facts: object) -> None:
        tellers.append(threading.current_thread())

    def told() -> None:
        eventually(lambda: tellers)
        for thread in tellers:
            thread.join(GENEROUS)

    lock_lost.connect(receiver)
    yield told
    lock_lost.disconnect(receiver)


async def waiters(lock: Lock) -> int:
    info = await lock.ainfo()
    return 0 if info is None else info.waiters


async def forever() -> None:
    await asyncio.sleep(GENEROUS)
    pytest.fail("nothing ended it")


def cancellations() -> int:
    """How many want the end of the running task. Before Python 3.11 nobody counts."""
    count = getattr(asyncio.current_task(), "cancelling", None)
    return count() if count is not None else 0


# -- acquire -----------------------------------------------------------------------------------------------------------


async def test_a_lock_is_held_within_async_with() -> None:
    lock = Lock("a")
    async with lock:
        assert await lock.alocked()
        assert await lock.aowned()
    assert not await lock.alocked()


async def test_a_free_lock_is_got_at_once_and_no_other_task_gets_it(make: Make, actor: Callable[[], Actor]) -> None:
    task = actor()
    assert await make().aacquire() is True
    assert await task(make(blocking=False).aacquire) is False
    assert await task(make(blocking_timeout=0).aacquire) is False
    assert await task(lambda: make().aacquire(blocking=False)) is False
    assert await task(lambda: make().aacquire(blocking_timeout=0)) is False
    assert await task(lambda: make("order:43").aacquire(blocking=False)) is True


@pytest.mark.parametrize("timeout", [0.25, timedelta(milliseconds=250)])
async def test_a_bounded_wait_ends_in_time_and_leaves_the_queue(
    make: Make, timeout: float | timedelta, actor: Callable[[], Actor]
) -> None:
    lock = make()
    await lock.aacquire()
    begin = monotonic()
    assert await actor()(make(blocking_timeout=timeout).aacquire) is False
    assert 0.25 <= monotonic() - begin < 5
    assert await waiters(lock) == 0


async def test_without_a_timeout_the_setting_bounds_the_wait(
    make: Make, actor: Callable[[], Actor], settings: Settings
) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.1}
    await make().aacquire()
    assert not await actor()(make().aacquire)


async def test_without_any_timeout_a_coroutine_waits_until_its_turn_comes(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock = make()
    await lock.aacquire()
    waiting = actor().start(make().aacquire)
    await aeventually(lambda: waiters(lock))
    assert not waiting.done()
    await lock.arelease()
    assert await asyncio.wait_for(waiting, GENEROUS) is True


async def test_a_token_that_cannot_be_one_is_refused_before_anything_is_sent(own: RedisServer) -> None:
    own.stop()
    with pytest.raises(ValueError, match="A token must be"):
        await Lock(NAME).aacquire(token="short")
    with pytest.raises(ValueError, match="blocking_timeout must be 0 or more"):
        await Lock(NAME).aacquire(blocking_timeout=-1)


async def test_waiting_without_end_for_oneself_raises_and_with_a_bound_the_lock_is_simply_not_got(make: Make) -> None:
    lock = make()
    await lock.aacquire()
    for again in (lock, make()):
        with pytest.raises(LockError, match="would wait for itself"):
            await again.aacquire()
        assert await again.aacquire(blocking=False) is False
        assert await again.aacquire(blocking_timeout=0.05) is False
    assert await lock.aowned()
    assert await waiters(lock) == 0


# -- release and errors ------------------------------------------------------------------------------------------------


async def test_release_without_acquire_says_that_the_lock_is_not_owned(make: Make, actor: Callable[[], Actor]) -> None:
    lock = make()
    with pytest.raises(LockNotOwned, match="does not hold it") as caught:
        await lock.arelease()
    assert not isinstance(caught.value, LockLost)
    assert caught.value.name == NAME
    await lock.aacquire()
    with pytest.raises(LockNotOwned) as caught:
        await actor()(lock.arelease)
    assert not isinstance(caught.value, LockLost)
    assert await lock.aowned()
    await lock.arelease()
    assert not await lock.alocked()
    with pytest.raises(LockNotOwned):
        await lock.arelease()


async def test_release_of_a_lost_lock_raises_lock_lost_and_forgets_it(make: Make, using: str) -> None:
    lock = make()
    await lock.aacquire()
    fence = lock.fence
    await get_backend(using).aexecute(("DEL", KEYS.lock))
    with pytest.raises(LockLost) as caught:
        await lock.arelease()
    assert (caught.value.name, caught.value.fence) == (NAME, fence)
    with pytest.raises(LockNotOwned) as again:
        await lock.arelease()
    assert not isinstance(again.value, LockLost)


async def test_async_with_raises_when_the_lock_is_not_got_in_time(make: Make, actor: Callable[[], Actor]) -> None:
    async def enter() -> None:
        async with make(blocking_timeout=0.05):
            raise AssertionError("not reached")

    async with make() as lock:
        with pytest.raises(LockNotAcquired, match=NAME) as caught:
            await actor()(enter)
    assert caught.value.name == NAME
    assert not await lock.alocked()


async def test_async_with_tells_at_its_end_that_the_lock_was_lost(make: Make, using: str) -> None:
    with pytest.raises(LockLost):
        async with make():
            await aforce_release(NAME, using=using)


async def test_an_exception_in_the_block_wins_over_the_loss(
    make: Make, using: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def section() -> None:
        async with make():
            await aforce_release(NAME, using=using)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await section()
    assert caplog.text.count("event=lost") == 1
    assert "event=not-released" not in caplog.text  # which would tell the same again


async def test_a_redis_that_is_down_makes_every_call_raise_lock_unavailable(
    own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    held, lock = Lock("held"), Lock(NAME)
    await held.aacquire()
    own.stop()

    async def enter() -> None:
        async with lock:
            raise AssertionError("not reached")

    calls: list[Callable[[], Awaitable[object]]] = [
        lock.aacquire,
        lambda: lock.aacquire(blocking=False),
        lambda: lock.aacquire(blocking_timeout=5),
        enter,
        lock.alocked,
        lock.ainfo,
        held.aowned,
        lambda: held.aextend(1),
        held.areacquire,
        held.arelease,
        lambda: aget_lock(NAME),
        lambda: aforce_release(NAME),
    ]
    for call in calls:
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            await call()
        assert caught.value.name in (NAME, "held")
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        await alist_locks()


async def test_a_release_that_found_redis_down_can_be_tried_again(
    own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    lock = Lock(NAME)
    await lock.aacquire()
    own.stop()
    with pytest.raises(LockUnavailable):
        await lock.arelease()
    assert lock.token is not None
    own.start()
    await lock.arelease()
    assert lock.token is None


async def test_a_waiter_sits_out_a_restart_of_redis(
    kind: type[Lock], own: RedisServer, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock = kind(NAME, ttl=300)
    await lock.aacquire()
    waiting = actor().start(kind(NAME).aacquire)
    await aeventually(lambda: waiters(lock))
    own.stop()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    own.start()
    assert await asyncio.wait_for(waiting, GENEROUS) is True
    await aeventually(lambda: lock.lost)


# -- extend, reacquire, detach -----------------------------------------------------------------------------------------


async def test_extend_adds_to_the_lease_and_reacquire_resets_it(make: Make) -> None:
    lock = make(ttl=100)
    await lock.aacquire()
    assert await lock.aextend(50) is True
    assert 130 < lock.remaining() <= 150
    assert await lock.aextend(timedelta(seconds=20), replace_ttl=True) is True
    assert 10 < lock.remaining() <= 20
    assert await lock.areacquire() is True
    assert 80 < lock.remaining() <= 100
    info = await lock.ainfo()
    assert info is not None
    assert 80 < info.lease_left <= 100


async def test_what_needs_a_lock_that_is_held_says_so(make: Make, using: str) -> None:
    lock = make()
    calls: list[Callable[[], Awaitable[object]]] = [lambda: lock.aextend(1), lock.areacquire, lock.adetach]
    for call in calls:
        with pytest.raises(LockNotOwned) as caught:
            await call()
        assert not isinstance(caught.value, LockLost)
    await lock.aacquire()
    await get_backend(using).aexecute(("DEL", KEYS.lock))
    with pytest.raises(LockLost, match="gone from Redis"):
        await lock.aextend(1)
    for call in calls:
        with pytest.raises(LockLost):
            await call()


async def test_a_detached_lock_is_released_by_its_token_in_another_task(make: Make, actor: Callable[[], Actor]) -> None:
    task, lock = actor(), make()
    await lock.aacquire()
    token = await lock.adetach()
    assert (lock.token, lock.fence, lock.lost, lock.remaining()) == (None, None, False, 0.0)
    with pytest.raises(LockNotOwned):
        await lock.arelease()
    assert await task(make(token=token).aowned)
    await task(make(token=token).arelease)
    assert not await lock.alocked()


async def test_an_adopted_lock_is_renewed_by_the_task_that_adopted_it(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    task, lock = actor(), make(ttl=0.9)
    await lock.aacquire()
    begin, fence, token = monotonic(), lock.fence, await lock.adetach()
    adopted = make(token=token, ttl=0.9)
    assert await task(adopted.aacquire) is True
    await aeventually(lambda: monotonic() - begin > 2)

    async def state() -> tuple[bool, bool, int | None]:
        return await adopted.aowned(), adopted.lost, adopted.fence

    assert await task(state) == (True, False, fence)
    await task(adopted.arelease)
    assert not await lock.alocked()


async def test_a_token_that_does_not_hold_the_lock_cannot_release_it(make: Make) -> None:
    lock = make()
    await lock.aacquire()
    with pytest.raises(LockNotOwned):
        await make(token=TOKEN).arelease()
    assert not await make(token=TOKEN).aowned()
    assert await lock.aowned()


async def test_a_lock_that_was_handed_over_has_its_full_ttl_when_it_is_detached(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    async def take() -> str:
        lock = make(ttl=100)
        assert await lock.aacquire(blocking_timeout=GENEROUS)
        return await lock.adetach()

    lock = make()
    await lock.aacquire()
    waiting = actor().start(take)
    await aeventually(lambda: _waited(lock, 0.15))
    await lock.arelease()
    token = await asyncio.wait_for(waiting, GENEROUS)
    assert await make(token=token).aowned()
    info = await lock.ainfo()
    assert info is not None
    assert info.lease_left > 60  # a handoff's own lease is a third


async def _waited(lock: Lock, seconds: float) -> bool:
    """Whether the head of the queue has waited for so long."""
    info = await lock.ainfo()
    return info is not None and bool(info.queue) and info.queue[0].waited > seconds


# -- what a lock says about itself -------------------------------------------------------------------------------------


async def test_locked_is_about_anybody_and_owned_about_this_task(make: Make, actor: Callable[[], Actor]) -> None:
    lock, task = make(), actor()

    async def both() -> tuple[bool, bool]:
        return await lock.alocked(), await lock.aowned()

    assert await both() == (False, False)
    await lock.aacquire()
    assert await both() == (True, True)
    assert await task(both) == (True, False)
    assert await make(token=lock.token).aowned()
    await lock.arelease()
    assert await both() == (False, False)


async def test_owned_asks_redis(make: Make, using: str) -> None:
    lock, second = make(), make()
    await lock.aacquire()
    await get_backend(using).aexecute(("DEL", KEYS.lock))
    assert not await lock.aowned()
    assert await second.aacquire(blocking=False)
    assert (await lock.alocked(), await lock.aowned(), await second.aowned()) == (True, False, True)


async def test_remaining_lost_and_check_are_local_and_may_be_asked_in_a_coroutine(
    using: str, aeventually: AEventually
) -> None:
    lock = Lock(NAME, ttl=1, auto_renew=False, using=using)
    await lock.aacquire()
    assert 0 < lock.remaining() <= 1
    lock.check()
    await aeventually(lambda: lock.lost)
    with pytest.raises(LockLost, match="lease ended"):
        lock.check()


async def test_info_tells_which_task_holds_and_which_ones_wait(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock, tasks = make(ttl=100), [actor(), actor()]
    assert await lock.ainfo() is None
    await lock.aacquire()
    for number, task in enumerate(tasks, 1):
        task.task.set_name(f"waiting-{number}")
        task.start(make().aacquire)
        await aeventually(lambda number=number: _count(lock, number))
    info = await lock.ainfo()
    assert info is not None
    assert (info.name, info.fence, info.waiters) == (NAME, lock.fence, 2)
    assert re.fullmatch(rf"\S+:{os.getpid()}:MainThread/\S.*", info.owner)
    assert [one.owner.split("/")[-1] for one in info.queue] == ["waiting-1", "waiting-2"]


async def _count(lock: Lock, number: int) -> bool:
    return await waiters(lock) == number


# -- whose acquisition -------------------------------------------------------------------------------------------------

shared = Lock(NAME, blocking_timeout=GENEROUS)
fairly_shared = FairLock(NAME, blocking_timeout=GENEROUS)


@pytest.mark.parametrize("lock", [shared, fairly_shared], ids=["Lock", "FairLock"])
async def test_tasks_that_share_a_module_level_lock_exclude_each_other(lock: Lock) -> None:
    inside: list[int] = []
    worst: list[int] = []
    fences: list[int | None] = []

    async def sections() -> None:
        for _ in range(10):
            async with lock:
                inside.append(1)
                fences.append(lock.fence)
                await asyncio.sleep(0)  # let others run
                worst.append(len(inside))
                inside.pop()

    await asyncio.gather(*(sections() for _ in range(20)))
    assert worst == [1] * 200
    assert fences == sorted(set(fences))  # type: ignore[type-var]


async def test_one_object_shared_by_tasks_has_an_acquisition_per_task(make: Make, actor: Callable[[], Actor]) -> None:
    lock, task = make(), actor()

    async def mine() -> tuple[str | None, int | None]:
        return lock.token, lock.fence

    await lock.aacquire()
    token, fence = await mine()
    waiting = task.start(lambda: lock.aacquire(blocking_timeout=GENEROUS))
    assert await mine() == (token, fence)
    await lock.arelease()
    assert await asyncio.wait_for(waiting, GENEROUS)
    assert await mine() == (None, None)
    theirs = await task(mine)
    assert theirs[0] not in (None, token)
    assert theirs[1] > fence  # type: ignore[operator]


async def test_a_child_task_does_not_own_the_lock_of_its_parent(make: Make) -> None:
    lock = make()

    async def child() -> None:
        assert (lock.token, lock.fence, lock.remaining()) == (None, None, 0.0)
        assert not await lock.aowned()
        assert not await lock.aacquire(blocking=False)
        with pytest.raises(LockNotOwned):
            await lock.arelease()

    async with lock:
        await asyncio.create_task(child())
        assert await lock.aowned()


async def test_a_reentrant_lock_is_free_after_as_many_releases_as_acquires(make: Make) -> None:
    lock = make(reentrant=True)
    assert await lock.aacquire()
    token, fence = lock.token, lock.fence
    async with lock, make(reentrant=True) as inner:
        assert (lock.token, lock.fence) == (inner.token, inner.fence) == (token, fence)
    assert await lock.aowned()
    await lock.arelease()
    assert not await lock.alocked()
    with pytest.raises(LockNotOwned):
        await lock.arelease()


async def test_reentrance_does_not_cross_tasks(make: Make, actor: Callable[[], Actor]) -> None:
    async with make():
        assert not await actor()(lambda: make(reentrant=True).aacquire(blocking=False))


async def test_sync_code_of_a_task_uses_its_locks(make: Make) -> None:
    lock = make()

    def work() -> None:
        lock.check()
        assert lock.owned()
        assert lock.extend(1)
        lock.release()

    await lock.aacquire()
    await sync_to_async(work)()
    assert not await lock.alocked()
    with pytest.raises(LockNotOwned):
        await lock.arelease()


def test_coroutines_under_async_to_sync_use_the_locks_of_their_caller(make: Make) -> None:
    lock = make()

    async def work() -> None:
        lock.check()
        assert await lock.aowned()
        await lock.arelease()

    lock.acquire()
    async_to_sync(work)()
    assert not lock.locked()


def test_a_lock_that_was_acquired_under_async_to_sync_is_its_callers_and_renewed(
    kind: type[Lock], eventually: Eventually
) -> None:
    lock = kind(NAME, ttl=0.9)
    async_to_sync(lock.aacquire)()
    begin = monotonic()
    eventually(lambda: monotonic() - begin > 2)
    assert lock.owned()
    lock.release()


# -- order -------------------------------------------------------------------------------------------------------------


async def test_coroutines_get_a_fair_lock_in_the_order_in_which_they_asked(using: str) -> None:
    lock = FairLock(NAME, using=using)
    order: list[int] = []

    async def section(number: int) -> None:
        async with FairLock(NAME, blocking_timeout=GENEROUS, using=using):
            order.append(number)

    async with lock:
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(section(number)))
            while await waiters(lock) <= number:
                await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == list(range(20))


async def test_five_hundred_coroutines_wait_and_all_get_through(using: str, aeventually: AEventually) -> None:
    lock = FairLock(NAME, ttl=300, using=using)
    fences: list[int | None] = []

    async def section() -> None:
        async with FairLock(NAME, blocking_timeout=100, using=using) as mine:
            fences.append(mine.fence)

    async with lock:
        tasks = [asyncio.create_task(section()) for _ in range(500)]
        await aeventually(lambda: _count(lock, 500), within=60)
    await asyncio.gather(*tasks)
    assert len(fences) == 500
    assert fences == sorted(set(fences))  # type: ignore[type-var]


async def test_threads_and_coroutines_wait_for_one_lock_in_one_order(
    using: str, other: Callable[[], Other], actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock = FairLock(NAME, using=using)
    order: list[int] = []

    def thread(number: int) -> None:
        with FairLock(NAME, blocking_timeout=GENEROUS, using=using):
            order.append(number)

    async def coroutine(number: int) -> None:
        async with FairLock(NAME, blocking_timeout=GENEROUS, using=using):
            order.append(number)

    async with lock:
        threads: list[Future[None]] = []
        tasks: list[asyncio.Future[None]] = []
        for number in range(10):
            if number % 2:
                threads.append(other().start(lambda number=number: thread(number)))  # type: ignore[misc]
            else:
                tasks.append(actor().start(lambda number=number: coroutine(number)))  # type: ignore[misc]
            await aeventually(lambda number=number: _count(lock, number + 1))
    await asyncio.gather(*tasks, *(asyncio.wrap_future(future) for future in threads))
    assert order == list(range(10))


# -- signals -----------------------------------------------------------------------------------------------------------


async def test_acquire_and_release_send_signals_to_sync_receivers(make: Make, heard: Heard) -> None:
    async with make() as lock:
        fence = lock.fence
    assert [(which, facts["name"], facts["fence"]) for which, facts in heard] == [
        ("acquired", NAME, fence),
        ("released", NAME, fence),
    ]


async def test_signals_reach_coroutine_receivers_in_the_loop_of_the_lock(make: Make, using: str) -> None:
    heard: list[tuple[object, object]] = []

    async def receiver(*, name: str, **facts: object) -> None:
        await asyncio.sleep(0)
        heard.append((name, asyncio.get_running_loop()))

    signals = (lock_acquired, lock_released, lock_force_released)
    for sent in signals:
        sent.connect(receiver)
    try:
        async with make():
            pass
        lock = make()
        await lock.aacquire()
        await aforce_release(NAME, using=using)
    finally:
        for sent in signals:
            sent.disconnect(receiver)
    assert heard == [(NAME, asyncio.get_running_loop())] * 4


async def test_a_receiver_that_raises_breaks_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def receiver(**facts: object) -> None:
        raise ZeroDivisionError

    async def areceiver(**facts: object) -> None:
        raise ZeroDivisionError

    for one in (receiver, areceiver):
        lock_acquired.connect(one)
        lock_released.connect(one)
    try:
        async with make() as lock:
            assert await lock.aowned()
        assert not await lock.alocked()
    finally:
        for one in (receiver, areceiver):
            lock_acquired.disconnect(one)
            lock_released.disconnect(one)
    assert caplog.text.count("event=receiver-failed") == 4


async def test_a_task_that_is_cancelled_while_a_receiver_runs_holds_no_lock(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    reached = asyncio.Event()

    async def receiver(**facts: object) -> None:
        reached.set()
        await forever()

    task, lock = actor(), make()
    lock_acquired.connect(receiver)
    try:
        entering = task.start(lock.__aenter__)
        await asyncio.wait_for(reached.wait(), GENEROUS)
        assert await lock.alocked()
        task.task.cancel()
        await asyncio.wait([task.task])
    finally:
        lock_acquired.disconnect(receiver)
    assert entering.cancelled()
    await aeventually(lambda: _free(lock))


async def _free(lock: Lock) -> bool:
    return not await lock.alocked()


# -- cancellation ------------------------------------------------------------------------------------------------------


async def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_the_queue(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock, task = make(), actor()
    async with lock:
        task.start(make().aacquire)
        await aeventually(lambda: waiters(lock))
        await task.end()
        await aeventually(lambda: _count(lock, 0))
        assert await lock.aowned()
    assert not await lock.alocked()


async def test_a_wait_that_is_limited_from_outside_leaves_the_queue(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock = make()
    async with lock:
        with pytest.raises(asyncio.TimeoutError):
            await actor()(lambda: asyncio.wait_for(make().aacquire(), 0.2))
        await aeventually(lambda: _count(lock, 0))
    assert not await lock.alocked()


async def test_a_lock_that_is_granted_in_the_moment_of_the_cancellation_is_set_free(
    kind: type[Lock], network: Proxy, actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    async with kind("warm"):
        pass
    task = actor()
    answer = network.hold_answer(KEYS.lock)
    task.start(kind(NAME).aacquire)
    await aeventually(answer.caught.is_set)
    assert holder(client)
    await task.end()
    answer.let_go()
    await aeventually(lambda: holder(client) == "")


async def test_a_release_that_is_cancelled_is_finished_in_the_background(
    kind: type[Lock], network: Proxy, actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    lock, task = kind(NAME), actor()
    await task(lock.aacquire)
    request = network.hold_request(KEYS.lock)
    releasing = task.start(lock.arelease)
    await aeventually(request.caught.is_set)
    await task.end()
    assert releasing.cancelled()
    await aeventually(lambda: holder(client) == "")


async def test_a_handover_in_the_moment_of_the_cancellation_goes_to_the_next_one(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    lock, first, second = make(), actor(), actor()
    await lock.aacquire()
    first.start(lambda: make().aacquire(blocking_timeout=GENEROUS))
    await aeventually(lambda: _count(lock, 1))
    waiting = second.start(lambda: make().aacquire(blocking_timeout=GENEROUS))
    await aeventually(lambda: _count(lock, 2))
    await aeventually(lambda: _waited(lock, 0.15))
    first.task.cancel()
    await lock.arelease()
    assert await asyncio.wait_for(waiting, GENEROUS)


async def test_a_lock_in_an_asynchronous_generator_that_is_closed_is_set_free(
    make: Make, aeventually: AEventually
) -> None:
    lock = make()

    async def generator() -> AsyncIterator[int]:
        async with lock:
            yield 1

    steps = generator()
    async for _ in steps:
        assert await lock.alocked()
        break
    await steps.aclose()  # type: ignore[attr-defined]
    assert lock.token is None
    await aeventually(lambda: _free(lock))


def test_a_loop_that_ends_in_the_middle_of_a_block_leaves_a_lock_that_ends(
    kind: type[Lock], client: redis.Redis, eventually: Eventually
) -> None:
    held = threading.Event()

    async def hold() -> None:
        async with kind(NAME, ttl=0.9):
            held.set()
            await forever()

    async def main() -> None:
        task = asyncio.create_task(hold())
        while not held.is_set():
            await asyncio.sleep(0)
        assert holder(client)
        assert not task.done()

    asyncio.run(main())  # which cancels what still runs
    eventually(lambda: holder(client) == "")


def test_a_wake_for_a_coroutine_whose_loop_has_ended_is_nobodys() -> None:
    loop = asyncio.new_event_loop()
    ears = get_listener(get_backend())
    gone, alive = ears.register(NAME, TOKEN, loop), ears.register(NAME, "another-token-of-22-chars")
    try:
        loop.close()
        ears.tell_all()
        assert alive.told
    finally:
        ears.unregister(gone)
        ears.unregister(alive)


async def test_a_generator_that_another_task_closes_does_not_take_the_lock_from_its_task(
    make: Make, actor: Callable[[], Actor]
) -> None:
    lock = make()

    async def generator() -> AsyncIterator[int]:
        async with lock:
            yield 1

    steps = generator()
    async for _ in steps:
        break
    await actor()(steps.aclose)  # type: ignore[attr-defined]
    assert await lock.aowned()


# -- renewal -----------------------------------------------------------------------------------------------------------


async def test_the_lock_is_renewed_while_the_event_loop_is_blocked_for_longer_than_its_ttl(
    make: Make, eventually: Eventually
) -> None:
    async with make(ttl=0.9) as lock:
        begin = monotonic()
        eventually(lambda: monotonic() - begin > 2)  # blocks
        assert not lock.lost
        assert await lock.aowned()


async def test_the_lock_of_a_task_that_ended_is_not_renewed_and_a_warning_says_so(
    make: Make, actor: Callable[[], Actor], aeventually: AEventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock, task = make(ttl=3), actor()
    await task(lock.aacquire)
    await task.end()
    await aeventually(lambda: "event=owner-ended" in caplog.text)
    await aeventually(lambda: _free(lock))


async def test_the_lock_of_a_task_that_nobody_remembers_is_not_renewed(
    make: Make, aeventually: AEventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = make(ttl=3)
    await asyncio.create_task(lock.aacquire())
    gc.collect()
    await aeventually(lambda: "event=owner-ended" in caplog.text)
    await aeventually(lambda: _free(lock))


@pytest.mark.parametrize("on_lost", [None, "cancel"])
async def test_the_lock_of_a_task_that_was_forgotten_in_its_section_is_not_renewed(
    on_lost: Any, make: Make, aeventually: AEventually
) -> None:
    inside = asyncio.Event()
    lock = make(ttl=0.9, on_lost=on_lost)

    async def hold() -> None:
        async with lock:
            inside.set()
            await asyncio.get_running_loop().create_future()

    asyncio.create_task(hold())  # noqa: RUF006
    await asyncio.wait_for(inside.wait(), GENEROUS)
    gc.collect()
    await aeventually(lambda: _free(lock))


def test_the_lock_of_a_task_whose_loop_was_closed_over_it_is_not_renewed(
    kind: type[Lock], client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def hold() -> None:
        async with kind(NAME, ttl=3):
            inside.set_result(None)
            await forever()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        inside = loop.create_future()
        task = loop.create_task(hold())
        loop.run_until_complete(inside)
        loop.run_until_complete(get_backend()._loops[loop].drop_idle())
    finally:
        loop.close()
    eventually(lambda: "event=owner-ended" in caplog.text)
    eventually(lambda: holder(client) == "")
    assert not task.done()


# -- on_lost -----------------------------------------------------------------------------------------------------------


async def test_a_plain_function_is_told_of_the_loss(make: Make, aeventually: AEventually) -> None:
    losses: list[LockLost] = []
    lock = make(ttl=0.3, auto_renew=False, on_lost=losses.append)
    await lock.aacquire()
    await aeventually(lambda: losses)
    assert losses[0].fence == lock.fence
    with pytest.raises(LockLost):
        await lock.arelease()
    assert len(losses) == 1


def test_a_coroutine_function_cannot_be_told() -> None:
    async def on_lost(error: LockLost) -> None: ...

    with pytest.raises(TypeError, match="on_lost must be a plain function, 'cancel' or None"):
        Lock(NAME, on_lost=on_lost)


def short(make: Make, name: str = NAME, **options: Any) -> Lock:
    """A lock that is lost soon."""
    return make(name, ttl=0.3, auto_renew=False, **options)


async def test_the_task_that_holds_a_lost_lock_is_cancelled_and_async_with_raises_lock_lost(make: Make) -> None:
    lock, fences = short(make, on_lost="cancel"), []

    async def hold() -> None:
        async with lock:
            try:
                await forever()
            except asyncio.CancelledError:
                fences.append(lock.fence)
                raise

    with pytest.raises(LockLost) as caught:
        await hold()
    assert caught.value.name == NAME
    assert fences == [caught.value.fence]
    assert cancellations() == 0
    assert lock.token is None
    await asyncio.sleep(0)  # nothing follows


async def test_a_forced_release_cancels_the_holder(make: Make, using: str, actor: Callable[[], Actor]) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with make(ttl=0.9, on_lost="cancel"):
            inside.set()
            await forever()

    holding = actor().start(hold)
    await asyncio.wait_for(inside.wait(), GENEROUS)
    await aforce_release(NAME, using=using)
    with pytest.raises(LockLost):
        await asyncio.wait_for(holding, GENEROUS)


@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_from_outside_at_the_same_time_is_not_swallowed(
    first: str, make: Make, actor: Callable[[], Actor], told: Callable[[], None]
) -> None:
    async def hold() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        async with short(make, on_lost="cancel"):
            if first == "cancellation":
                loop.call_soon(task.cancel)
            told()
            if first == "loss":
                loop.call_soon(task.cancel)
            await forever()

    holding = actor()
    result = holding.start(hold)
    await asyncio.wait([result], timeout=GENEROUS)
    if hasattr(asyncio.Task, "uncancel"):
        assert result.cancelled()
    else:  # Python 3.10 does not count who wants the end of a task
        assert isinstance(result.exception(), LockLost)


async def test_the_loss_of_the_outer_of_two_locks_releases_the_inner_one_and_names_the_outer_one(make: Make) -> None:
    inner = make("inner", on_lost="cancel")
    with pytest.raises(LockLost) as caught:
        async with short(make, "outer", on_lost="cancel"), inner:
            await forever()
    assert caught.value.name == "outer"
    assert not await inner.alocked()
    assert cancellations() == 0


async def test_the_loss_of_the_inner_of_two_locks_releases_the_outer_one_and_names_the_inner_one(make: Make) -> None:
    outer = make("outer", on_lost="cancel")
    with pytest.raises(LockLost) as caught:
        async with outer, short(make, "inner", on_lost="cancel"):
            await forever()
    assert caught.value.name == "inner"
    assert not await outer.alocked()
    assert cancellations() == 0


async def test_the_loss_of_both_of_two_locks_ends_in_one_lock_lost(make: Make, eventually: Eventually) -> None:
    async def hold() -> None:
        async with short(make, "outer", on_lost="cancel") as outer, short(make, "inner", on_lost="cancel") as inner:
            eventually(lambda: outer.lost and inner.lost)
            await forever()

    with pytest.raises(LockLost):
        await hold()
    assert cancellations() == 0


async def test_the_loss_of_a_reentrant_lock_ends_all_its_blocks(make: Make) -> None:
    with pytest.raises(LockLost):
        async with short(make, on_lost="cancel", reentrant=True) as lock, lock:
            await forever()
    assert lock.token is None
    assert cancellations() == 0


async def test_a_loss_after_the_block_has_ended_cancels_nobody(
    make: Make, told: Callable[[], None], using: str
) -> None:
    lock = short(make, on_lost="cancel")
    with pytest.raises(LockLost):
        async with lock:
            told()  # the news is on its way through a loop that has no time for it
    await asyncio.sleep(0.01)
    assert cancellations() == 0
    async with lock:
        pass
    await asyncio.sleep(0.5)
    assert cancellations() == 0


async def test_a_loss_that_is_on_its_way_when_the_section_is_closed_cancels_nobody(
    make: Make, told: Callable[[], None]
) -> None:
    async def generator() -> AsyncIterator[int]:
        async with short(make, on_lost="cancel"):
            yield 1

    steps = generator()
    await steps.__anext__()
    told()
    await steps.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    assert cancellations() == 0


async def test_a_slow_receiver_of_the_signal_does_not_put_the_cancellation_off(make: Make) -> None:
    gate = threading.Event()

    def slow(**facts: object) -> None:
        gate.wait(2 * GENEROUS)

    lock_lost.connect(slow)
    try:
        with pytest.raises(LockLost):
            async with short(make, on_lost="cancel"):
                await forever()
    finally:
        lock_lost.disconnect(slow)
        gate.set()


async def test_a_loss_that_the_release_finds_out_is_told_to_coroutines_as_well(
    make: Make, using: str, aeventually: AEventually
) -> None:
    told: list[object] = []

    async def receive(*, name: str, **facts: object) -> None:
        told.append(name)

    lock = make(on_lost=told.append)
    lock_lost.connect(receive)
    try:
        await lock.aacquire()
        await get_backend(using).aexecute(("DEL", KEYS.lock))
        with pytest.raises(LockLost) as caught:
            await lock.arelease()
        await aeventually(lambda: len(told) == 2)
    finally:
        lock_lost.disconnect(receive)
    assert told[0] == NAME
    assert str(told[1]) == str(caught.value)


async def test_a_body_that_catches_the_cancellation_learns_of_the_loss_at_its_end(make: Make) -> None:
    went_on = []

    async def hold() -> None:
        async with short(make, on_lost="cancel"):
            try:
                await forever()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                went_on.append(True)

    with pytest.raises(LockLost):
        await hold()
    assert went_on
    assert cancellations() == 0


async def test_a_body_that_turns_the_cancellation_into_an_error_of_its_own_raises_that(make: Make) -> None:
    async def hold() -> None:
        async with short(make, on_lost="cancel"):
            try:
                await forever()
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await hold()
    assert cancellations() == 0


async def test_an_acquire_without_async_with_is_cancelled_as_well_and_its_release_raises_lock_lost(make: Make) -> None:
    async def hold() -> None:
        lock = short(make, on_lost="cancel")
        await lock.aacquire()
        try:
            await forever()
        finally:
            await lock.arelease()

    with pytest.raises(LockLost) as caught:
        await hold()
    assert isinstance(caught.value.__context__, asyncio.CancelledError)
    assert cancellations() == 0  # else the next TaskGroup would cancel the task again


async def test_a_release_takes_back_its_own_cancellation_and_nobody_elses(
    make: Make, actor: Callable[[], Actor]
) -> None:
    async def hold() -> int:
        task = asyncio.current_task()
        assert task is not None
        lock = short(make, on_lost="cancel")
        await lock.aacquire()
        with pytest.raises(asyncio.CancelledError):
            await forever()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forever()
        with pytest.raises(LockLost):
            await lock.arelease()
        return cancellations()

    assert await actor()(hold) == (1 if hasattr(asyncio.Task, "uncancel") else 0)


async def test_a_released_lock_leaves_its_task_alone(make: Make) -> None:
    lock = make(on_lost="cancel")
    await lock.aacquire()
    await lock.arelease()
    async with lock:
        pass
    assert cancellations() == 0


def test_a_holder_whose_loop_is_gone_is_not_cancelled(
    kind: type[Lock], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    lock = kind(NAME, ttl=0.3, auto_renew=False, on_lost="cancel")
    try:
        task = loop.create_task(lock.aacquire())
        loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    eventually(lambda: "event=lost" in caplog.text)
    eventually(lambda: not any(thread.name == "redislock-lost" for thread in threading.enumerate()))
    assert "on-lost-failed" not in caplog.text


def test_sync_code_cannot_be_cancelled_and_is_told_so_before_anything_is_sent(own: RedisServer) -> None:
    lock = Lock(NAME, on_lost="cancel")
    own.stop()
    with pytest.raises(TypeError, match=r"cancels the task.*aacquire\(\) or async with"):
        lock.acquire()
    with pytest.raises(TypeError, match="cancels the task"), lock:
        raise AssertionError("not reached")


# -- sync calls in a coroutine -----------------------------------------------------------------------------------------


def enter(lock: Lock) -> None:
    with lock:
        raise AssertionError("not reached")


@pytest.mark.parametrize(
    ("twin", "call"),
    [
        ("aacquire", lambda lock: lock.acquire()),
        ("aacquire", enter),
        ("arelease", lambda lock: lock.release()),
        ("arelease", lambda lock: lock.__exit__(None, None, None)),
        ("aextend", lambda lock: lock.extend(1)),
        ("areacquire", lambda lock: lock.reacquire()),
        ("alocked", lambda lock: lock.locked()),
        ("aowned", lambda lock: lock.owned()),
        ("ainfo", lambda lock: lock.info()),
        ("adetach", lambda lock: lock.detach()),
        ("alist_locks", lambda lock: list_locks()),
        ("aget_lock", lambda lock: get_lock(NAME)),
        ("aforce_release", lambda lock: force_release(NAME)),
    ],
)
async def test_a_sync_call_in_a_coroutine_names_its_twin_and_does_nothing(
    twin: str, call: Callable[[Lock], object], make: Make
) -> None:
    lock = make()
    with pytest.raises(SynchronousOnlyOperation, match=rf"Await {twin}\(\) instead"):
        call(lock)
    await lock.aacquire()
    with pytest.raises(SynchronousOnlyOperation, match=rf"Await {twin}\(\) instead"):
        call(lock)
    assert await lock.aowned()


async def test_sync_calls_in_a_coroutine_are_allowed_where_django_allows_its_own(
    make: Make, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    lock = make()
    with lock:
        assert lock.owned()
        assert lock.extend(1)
        assert [info.name for info in list_locks(using=using)] == [NAME]
    assert not lock.locked()
    assert lock.acquire()
    await lock.arelease()
    assert get_lock(NAME, using=using) is None


# -- from outside ------------------------------------------------------------------------------------------------------


async def test_the_held_locks_are_listed_by_name(make: Make, using: str) -> None:
    assert await alist_locks(using=using) == []
    async with make("order:2") as second, make("order:1") as first, make("seat:1"):
        found = await alist_locks(using=using)
        assert [info.name for info in found] == ["order:1", "order:2", "seat:1"]
        assert [info.fence for info in found[:2]] == [first.fence, second.fence]
        assert [info.name for info in await alist_locks("order:*", using=using)] == ["order:1", "order:2"]
    assert await alist_locks(using=using) == []


async def test_a_lock_is_looked_at_by_its_name(make: Make, using: str) -> None:
    assert await aget_lock(NAME, using=using) is None
    async with make() as lock:
        info = await aget_lock(NAME, using=using)
        assert info is not None
        assert info.fence == lock.fence


async def test_a_forced_release_sets_the_lock_free_and_hands_it_on(
    make: Make, using: str, actor: Callable[[], Actor], aeventually: AEventually, heard: Heard
) -> None:
    assert await aforce_release(NAME, using=using) is None
    lock = make()
    await lock.aacquire()
    waiting = actor().start(make().aacquire)
    await aeventually(lambda: waiters(lock))
    set_free = await aforce_release(NAME, using=using, by="the test")
    assert set_free is not None
    assert set_free.fence == lock.fence
    assert await asyncio.wait_for(waiting, GENEROUS)
    assert ("force", {"name": NAME, "by": "the test"}) in heard
    await aeventually(lambda: lock.lost)
    with pytest.raises(LockLost):
        await lock.arelease()


@pytest.mark.parametrize("call", [aget_lock, aforce_release])
async def test_a_name_that_cannot_be_one_is_refused(call: Callable[[str], Awaitable[object]]) -> None:
    with pytest.raises(ValueError, match="name"):
        await call("")
