"""Attempts at a lock whose requests, answers and wakes come late, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockUnavailable, force_release
from redisserver import RedisServer, redis_server
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, Other
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, queued
from tests.helpers.ways import stopped
from tests.inside import hears, limit, listen, looks_due, subscriptions

Eventually = Callable[..., Any]


@pytest.fixture
def hearing(far: Proxy, eventually: Eventually) -> None:
    """The alias ``far`` is subscribed."""
    listen("far")
    eventually(lambda: hears("far"))


def in_queue(client: redis.Redis) -> Any:
    """Ids and tickets, in order."""
    return client.zrange(QUEUE, 0, -1, withscores=True)


def first_id(client: redis.Redis, eventually: Eventually) -> str:
    """The id of the first waiter, as soon as there is one."""
    ((id, _), *_) = eventually(lambda: in_queue(client))
    return str(id.decode())


# -- late answers ------------------------------------------------------------------------------------------------------


@pytest.mark.complete
def test_a_long_waiter_asks_itself_who_the_holder_is_if_the_one_that_asks_for_all_gets_no_answer(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    unanswered = far.hold_answer(inside.INFO)
    with override_settings(REDISLOCK={"SLOW_WAIT": 0.5}):
        waiting = []
        for number in (1, 2):
            waiting.append(crowd().start(Lock(NAME, using="far", ttl=1), "acquire"))
            eventually(lambda number=number: queued(client) == number)
        assert unanswered.caught.wait(GENEROUS)
        eventually(lambda: caplog.text.count("event=still-waiting") == 1)
    unanswered.let_go()
    me(lock, "release")
    eventually(lambda: [force_release(NAME)] and all(future.done() for future in waiting))


def test_three_grants_that_come_after_their_own_lease_are_reported(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    me = crowd()
    me(Lock("warm-up", using="far"), "locked")
    with Lock("warm-up"):
        pass  # the script is known
    late = far.delay_answer(inside.ACQUIRE, 0.1, times=3)
    with pytest.raises(
        LockUnavailable, match=r"'order:42': Redis takes longer to respond than the TTL of the lock \(0\.05"
    ) as caught:
        me(Lock(NAME, ttl=0.05, using="far"), "acquire", blocking=False)
    assert (caught.value.name, late.met) == (NAME, 3)
    eventually(lambda: not client.exists(LOCK))


@pytest.mark.complete
@pytest.mark.parametrize("waits", [False, True], ids=["its first request", "it waits already"])
def test_an_attempt_with_a_deadline_ends_in_time_even_if_redis_hangs(
    waits: bool, crowd: Crowd, own: RedisServer, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    retry_for(30)
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire" if waits else "locked")
    you(lock, "locked")
    with own.client() as client:
        began = monotonic()
        attempt = you.start(Lock(NAME), "acquire", blocking_timeout=1.5) if waits else None
        eventually(lambda: not waits or queued(client))
        with stopped(own):
            if attempt is not None:
                assert attempt.result(1.5 + 1 + 3) is False  # three for a busy machine
                assert monotonic() - began >= 1.5
            else:
                with pytest.raises(LockUnavailable):
                    you.start(lock, "acquire", blocking_timeout=0.5).result(0.5 + 1 + 3)
        eventually(lambda: not queued(client))


# -- late wakes --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_look_by_the_clock", "hearing")
def test_a_wake_that_came_before_a_look_that_found_somebody_else_is_not_believed(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock, waiter = crowd(), Lock(NAME, ttl=600), Lock(NAME, ttl=600, using="far")
    lock.acquire()
    waiting = me.start(waiter, "acquire")
    look = far.hold_request(first_id(client, eventually))
    inside.all_look("far")
    assert look.caught.wait(GENEROUS)
    lock.release()
    eventually(lambda: looks_due("far"))  # it was granted the lock
    force_release(NAME)
    lock.acquire()
    look.let_go()
    eventually(lambda: queued(client) and not looks_due("far"))
    fence = lock.fence
    lock.release()
    assert waiting.result(GENEROUS)
    assert me.read(lambda: waiter.fence) > fence


@pytest.mark.complete
@pytest.mark.usefixtures("hearing")
def test_a_connection_is_not_suspected_when_a_wake_may_be_on_its_way(
    crowd: Crowd, far: Proxy, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cutting a working connection costs all waiters of the process their places until it has reconnected."""
    limit(monkeypatch, look_every=0.2, look_jitter=0.0)
    before, me, lock = subscriptions("far"), crowd(), Lock(NAME, ttl=600)
    lock.acquire()
    waiting = me.start(Lock(NAME, ttl=600, using="far"), "acquire")
    id = first_id(client, eventually)
    far.swallow_message(f"g {id}")
    look = far.delay_answer(id, 0)
    assert look.over.wait(GENEROUS)  # it has just looked
    lock.release()
    assert waiting.result(GENEROUS) is True
    assert hears("far")
    assert subscriptions("far") == before


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
        you(another, "release")


def test_the_next_waiter_of_a_process_takes_over_the_looks_of_one_that_leaves(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.REDISLOCK = {"SLOW_WAIT": None}  # or that would wake it
    limit(monkeypatch, look_every=0.3)
    Lock(NAME, ttl=600).acquire()
    leaves = crowd().start(Lock(NAME), "acquire", blocking_timeout=1)
    eventually(lambda: queued(client) == 1)
    stays = crowd().start(Lock(NAME), "acquire")
    eventually(lambda: queued(client) == 2)
    assert not leaves.result(GENEROUS)
    client.delete(LOCK)  # of which nobody is told
    assert stays.result(GENEROUS)


def test_a_coroutine_that_is_woken_after_its_lease_brings_the_others_of_its_process_back_into_the_queue(
    ghost: Callable[..., Ghost], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R4: its event loop was blocked, which made the process suspect, although it was told of the wake in time."""

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
        eventually(lambda: not holder(client))  # the lease of its handoff ends without a sign of life
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


# -- a master that is demoted by hand ----------------------------------------------------------------------------------


@pytest.fixture
def switch(settings: Any, eventually: Eventually) -> Iterator[Callable[[], Proxy]]:
    """Demotes the master behind the alias ``far``, to which connections stay open; ``near`` is the new one."""
    with redis_server() as first, redis_server() as second, first.client() as old, second.client() as new:
        old.config_set("repl-diskless-sync-delay", 0)
        new.replicaof("127.0.0.1", str(first.port))
        eventually(lambda: new.info("replication")["master_link_status"] == "up")
        with proxy(first.port) as address:
            default = settings.CACHES["default"]
            far, near = {**default, "LOCATION": address.url}, {**default, "LOCATION": second.url}
            settings.CACHES = {**settings.CACHES, "far": far, "near": near}

            def switch() -> Proxy:
                old.set("latest", "write")
                assert old.wait(1, round(GENEROUS * 1000)) == 1
                new.replicaof("NO", "ONE")
                address.target = second.port
                old.replicaof("127.0.0.1", str(second.port))
                return address

            yield switch
            settings.CACHES = {**settings.CACHES}


def test_leases_are_renewed_at_the_new_master(switch: Callable[[], Proxy], eventually: Eventually) -> None:
    def renewed() -> bool:
        end = inside.ends(lock)
        return bool(eventually(lambda: lock.lost or inside.ends(lock) > end))

    lock = Lock(NAME, ttl=3, using="far")
    lock.acquire()
    assert renewed()  # its connection is kept
    switch()
    for _ in range(2):
        assert renewed()
    assert not lock.lost
    assert Lock(NAME, using="near").locked()
    lock.release()


@pytest.mark.parametrize("answered", [True, False], ids=["", "the first question fails"])
def test_a_waiter_that_the_new_master_does_not_count_queues_again(
    answered: bool,
    switch: Callable[[], Proxy],
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    retry_for: Callable[[float], None],
) -> None:
    """R19: a waiter subscribed at the old master is dropped by every release at the new one, and would wait for
    ever."""
    limit(monkeypatch, look_every=0.5)
    retry_for(0)
    listen("far")
    eventually(lambda: hears("far"))
    before, address = subscriptions("far"), switch()
    unanswered = address.lose_answer("SHARDNUMSUB", times=0 if answered else 1000)
    held = Lock(NAME, using="near")
    person = other()
    person(held.acquire)
    waiting = other().start(Lock(NAME, using="far").acquire)

    def wait(number: int) -> None:
        eventually(lambda: (info := held.info()) is not None and info.waiters == number)

    wait(1)
    for _ in range(2 - answered):
        next_one = other()
        taken = next_one.start(held.acquire)
        wait(2)
        person(held.release)  # drops the first one, and is never free
        assert taken.result(GENEROUS)
        person = next_one
        wait(1)
        if not answered:
            assert unanswered.caught.wait(GENEROUS)
            assert address.delay_answer(inside.ACQUIRE, 0).over.wait(GENEROUS)  # it goes on, and looks again
            unanswered.end()
    eventually(lambda: hears("far") and subscriptions("far") > before)
    wait(1)
    person(held.release)
    assert waiting.result(GENEROUS)
