"""The watchdog when what it does in the background is overtaken, or cannot be done."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, force_release, scripts
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.lock import _holdings
from django_redislock.log import logger
from django_redislock.watchdog import watchdog
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, Ghost, Other, holder
from .proxy import Proxy, proxy

Eventually = Callable[..., Any]
Settings = Any


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    """A proxy before the server; the alias ``far`` goes through it."""
    with proxy(server.port) as running:
        far = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "far": far}
        yield running


def seen(lock: Lock, eventually: Eventually) -> Any:
    """The lease of a lock, when the watchdog knows it for a long section."""
    lease = lock._lease()
    eventually(lambda: lease.seen)
    return lease


def test_a_lock_that_is_lost_while_it_is_extended_stays_lost(network: Proxy, eventually: Eventually) -> None:
    ears = get_listener(get_backend("far"))
    ears.start()
    # a listener that subscribes later lets the lease be asked for, which sees more of it
    eventually(lambda: ears.ready)
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=1.5, auto_renew=False, on_lost=losses.append, using="far")
    lock.acquire()
    held = network.hold_answer("add")
    other = Other()

    def answer() -> None:
        eventually(lambda: losses)
        held.let_go()

    answered = other.start(answer)
    with pytest.raises(LockLost):
        lock.extend(600)
    answered.result(GENEROUS)
    other.end()
    assert lock.lost
    assert len(losses) == 1
    with pytest.raises(LockLost):
        lock.release()


def test_a_renewal_that_fails_after_the_release_is_not_tried_again(
    network: Proxy, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(NAME, ttl=3, using="far")
    lock.acquire()
    lease = seen(lock, eventually)
    backend = get_backend("far")
    held = network.hold_request("keep")
    watchdog.renew_all(backend)
    assert held.caught.wait(GENEROUS)
    lock.release()
    due = lease.due
    eventually(lambda: "event=renewal-failed" in caplog.text)
    eventually(lambda: not watchdog._couriers._away[backend])
    assert lease.due == due
    held.let_go()


def test_the_owner_of_a_lock_that_was_released_may_end(
    eventually: Eventually, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, owner = Lock(NAME, ttl=600), Other()
    owner(lock.acquire)
    lease = owner(lock._lease)
    work, overtaken = watchdog._work, threading.Event()

    def late(leases: list[Any], farewells: list[Any]) -> None:
        if lease in leases and not overtaken.is_set():
            owner(lock.release)
            owner.end()
            work(leases, farewells)
            overtaken.set()
        else:
            work(leases, farewells)

    monkeypatch.setattr(watchdog, "_work", late)
    watchdog.renew_all(lease.backend)
    assert overtaken.wait(GENEROUS)
    assert "owner-ended" not in caplog.text


def test_a_loss_that_was_told_stands_though_it_turns_out_that_the_lock_was_adopted_elsewhere(
    server: RedisServer,
    settings: Settings,
    ghost: Callable[..., Ghost],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[LockLost] = []
    deaf = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "deaf": deaf}
    lock = Lock(NAME, ttl=1, on_lost=losses.append, using="deaf", wait="poll")
    lock.acquire()
    lease = lock._lease()
    adopter = ghost()
    answered = watchdog._couriers._answered
    noted = threading.Event()

    def late(backend: Any, errands: list[Any], answers: list[Any], sent: float) -> None:
        of_ours = [answer[0] for errand, answer in zip(errands, answers, strict=True) if errand.task is lease]
        if of_ours == [scripts.ADOPTED]:
            eventually(lambda: losses)
        answered(backend, errands, answers, sent)
        if of_ours == [scripts.ADOPTED]:
            noted.set()

    monkeypatch.setattr(watchdog._couriers, "_answered", late)
    adopter.queue(lease.token, mode="L", ttl=600)  # which is to adopt it
    assert noted.wait(GENEROUS)
    assert len(losses) == 1
    assert lock.lost
    with pytest.raises(LockLost, match=losses[0].reason):
        lock.release()
    assert holder(adopter.client) == lease.token


def test_a_release_in_the_background_drops_any_number_of_dead_waiters(
    client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    client.zadd(KEYS.queue, {f"dead-{number}": number + 1 for number in range(6000)})
    lock._release_later(lock._lease())
    eventually(lambda: not client.exists(KEYS.lock, KEYS.queue))


@pytest.fixture
def broken_filter() -> Iterator[list[str]]:
    """A filter of the site's that raises; the messages that have met it."""
    met: list[str] = []

    def broken(record: logging.LogRecord) -> bool:
        met.append(record.getMessage())
        raise ZeroDivisionError

    logger.addFilter(broken)
    yield met
    logger.removeFilter(broken)


def test_a_renewal_that_failed_is_tried_again_though_that_cannot_be_logged(
    network: Proxy, eventually: Eventually, broken_filter: list[str]
) -> None:
    lock = Lock(NAME, ttl=30, using="far")
    lock.acquire()
    lease = seen(lock, eventually)
    ends = lease.ends
    network.cut()
    watchdog.renew_all(lease.backend)
    eventually(lambda: any("event=renewal-failed" in message for message in broken_filter))
    network.mend()
    eventually(lambda: lease.ends > ends)
    lock.release()


def test_a_renewal_that_cannot_be_sent_nor_logged_leaves_the_watchdog_alive(
    eventually: Eventually, broken_filter: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(NAME, ttl=6)
    lock.acquire()
    lease = seen(lock, eventually)
    ends = lease.ends
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_look_after", None)
        watchdog.renew_all(lease.backend)
        eventually(lambda: any("event=watchdog-failed" in message for message in broken_filter))
    eventually(lambda: lease.ends > ends)
    lock.release()


def test_a_loss_is_told_though_it_cannot_be_logged(eventually: Eventually, broken_filter: list[str]) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.3, auto_renew=False, on_lost=losses.append)
    lock.acquire()
    eventually(lambda: losses)
    assert any("event=lost" in message for message in broken_filter)


def test_what_was_planned_anew_does_not_pile_up(monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    monkeypatch.setattr("django_redislock.watchdog.MANY", 10)
    monkeypatch.setattr(watchdog, "_sweep_at", 10, raising=False)
    with Lock(NAME, ttl=600) as lock:
        seen(lock, eventually)
        for _ in range(100):
            lock.reacquire()
        assert len(watchdog._agenda) < 50


def test_a_generator_that_is_collected_in_the_middle_of_the_watchdogs_work_gives_its_lock_back(
    client: redis.Redis, other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten() -> Iterator[None]:
        with Lock("forgotten", ttl=600):
            yield

    def collect_and_push(*args: Any) -> None:
        if threading.current_thread() in working:  # the garbage collection strikes where something is made
            working.clear()
            generator.close()  # type: ignore[attr-defined]
        heappush(*args)

    def work() -> None:
        next(generator)
        working.add(threading.current_thread())
        with monkeypatch.context() as patch:
            patch.setattr(heapq, "heappush", collect_and_push)
            with Lock(NAME, ttl=600):
                assert not working

    working: set[threading.Thread] = set()
    generator = forgotten()
    heappush = heapq.heappush
    other()(work)
    assert not holder(client, "forgotten")


@pytest.fixture
def no_threads() -> Iterator[Callable[[bool], object]]:
    """Let the process be unable to start threads: no stack is that large."""

    def no_threads(really: bool) -> None:
        threading.stack_size(1 << 48 if really else 0)

    yield no_threads
    no_threads(False)


def test_the_watchdog_survives_that_no_thread_can_be_started(
    server: RedisServer,
    settings: Settings,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    no_threads: Callable[[bool], object],
) -> None:
    near = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "near": near}
    backend = get_backend("near")
    ears = get_listener(backend)
    ears.start()
    eventually(lambda: ears.ready)
    lock = Lock(NAME, ttl=600, using="near")
    lock.acquire()
    seen(lock, eventually)
    no_threads(True)

    def failed() -> bool:
        watchdog.renew_all(backend)  # as often as there is still a courier on its way
        return "can't start new thread" in caplog.text

    eventually(failed)
    no_threads(False)
    after = Lock("after", ttl=60, using="near")  # as patient as the courier that could not start
    after.acquire()
    lease = seen(after, eventually)
    ends = lease.ends

    def renewed() -> bool:
        watchdog.renew_all(backend)
        return bool(lease.ends > ends)

    eventually(renewed)
    after.release()


def test_a_lease_whose_listener_could_not_be_started_is_renewed_all_the_same(
    server: RedisServer,
    settings: Settings,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    no_threads: Callable[[bool], object],
) -> None:
    with Lock("first"):
        pass  # the watchdog's own thread runs
    settings.CACHES = {**settings.CACHES, "near": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
    no_threads(True)
    lock = Lock(NAME, ttl=6, using="near")
    lock.acquire()
    lease = _holdings.get()[lock].lease
    ends = lease.ends
    eventually(lambda: "event=watchdog-failed" in caplog.text)
    no_threads(False)
    eventually(lambda: lease.ends > ends)
    eventually(lambda: get_listener(lease.backend).ready)  # it hears at once what happens to it, after all
    lock.release()


def test_a_loss_is_told_though_no_thread_can_be_started_for_it(
    eventually: Eventually, no_threads: Callable[[bool], object]
) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=600, on_lost=losses.append)
    lock.acquire()
    seen(lock, eventually)
    eventually(lambda: get_listener(get_backend()).ready)
    no_threads(True)
    force_release(NAME)
    eventually(lambda: losses)
    no_threads(False)
    with pytest.raises(LockLost, match="released by force"):
        lock.release()


def test_what_was_not_said_yet_is_said_before_the_process_ends(
    client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_work", lambda leases, farewells: None)  # its thread has ended
        unsaid = set(watchdog._unsaid)
        lock._release_later(lock._lease())
        eventually(lambda: not watchdog._agenda)
        assert client.exists(KEYS.lock)
        watchdog.say_farewells()
    assert not client.exists(KEYS.lock)
    watchdog._unsaid -= watchdog._unsaid - unsaid


@pytest.mark.parametrize("held", [True, False])
def test_a_redis_that_is_away_does_not_keep_the_process_from_ending(
    held: bool,
    network: Proxy,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = Lock(NAME, ttl=600, using="far")
    lock.acquire()
    lease = lock._lease()
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_work", lambda leases, farewells: None)
        unsaid = set(watchdog._unsaid)
        watchdog.end(lease)
        watchdog.send_farewell(lease.backend, NAME, lease.token, unknown=False, held=held)
        eventually(lambda: not watchdog._agenda)
        network.cut()
        watchdog.say_farewells()
    watchdog._unsaid -= watchdog._unsaid - unsaid
    # who did not get a lock has been told why
    assert ("event=farewells-failed alias=far" in caplog.text) is held
