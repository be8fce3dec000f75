"""Attempts at a lock whose answers and wakes come late, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockError, LockUnavailable, force_release, listener, scripts
from django_redislock.connection import get_backend
from django_redislock.steps import run
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, TOKEN, Ghost, Other, holder, queued
from .proxy import Proxy, proxy

Eventually = Callable[..., Any]
Settings = Any

ACQUIRE = scripts._ACQUIRE.sha


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    """A proxy before the server; the alias ``far`` goes through it."""
    with proxy(server.port) as running:
        options = {"SOCKET_TIMEOUT": 1}
        far = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": running.url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "far": far}
        with Lock("warm-up", using="far"):
            pass
        yield running


@pytest.fixture
def listening(network: Proxy, eventually: Eventually) -> None:
    """Messages are heard through the proxy before anything else happens."""
    ears = listener.get_listener(get_backend("far"))
    ears.start()
    eventually(lambda: ears.ready)


def queue_of(client: redis.Redis) -> Any:
    """Tokens and tickets, first come first."""
    return client.zrange(KEYS.queue, 0, -1, withscores=True)


def test_three_grants_that_come_after_their_own_lease_are_reported(
    network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    late = network.delay_answer(ACQUIRE, 0.1, times=3)
    with pytest.raises(LockUnavailable, match=r"more slowly than the TTL of the lock 'order:42' \(50 ms\)") as caught:
        Lock(NAME, ttl=0.05, using="far").acquire(blocking=False)
    assert (caught.value.name, late.met) == (NAME, 3)
    eventually(lambda: not client.exists(KEYS.lock))


def test_a_grant_that_comes_after_its_own_lease_is_asked_for_again(network: Proxy) -> None:
    late = network.delay_answer(ACQUIRE, 0.4, times=2)
    lock = Lock(NAME, ttl=0.35, using="far")
    assert lock.acquire(blocking=False)
    assert (late.met, lock.lost) == (2, False)


def test_a_waiter_that_was_dropped_lets_the_others_of_its_process_look(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.2)
    lock = FairLock(NAME, ttl=600)
    lock.acquire()

    def take() -> bool:
        with FairLock(NAME, blocking_timeout=10 * GENEROUS) as mine:
            return mine.owned()

    waiting = []
    for number in range(3):
        waiting.append(other().start(take))
        eventually(lambda number=number: client.zcard(KEYS.queue) == number + 1)
    before = queue_of(client)
    client.delete(KEYS.queue, KEYS.waiters)
    eventually(lambda: client.zcard(KEYS.queue) == 3)
    assert queue_of(client) == before
    assert not any(one.done() for one in waiting)
    lock.release()
    assert [one.result(GENEROUS) for one in waiting] == [True, True, True]


def test_a_wake_that_comes_after_the_lease_that_it_tells_of_is_not_believed(
    network: Proxy,
    listening: None,
    other: Callable[[], Other],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "LOOK_EVERY", 10.0 * GENEROUS)
    lock = FairLock(NAME, ttl=600)
    lock.acquire()
    waiter = FairLock(NAME, ttl=0.5, using="far")
    late = network.delay_message(f"g {TOKEN}", 0.7)
    waiting = other().start(lambda: (waiter.acquire(token=TOKEN), waiter.fence))
    eventually(lambda: client.zcard(KEYS.queue))
    lock.release()
    value = client.get(KEYS.lock)
    assert isinstance(value, bytes)
    handed = int(value.split()[3])
    got, fence = waiting.result(GENEROUS)
    assert late.over.wait(GENEROUS)
    assert got is True
    assert fence is not None
    assert fence > handed


def test_a_wake_that_came_before_a_look_that_found_somebody_else_is_not_believed(
    network: Proxy,
    listening: None,
    other: Callable[[], Other],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "LOOK_EVERY", 10.0 * GENEROUS)
    ears = listener.get_listener(get_backend("far"))
    lock, waiter = FairLock(NAME, ttl=600), FairLock(NAME, ttl=600, using="far")
    lock.acquire()
    waiting = other().start(lambda: (waiter.acquire(token=TOKEN), waiter.fence))
    eventually(lambda: client.zcard(KEYS.queue))
    look = network.hold_request(TOKEN)
    ears.tell_all()
    assert look.caught.wait(GENEROUS)
    lock.release()
    eventually(lambda: ears.waiters[TOKEN].grant)
    force_release(NAME)
    lock.acquire()
    look.let_go()
    eventually(lambda: client.zcard(KEYS.queue))
    eventually(lambda: ears.waiters[TOKEN].grant is None)
    fence = lock.fence
    assert fence is not None
    lock.release()
    got, mine = waiting.result(GENEROUS)
    assert got
    assert mine is not None
    assert mine > fence


def test_an_adoption_that_fails_leaves_the_acquisition_as_it_was(
    network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    first = Lock(NAME, ttl=600)
    first.acquire()
    token = first.detach()
    mark = Lock("mark", ttl=600, using="far")
    mark.acquire()
    lost = network.lose_answer(ACQUIRE, times=1000)
    with pytest.raises(LockUnavailable):
        Lock(NAME, token=token, using="far").acquire()
    assert lost.met
    mark._release_later(mark._lease())  # farewells go out one after the other
    eventually(lambda: not holder(client, "mark"))
    assert holder(client) == token


def test_a_second_waiter_with_the_same_token_is_refused_and_disturbs_nobody(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = FairLock(NAME, ttl=600)
    lock.acquire()
    waiting = other().start(partial(FairLock(NAME, token=TOKEN).acquire, blocking_timeout=10 * GENEROUS))
    eventually(lambda: client.zcard(KEYS.queue))
    before = queue_of(client)
    second = other()
    with pytest.raises(LockError, match="with the same token already"):
        second(partial(FairLock(NAME, token=TOKEN).acquire, blocking_timeout=GENEROUS))
    assert queue_of(client) == before
    lock.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.parametrize(("late", "suspected"), [(0.2, False), (1.3, True)])
def test_a_connection_is_suspected_when_a_wake_is_overdue_not_when_it_may_be_on_its_way(
    late: float,
    suspected: bool,
    network: Proxy,
    listening: None,
    other: Callable[[], Other],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # who cuts a sound connection loses the places of all waiters in the process for as long as it takes to connect
    monkeypatch.setattr(listener, "LOOK_EVERY", late)
    monkeypatch.setattr(listener, "JITTER", 0.0)
    ears = listener.get_listener(get_backend("far"))
    before = ears.generation
    lock = FairLock(NAME, ttl=600)
    lock.acquire()
    network.delay_message(f"g {TOKEN}", 3.0)
    waiting = other().start(partial(FairLock(NAME, ttl=600, using="far").acquire, token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue))
    waiter = ears.waiters[TOKEN]
    due = waiter.group.due
    eventually(lambda: waiter.group.due != due)  # it has just looked
    lock.release()
    assert waiting.result(GENEROUS) is True
    if suspected:
        eventually(lambda: ears.generation > before)
    else:
        assert ears.generation == before
        assert ears.ready


def test_a_coroutine_that_is_woken_after_its_lease_brings_the_others_of_its_process_back_into_the_queue(
    ghost: Callable[..., Ghost], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R4: its event loop stood still, which made the process suspect, while the listener heard the wake in time."""
    rival, blocked = ghost(alive=True), threading.Event()
    assert rival.queue("x" * 22, mode="F").state == scripts.GRANTED
    loop = asyncio.new_event_loop()
    coroutine = other().start(lambda: loop.run_until_complete(FairLock(NAME, ttl=0.5, blocking_timeout=60).aacquire()))
    eventually(lambda: queued(client) == 1)
    thread = FairLock(NAME, blocking_timeout=60)
    waiting = other().start(thread.acquire)
    eventually(lambda: queued(client) == 2)
    (first, _), (second, _) = queue_of(client)
    rival.queue("y" * 22, mode="F")
    loop.call_soon_threadsafe(blocked.wait)
    try:
        run(scripts.release(rival.backend, KEYS, NAME, "x" * 22))
        assert holder(client) == first.decode()
        eventually(lambda: not holder(client))
        # the lease of its handoff has ended without a sign of life
        assert rival.queue("y" * 22, mode="F").state == scripts.GRANTED
        assert queue_of(client) == []
    finally:
        blocked.set()
    eventually(lambda: [token for token, _ in queue_of(client)] == [first, second])
    run(scripts.release(rival.backend, KEYS, NAME, "y" * 22))
    assert coroutine.result(GENEROUS)
    assert waiting.result(GENEROUS)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
