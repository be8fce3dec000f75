"""Attempts at a lock whose requests, answers and wakes come late, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockUnavailable, force_release
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, Other
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, TOKEN, WAITERS, holder, queued, value
from tests.helpers.ways import stopped
from tests.inside import limit, listener, pending_releases

Eventually = Callable[..., Any]

ACQUIRE = inside.ACQUIRE


@pytest.fixture
def far_ears(far: Proxy, eventually: Eventually) -> Any:
    """The listener of the alias ``far``, which receives messages through the proxy before anything else happens."""
    with Lock("warm-up", using="far"):
        pass
    ears = listener("far")
    ears.start()
    eventually(lambda: ears.ready)
    return ears


def in_queue(client: redis.Redis) -> Any:
    """Ids and tickets, in order."""
    return client.zrange(QUEUE, 0, -1, withscores=True)


def first_id(client: redis.Redis, eventually: Eventually) -> str:
    """The id of the first waiter, as soon as there is one."""
    ((id, _), *_) = eventually(lambda: in_queue(client))
    return str(id.decode())


# -- whom it waits for -------------------------------------------------------------------------------------------------


@pytest.mark.complete
def test_a_long_waiter_asks_itself_if_the_one_that_asks_for_all_gets_no_answer(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    crowd()(Lock(NAME, ttl=600), "acquire")
    with override_settings(REDISLOCK={"SLOW_WAIT": 2}):
        crowd().start(Lock(NAME, using="far"), "acquire")
        id = first_id(client, eventually)
        group = eventually(lambda: listener("far").waiters.get(id)).group
        group.asks_until = end = monotonic() + 3
        eventually(lambda: "event=still-waiting" in caplog.text)
        assert monotonic() >= end


# -- late answers ------------------------------------------------------------------------------------------------------


def test_three_grants_that_come_after_their_own_lease_are_reported(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    me = crowd()
    me(Lock("warm-up", using="far"), "locked")
    with Lock("warm-up"):
        pass  # the script is known
    late = far.delay_answer(ACQUIRE, 0.1, times=3)
    with pytest.raises(
        LockUnavailable, match=r"'order:42': Redis takes longer to respond than the TTL of the lock \(0\.05"
    ) as caught:
        me(Lock(NAME, ttl=0.05, using="far"), "acquire", blocking=False)
    assert (caught.value.name, late.met) == (NAME, 3)
    eventually(lambda: not client.exists(LOCK))


def test_a_grant_that_comes_after_its_own_lease_is_asked_for_again(crowd: Crowd, far: Proxy) -> None:
    me = crowd()
    me(Lock("warm-up", using="far"), "locked")
    with Lock("warm-up"):
        pass  # the script is known
    late = far.delay_answer(ACQUIRE, 0.8, times=2)
    lock = Lock(NAME, ttl=0.75, using="far")
    assert me(lock, "acquire", blocking_timeout=GENEROUS)
    assert late.met == 2
    assert not me.read(lambda: lock.lost)


def test_an_acquisition_with_a_deadline_ends_in_time_even_if_redis_hangs(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(30)
    me, lock = crowd(), Lock(NAME)
    me(lock, "locked")
    with stopped(own):
        began = monotonic()
        with pytest.raises(LockUnavailable):
            me(lock, "acquire", blocking_timeout=0.5)
        assert monotonic() - began < 0.5 + 1 + 2  # two for a busy machine


@pytest.mark.complete
def test_a_waiter_with_a_deadline_leaves_in_time_even_if_redis_hangs(
    crowd: Crowd, own: RedisServer, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    retry_for(30)
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    with own.client() as client:
        began = monotonic()
        waiting = you.start(Lock(NAME), "acquire", blocking_timeout=1.5)
        eventually(lambda: queued(client))
        with stopped(own):
            assert waiting.result(1.5 + 1 + 3) is False
            assert monotonic() - began >= 1.5
        eventually(lambda: not queued(client))


# -- late wakes --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_a_wake_that_comes_after_the_lease_that_it_tells_of_is_not_believed(
    crowd: Crowd, far: Proxy, far_ears: Any, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    lock.acquire()
    waiter = Lock(NAME, ttl=1.5, auto_renew=False, using="far")
    waiting = me.start(waiter, "acquire")
    late = far.hold_message(f"g {first_id(client, eventually)}")
    lock.release()
    handed = int(value(client)[3])
    eventually(lambda: not value(client))
    late.let_go()
    assert waiting.result(GENEROUS) is True
    assert late.over.wait(GENEROUS)
    assert me.read(lambda: waiter.fence) > handed


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_a_wake_that_came_before_a_look_that_found_somebody_else_is_not_believed(
    crowd: Crowd, far: Proxy, far_ears: Any, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock, waiter = crowd(), Lock(NAME, ttl=600), Lock(NAME, ttl=600, using="far")
    lock.acquire()
    waiting = me.start(waiter, "acquire")
    id = first_id(client, eventually)
    look = far.hold_request(id)
    far_ears.tell_all()
    assert look.caught.wait(GENEROUS)
    lock.release()
    eventually(lambda: far_ears.waiters.get(id).grant)
    force_release(NAME)
    lock.acquire()
    look.let_go()
    eventually(lambda: queued(client))
    eventually(lambda: far_ears.waiters.get(id).grant is None)
    fence = lock.fence
    assert fence is not None
    lock.release()
    assert waiting.result(GENEROUS)
    assert me.read(lambda: waiter.fence) > fence


@pytest.mark.complete
@pytest.mark.parametrize(("late", "suspected"), [(0.2, False), (1.3, True)])
def test_a_connection_is_suspected_when_a_wake_is_overdue_not_when_it_may_be_on_its_way(
    late: float,
    suspected: bool,
    crowd: Crowd,
    far: Proxy,
    far_ears: Any,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # cutting a working connection costs all waiters of the process their places until it has reconnected
    limit(monkeypatch, look_every=late)
    limit(monkeypatch, look_jitter=0.0)
    if suspected:
        monkeypatch.setattr("django_redislock.engine.acquiring.wait_loop.LOOK_LATE", float(GENEROUS))
    before, me, lock = far_ears.generation, crowd(), Lock(NAME, ttl=600)
    lock.acquire()
    waiting = me.start(Lock(NAME, ttl=600, using="far"), "acquire")
    id = first_id(client, eventually)
    far.swallow_message(f"g {id}")
    waiter = far_ears.waiters.get(id)
    due = waiter.group.due
    eventually(lambda: waiter.group.due != due)  # it has just looked
    lock.release()
    assert waiting.result(GENEROUS) is True
    if suspected:
        eventually(lambda: far_ears.generation > before)
    else:
        assert far_ears.generation == before
        assert far_ears.ready


# -- waiters that were dropped -----------------------------------------------------------------------------------------


def test_a_waiter_that_was_dropped_lets_the_others_of_its_process_look(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    waiting = []
    for number in range(3):
        you, another = crowd(), Lock(NAME, blocking_timeout=10 * GENEROUS)
        waiting.append((you, another, you.start(another, "acquire")))
        eventually(lambda number=number: queued(client) == number + 1)
    before = in_queue(client)
    client.delete(QUEUE, WAITERS)
    eventually(lambda: client.zcard(QUEUE) == 3)
    assert in_queue(client) == before
    assert not any(future.done() for _, _, future in waiting)
    me(lock, "release")
    for you, another, future in waiting:
        assert future.result(GENEROUS)
        assert you(another, "owned")
        you(another, "release")


def test_a_coroutine_that_is_woken_after_its_lease_brings_the_others_of_its_process_back_into_the_queue(
    ghost: Callable[..., Ghost], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R4: its event loop was blocked, which made the process suspect, although the listener received the wake in
    time."""

    async def section() -> bool:
        async with Lock(NAME, ttl=0.5, blocking_timeout=60):
            return True

    rival, blocked = ghost(alive=True), threading.Event()
    first, second = "x" * 22, "y" * 22
    assert rival.queue(first, name=NAME).state == inside.GRANTED
    loop = asyncio.new_event_loop()
    coroutine = other().start(lambda: loop.run_until_complete(section()))
    eventually(lambda: queued(client) == 1)
    waiting = other().start(Lock(NAME, blocking_timeout=60).acquire)
    eventually(lambda: queued(client) == 2)
    ids = [id for id, _ in in_queue(client)]
    rival.queue(second, name=NAME)
    loop.call_soon_threadsafe(blocked.wait)
    try:
        rival.release(rival.request(first, name=NAME))
        assert holder(client) == ids[0].decode()
        eventually(lambda: not holder(client))
        # the lease of its handoff has ended without a sign of life
        assert rival.queue(second, name=NAME).state == inside.GRANTED
        assert in_queue(client) == []
    finally:
        blocked.set()
    eventually(lambda: [id for id, _ in in_queue(client)] == ids)
    rival.release(rival.request(second, name=NAME))
    assert coroutine.result(GENEROUS)
    assert waiting.result(GENEROUS)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_two_attempts_with_one_token_are_two_waiters(crowd: Crowd, client: redis.Redis, eventually: Eventually) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600)
    lock.acquire()
    first, second = Lock(NAME, token=TOKEN), Lock(NAME, token=TOKEN)
    waiting = me.start(first, "acquire", blocking_timeout=10 * GENEROUS)
    eventually(lambda: queued(client) == 1)
    behind = you.start(second, "acquire", blocking_timeout=10 * GENEROUS)
    eventually(lambda: queued(client) == 2)
    lock.release()
    assert waiting.result(GENEROUS)
    assert not behind.done()
    me(first, "release")
    assert behind.result(GENEROUS)
    you(second, "release")


def test_an_adoption_that_fails_leaves_the_detached_lock_to_be_adopted(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    token = me(lock, "detach")
    lost = far.lose_answer(ACQUIRE, times=1000)
    with pytest.raises(LockUnavailable):
        me(Lock(NAME, token=token, using="far"), "acquire")
    assert lost.met
    lost.end()
    eventually(lambda: not pending_releases())
    adopted = Lock(NAME, token=token)
    assert me(adopted, "acquire", blocking=False)
    assert me.read(lambda: adopted.fence) == fence
