"""The watchdog when its background work is overtaken by other calls, or fails."""

from __future__ import annotations

import heapq
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.exceptions import MovedError

from django_redislock import Lock, LockLost, force_release
from django_redislock.base.log import logger
from django_redislock.base.steps import run
from django_redislock.engine import Frame, draw_new_fence
from django_redislock.engine.background.notifier import Notifier
from django_redislock.engine.leases.interruptions import Interruptions
from django_redislock.engine.leases.lease import ENDED, FORCED, OVER, RELEASED, TAKEN, VANISHED, Lease
from django_redislock.engine.renewal import agenda as agenda_module
from django_redislock.engine.renewal.agenda import Agenda
from django_redislock.engine.renewal.dispatch import LAST_WORDS
from django_redislock.engine.renewal.sender import Parcel
from django_redislock.engine.renewal.watchdog import Watchdog
from django_redislock.engine.runtime import runtime
from django_redislock.store import calls
from django_redislock.store.calls import LockRequest, Renewed, read_holder
from django_redislock.store.node import Node
from django_redislock.store.stores import get_partition
from django_redislock.store.together import together
from django_redislock.testing import lose
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, stands_at
from tests.helpers.interrupts import Interrupt, Interrupter
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import LOCK, NAME, QUEUE, holder, queued
from tests.inside import keys_of, lease_of, limit, listener

from .conftest import InterruptedStart

Eventually = Callable[..., Any]


@pytest.fixture
def watchdog() -> Watchdog:
    return runtime().watchdog


@pytest.fixture
def seen(eventually: Eventually) -> Callable[[Lock], Lease]:
    """The lease of a lock, once the watchdog treats it as a long section."""

    def seen(lock: Lock) -> Lease:
        lease = lease_of(lock)
        eventually(lambda: lease.seen)
        return lease

    return seen


# -- losses ------------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[str, Callable[[redis.Redis, Lock], object]]] = {
    "deleted": (VANISHED, lambda client, lock: client.delete(LOCK)),
    "taken": (TAKEN, lambda client, lock: client.set(LOCK, f"{'x' * 22} c c 9 9 - me", px=600_000)),
    "forced": (FORCED, lambda client, lock: force_release(NAME)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_is_told_once_and_with_its_reason(
    way: str, crowd: Crowd, client: redis.Redis, eventually: Eventually, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=1.5, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    reason, lose = WAYS[way]
    lose(client, lock)

    def signals() -> list[dict[str, Any]]:
        return [facts for which, facts in heard if which == "lost"]

    eventually(lambda: losses and signals())
    assert me.read(lambda: lock.lost)
    (loss,) = losses
    assert (loss.name, loss.reason, loss.fence) == (NAME, reason, fence)
    with pytest.raises(LockLost, match="was lost while it was held here") as caught:
        me(lock, "release")
    assert caught.value.reason == reason
    assert signals() == [{"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}]
    assert len(losses) == 1


def test_a_lock_that_is_lost_while_it_is_extended_stays_lost(crowd: Crowd, far: Proxy, eventually: Eventually) -> None:
    ears = listener("far")
    ears.start()
    # a listener that subscribes later lets the lease be asked for, which sees more of it
    eventually(lambda: ears.ready)
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=1.5, auto_renew=False, on_lost=losses.append, using="far")
    me(lock, "acquire")
    held = far.hold_answer("add")
    extending = me.start(lock, "extend", 600)
    eventually(lambda: losses)
    held.let_go()
    with pytest.raises(LockLost):
        extending.result(GENEROUS)
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert [loss.reason for loss in losses] == [OVER]


def test_a_loss_that_was_told_stands_though_another_reason_turns_up_later(
    crowd: Crowd, watchdog: Watchdog, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[LockLost] = []
    me, you = crowd(), crowd()
    lock = Lock(NAME, ttl=1, on_lost=losses.append, poll=True)  # told of nothing
    me(lock, "acquire")
    lease = me.read(lambda: lease_of(lock))
    answered, noted = watchdog._dispatch._sender._answered, threading.Event()

    def late(partition: Any, parcels: list[Any], answers: list[Any], sent: float) -> None:
        lost = (lease, inside.LOST) in [
            (parcel.task, answer[0]) for parcel, answer in zip(parcels, answers, strict=True)
        ]
        if lost:
            eventually(lambda: losses)
        answered(partition, parcels, answers, sent)
        if lost:
            noted.set()

    monkeypatch.setattr(watchdog._dispatch._sender, "_answered", late)
    seized = Lock(NAME, ttl=600)
    you(seized, "seize")
    assert noted.wait(GENEROUS)
    assert [loss.reason for loss in losses] == [ENDED]
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    assert caught.value.reason == ENDED
    assert you(seized, "owned")


def test_a_release_by_token_in_the_same_process_is_a_loss_for_the_holder(crowd: Crowd, eventually: Eventually) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    you(Lock(NAME, token=me.read(lambda: lock.token)), "release")
    eventually(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    assert caught.value.reason == RELEASED


class Slow(Lease):
    """A lease that takes long to be marked as lost."""

    pause: Callable[[], object]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "lost_reason":
            type(self).pause()
        super().__setattr__(name, value)


def test_a_loss_that_the_release_finds_out_at_the_same_moment_is_told_once(
    watchdog: Watchdog, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[LockLost] = []
    me, lock = Other(), Lock(NAME, ttl=600, on_lost=losses.append)
    me(lock.acquire)
    lease = me(lambda: lease_of(lock))
    client.delete(LOCK)
    releasing: list[Future[None]] = []

    def release() -> None:
        if not releasing:
            releasing.append(me.start(lock.release))
            eventually(lambda: releasing[0].done() or stands_at(me._thread, "unwatch", "with self._mutex"))

    monkeypatch.setattr(Slow, "pause", release, raising=False)
    lease.__class__ = Slow
    watchdog.lose(lease, FORCED)
    with pytest.raises(LockLost):
        releasing[0].result(GENEROUS)
    told: list[str] = []
    runtime().notifier.call(lambda: told.append("all"))
    eventually(lambda: told and losses)
    assert [loss.reason for loss in losses] == [FORCED]
    me.end()


def test_a_loss_is_told_once_wherever_whoever_finds_it_out_is_interrupted(
    watchdog: Watchdog, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be a thread of the site, which reads messages for all others or renews the lease itself."""
    monkeypatch.setattr("django_redislock.engine.renewal.watchdog.LOOK_AROUND", 0.05)
    with Lock("keeps it awake"):
        ours = str(Path(agenda_module.__file__).parent)

        def interrupted_at(place: int | None) -> int:
            losses: list[LockLost] = []
            lock, one = Lock(NAME, on_lost=losses.append), Interrupter(lambda file: file.startswith(ours), place)
            lock.acquire()
            lease = lease_of(lock)
            with suppress(Interrupt):
                one.run(lambda: watchdog.lose(lease, FORCED))
            assert bool(lease.lost_reason) is not lease.watched
            watchdog.lose(lease, VANISHED)  # the next renewal
            eventually(lambda: losses, within=5)
            with pytest.raises(LockLost):
                lock.release()
            assert len(losses) == 1, one.struck
            force_release(NAME)
            return one.places

        places = max(interrupted_at(None) for _ in range(5))  # Python 3.13 tells of few the first times
        for place in range(places):
            interrupted_at(place)
    assert places > 3 or sys.version_info >= (3, 13)


# -- renewals that are overtaken, and releases in the background -------------------------------------------------------


def test_a_renewal_that_fails_after_the_release_is_not_tried_again(
    far: Proxy,
    watchdog: Watchdog,
    seen: Callable[[Lock], Lease],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = Lock(NAME, ttl=3, using="far")
    lock.acquire()
    lease = seen(lock)
    partition = get_partition("far")
    held = far.hold_request("keep")
    watchdog.renew_all(partition)
    assert held.caught.wait(GENEROUS)
    lock.release()
    due = lease.due
    eventually(lambda: "event=renewal-failed" in caplog.text)
    eventually(lambda: not watchdog._dispatch._sender._trips[partition.node])
    assert lease.due == due
    held.let_go()


def test_the_owner_of_a_lock_that_was_released_may_end(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, owner = Lock(NAME, ttl=600), Other()
    owner(lock.acquire)
    lease = owner(lambda: lease_of(lock))
    work, overtaken = watchdog._work, threading.Event()

    def late(tasks: list[Any]) -> None:
        overtakes = lease in tasks and not overtaken.is_set()
        if overtakes:
            owner(lock.release)
            owner.end()
        work(tasks)
        if overtakes:
            overtaken.set()

    monkeypatch.setattr(watchdog, "_work", late)
    watchdog.renew_all(lease.partition)
    assert overtaken.wait(GENEROUS)
    assert "owner-ended" not in caplog.text


def test_a_release_in_the_background_drops_any_number_of_dead_waiters(
    watchdog: Watchdog, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    client.zadd(QUEUE, {f"dead-{number}": number + 1 for number in range(6000)})
    watchdog.release_later(lease_of(lock).request, unknown=False)
    eventually(lambda: not client.exists(LOCK, QUEUE))


def test_replanned_entries_do_not_pile_up(
    watchdog: Watchdog, seen: Callable[[Lock], Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.engine.renewal.agenda.MANY", 10)
    monkeypatch.setattr(watchdog._agenda, "_sweep_at", 10)
    with Lock(NAME, ttl=600) as lock:
        seen(lock)
        for _ in range(100):
            lock.reacquire()
        assert len(watchdog._agenda) < 50


@pytest.mark.parametrize("sweeps", [False, True])
def test_a_lease_that_is_planned_anew_is_never_forgotten_wherever_that_is_interrupted(sweeps: bool) -> None:
    request: Any = SimpleNamespace(name=NAME)

    def interrupted_at(place: int | None) -> Interrupter:
        agenda, one = Agenda(), Interrupter(lambda file: file == agenda_module.__file__, place)
        leases = [Lease(request, fence=1, ends=100.0, handed=False, unknown=False) for _ in range(10)]
        for number, lease in enumerate(leases):
            lease.watched = True
            agenda.plan(50.0 - number, lease)
        agenda._sweep_at = 0 if sweeps else 1000
        with suppress(Interrupt):
            one.run(lambda: agenda.plan(60.0, leases[-1]))
        assert agenda.take_due(100.0) == sorted(leases, key=lambda lease: lease.due)
        return one

    places = max(interrupted_at(None).places for _ in range(2))  # Python 3.13 tells of few the first time
    assert places > 2 or sys.version_info >= (3, 13)
    for place in range(places):
        interrupted_at(place)


def test_a_generator_that_is_collected_in_the_middle_of_the_watchdogs_work_gives_its_lock_back(
    client: redis.Redis, other: Callable[[], Other], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten() -> Iterator[None]:
        with Lock("forgotten", ttl=600):
            yield

    def collect_and_push(*args: Any) -> None:
        if threading.current_thread() in working:  # the garbage collection strikes where something is made
            working.clear()
            generator.close()
        heappush(*args)

    def work() -> None:
        next(generator)
        working.add(threading.current_thread())
        with monkeypatch.context() as patch:
            patch.setattr(heapq, "heappush", collect_and_push)
            with Lock(NAME, ttl=600):
                assert not working

    working: set[threading.Thread] = set()
    generator: Any = forgotten()
    heappush = heapq.heappush
    other()(work)
    eventually(lambda: not holder(client, "forgotten"))


# -- what cannot be logged ---------------------------------------------------------------------------------------------


@pytest.fixture
def broken_filter() -> Iterator[list[str]]:
    """A logging filter of the site that raises; the messages that it has seen."""
    met: list[str] = []

    def broken(record: logging.LogRecord) -> bool:
        met.append(record.getMessage())
        raise ZeroDivisionError

    logger.addFilter(broken)
    yield met
    logger.removeFilter(broken)


def test_a_renewal_that_failed_is_tried_again_though_that_cannot_be_logged(
    far: Proxy,
    watchdog: Watchdog,
    seen: Callable[[Lock], Lease],
    eventually: Eventually,
    broken_filter: list[str],
) -> None:
    lock = Lock(NAME, ttl=30, using="far")
    lock.acquire()
    lease = seen(lock)
    ends = lease.ends
    far.cut()
    watchdog.renew_all(lease.partition)
    eventually(lambda: any("event=renewal-failed" in message for message in broken_filter))
    far.mend()
    eventually(lambda: lease.ends > ends)
    lock.release()


@pytest.mark.parametrize("broken", ["_look_after", "_work"])
def test_a_renewal_that_cannot_be_sent_nor_logged_leaves_the_watchdog_alive(
    broken: str,
    watchdog: Watchdog,
    seen: Callable[[Lock], Lease],
    eventually: Eventually,
    broken_filter: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = Lock(NAME, ttl=30)
    lock.acquire()
    lease = seen(lock)
    ends = lease.ends
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, broken, None)
        watchdog.renew_all(lease.partition)
        eventually(lambda: any("event=watchdog-failed" in message for message in broken_filter))
    eventually(lambda: lease.ends > ends)
    lock.release()


def test_a_lease_that_cannot_be_looked_after_puts_off_no_other(
    watchdog: Watchdog, seen: Callable[[Lock], Lease], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = [Lock(name, ttl=600) for name in ("bad", NAME)]
    for lock in locks:
        lock.acquire()
    bad, good = map(seen, locks)
    look_after = watchdog._look_after

    def failing(lease: Lease) -> Any:
        if lease is bad:
            raise ZeroDivisionError
        return look_after(lease)

    monkeypatch.setattr(watchdog, "_look_after", failing)
    ends = good.ends
    good.urgent = True
    watchdog._work([bad, good])
    assert bad.due < bad.ends
    eventually(lambda: good.ends > ends)


def test_a_loss_is_told_though_it_cannot_be_logged(eventually: Eventually, broken_filter: list[str]) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=600, on_lost=losses.append)
    lock.acquire()
    lose(lock)
    eventually(lambda: losses)
    assert any("event=lost" in message for message in broken_filter)


# -- a process that gets no more threads -------------------------------------------------------------------------------


def test_the_watchdog_survives_that_no_thread_can_be_started(
    far: Proxy,
    watchdog: Watchdog,
    seen: Callable[[Lock], Lease],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    no_threads: Callable[[bool], object],
) -> None:
    partition, ears = get_partition("far"), listener("far")
    ears.start()
    eventually(lambda: ears.ready)
    lock = Lock(NAME, ttl=600, using="far")
    lock.acquire()
    seen(lock)
    no_threads(True)

    def failed() -> bool:
        watchdog.renew_all(partition)  # as often as there is still a thread of the sender's on its way
        return "can't start new thread" in caplog.text

    eventually(failed)
    no_threads(False)
    after = Lock("after", ttl=60, using="far")  # as patient as what could not be sent
    after.acquire()
    lease = seen(after)
    ends = lease.ends

    def renewed() -> bool:
        watchdog.renew_all(partition)
        return lease.ends > ends

    eventually(renewed)
    after.release()


def test_a_lease_whose_listener_could_not_be_started_is_renewed_all_the_same(
    settings: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    no_threads: Callable[[bool], object],
) -> None:
    with Lock("first"):
        pass  # the watchdog's own thread runs
    settings.CACHES = {**settings.CACHES, "fresh": settings.CACHES["default"]}
    no_threads(True)
    lock = Lock(NAME, ttl=6, using="fresh")
    lock.acquire()
    lease = lease_of(lock)
    ends = lease.ends
    eventually(lambda: "event=watchdog-failed" in caplog.text)
    no_threads(False)
    eventually(lambda: lease.ends > ends)
    eventually(lambda: listener("fresh").ready)  # it hears at once what happens to it, after all
    lock.release()


def test_a_loss_is_told_though_no_thread_can_be_started_for_it(
    listens: Callable[[Lock], None], eventually: Eventually, no_threads: Callable[[bool], object]
) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=600, on_lost=losses.append)
    lock.acquire()
    listens(lock)
    no_threads(True)
    force_release(NAME)
    eventually(lambda: losses)
    no_threads(False)
    with pytest.raises(LockLost, match="force-released"):
        lock.release()


# -- the end of the process --------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    """A watchdog whose thread has stopped, as at the end of the process."""
    before = set(watchdog._pending)
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_work", lambda tasks: None)
        yield watchdog
    watchdog._pending -= watchdog._pending - before


def test_releases_that_were_not_yet_sent_are_sent_before_the_process_ends(
    stopped: Watchdog, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    lease = lease_of(lock)
    stopped.release_later(lease.request, unknown=False)
    stopped.end(lease)
    eventually(lambda: not stopped._agenda)
    assert client.exists(LOCK)
    stopped.send_pending()
    assert not client.exists(LOCK)


@pytest.mark.parametrize(("how", "told"), [(inside.HOLDER, True), (inside.WITHDRAWAL, False)])
def test_a_redis_that_is_away_does_not_keep_the_process_from_ending(
    how: str, told: bool, far: Proxy, stopped: Watchdog, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(NAME, ttl=600, using="far")
    lock.acquire()
    lease = lease_of(lock)
    stopped.end(lease)
    stopped.release_later(lease.request, unknown=False, how=how)
    eventually(lambda: not stopped._agenda)
    far.cut()
    stopped.send_pending()
    # who did not acquire a lock has been told why
    assert ("event=releases-not-sent alias=far" in caplog.text) is told


def test_servers_that_hang_take_a_process_one_second_in_all_and_keep_nothing_from_the_others(
    stopped: Watchdog, server: RedisServer, settings: Any, client: redis.Redis, eventually: Eventually
) -> None:
    with ExitStack() as stack:
        hanging = {f"hanging {number}": stack.enter_context(proxy(server.port)) for number in range(4)}
        default = settings.CACHES["default"]
        settings.CACHES = {
            **settings.CACHES,
            **{alias: {**default, "LOCATION": network.url} for alias, network in hanging.items()},
        }
        for alias in [*hanging, "default"]:
            lock = Lock(alias, ttl=600, using=alias)
            lock.acquire()
            lease = lease_of(lock)
            stopped.end(lease)
            stopped.release_later(lease.request, unknown=False)
        eventually(lambda: not stopped._agenda)
        for network in hanging.values():
            network.partition()
        began = monotonic()
        stopped.send_pending()
        assert monotonic() - began < 2 * LAST_WORDS
        assert not holder(client, "default")
        assert not stopped._pending
    settings.CACHES = {**settings.CACHES}


def test_at_the_end_of_a_process_a_lock_is_held_without_a_thread(
    ending: Callable[[], None], client: redis.Redis
) -> None:
    """Python 3.12 and later start none then."""
    ending()
    watchdog = Watchdog(Notifier(), lambda partition: None)
    watchdog.undo_after(Frame(), SimpleNamespace())
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    lease = lease_of(lock)
    watchdog.watch(lease)
    watchdog.release_later(lease.request, unknown=False)
    watchdog.send_pending()
    assert not holder(client)


def test_at_the_end_of_a_process_a_lock_is_renewed_by_the_thread_that_there_is(
    seen: Callable[[Lock], Lease], eventually: Eventually, ending: Callable[[], None]
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    lease = seen(lock)
    ends = lease.ends
    ending()
    runtime().watchdog.renew_all(lease.partition)
    eventually(lambda: lease.ends > ends)
    lock.release()


def test_at_the_end_of_a_process_waiters_poll(
    other: Callable[[], Other], client: redis.Redis, settings: Any, eventually: Eventually, ending: Callable[[], None]
) -> None:
    settings.CACHES = {**settings.CACHES, "fresh": settings.CACHES["default"]}
    me, you, held = other(), other(), Lock(NAME)
    me(held.acquire)
    ending()
    waiting = you.start(lambda: Lock(NAME, using="fresh").acquire(blocking_timeout=GENEROUS))
    eventually(lambda: queued(client))
    me(held.release)
    assert waiting.result(GENEROUS)


# A process that uses a lock where it ends: in the hook ``atexit``, or in a thread that outlives the main one.
AT_THE_END = """
import atexit
from tests.inside import lease_of

def work():
    lock = Lock(name, ttl=1.5)
    with lock:
        say("acquired")
        ends = time.monotonic() + 1.5
        while renewed and lease_of(lock).ends <= ends + 1.5:
            lock.check()
            time.sleep(0.01)
        lock.check()
    say("released")

def outlive():
    threading.main_thread().join()
    work()

if warm:
    with Lock("warm"):
        pass
if where == "atexit":
    atexit.register(work)
else:
    threading.Thread(target=outlive).start()
"""


@pytest.mark.parametrize("where", ["atexit", "thread"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_lock_is_held_where_the_interpreter_ends(
    where: str, warm: bool, start: Callable[..., Worker], client: redis.Redis
) -> None:
    renewed = warm or sys.version_info < (3, 12)
    worker = start(AT_THE_END, name=NAME, where=where, warm=warm, renewed=renewed)
    worker.expect("acquired")
    worker.expect("released")
    assert worker.process.wait(GENEROUS) == 0
    assert not holder(client)


def test_at_interpreter_exit_nobody_waits_for_a_stopped_thread(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Watchdog(Notifier(), lambda partition: None)
    other()(last._mutex.acquire)  # by one who will never go on
    for module in ("engine.renewal.watchdog", "base.threads"):
        monkeypatch.setattr(f"django_redislock.{module}.sys", SimpleNamespace(is_finalizing=lambda: True))
    partition = get_partition(None, NAME)
    last.release_later(LockRequest(partition, keys_of(NAME, partition.prefix), NAME, "a" * 22), unknown=False)
    assert last._thread is not None
    assert not last._thread.is_alive()


# A finalizer uses a lock when all other threads have been stopped. That of a generator can send nothing any more.
AT_TEARDOWN = """
class Device:
    def __init__(self):
        self.lock = Lock(name, ttl=60)
        self.lock.acquire()
    def __del__(self):
        self.lock.release()

def only_one():
    with Lock(name, ttl=60):
        yield

if kind == "object":
    device = Device()
else:
    generator = only_one()
    next(generator)
if settled:
    while not runtime().watchdog.leases()[0].seen:
        time.sleep(0.01)
say("acquired")
"""


@pytest.mark.parametrize("kind", ["object", "generator"])
@pytest.mark.parametrize("settled", [False, True])
def test_a_finalizer_at_interpreter_exit_never_hangs(
    kind: str, settled: bool, start: Callable[..., Worker], client: redis.Redis
) -> None:
    code = "from django_redislock.engine.runtime import runtime\n" + AT_TEARDOWN
    worker = start(code, name=NAME, kind=kind, settled=settled)
    worker.expect("acquired")
    assert worker.process.wait(GENEROUS) == 0
    assert bool(holder(client)) == (kind == "generator")


def test_nothing_is_sent_at_exit_to_a_cluster_that_was_never_reached(stopped: Watchdog, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "never": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1"}}
    settings.REDISLOCK = {"CLUSTER": ["never"]}
    partition = get_partition("never", NAME)
    stopped.release_later(LockRequest(partition, keys_of(NAME, partition.prefix), NAME, "a" * 22), unknown=False)
    stopped.send_pending()
    assert partition.node_if_known is None


def test_a_lease_whose_fence_is_about_to_change_is_not_renewed_and_not_lost(eventually: Eventually) -> None:
    """A renewal names its fence. One that crosses the change finds another one, and that says nothing."""
    watchdog, lock = runtime().watchdog, Lock(NAME, ttl=60)
    lock.acquire()
    lease = lease_of(lock)
    eventually(lambda: lease.seen)  # and would not be due again for 20 s
    lease.raising = True
    watchdog.renew_all(lease.partition)
    asked = lease.due
    eventually(lambda: not lease.urgent and lease.due > asked)
    lost = Renewed(inside.LOST, 0.0, False, 0.0)
    watchdog._note(lease, Parcel(lease, (), lease.due), lost)
    lease.raising, lease.asked_fence = False, lease.fence - 1
    watchdog._note(lease, Parcel(lease, (), lease.due), lost)
    assert not lock.lost
    eventually(lambda: lease.asked_fence == lease.fence and lease.due < lease.ends)
    lock.release()
    lease.asked_fence = 0
    watchdog._note(lease, Parcel(lease, (), lease.due), lost)
    assert not lease.lost_reason


def test_a_renewal_whose_slot_has_moved_goes_to_the_new_node_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog, lock = runtime().watchdog, Lock(NAME, ttl=60, auto_renew=False)
    lock.acquire()
    lease = lease_of(lock)
    moved = MovedError("1 127.0.0.1:1")
    monkeypatch.setattr(lease.partition.store, "redirect", lambda partition, error, node: error is moved)
    with watchdog._mutex:  # nothing else is planned meanwhile
        watchdog._plan(lease.ends, lease)
        watchdog._dispatch._answered(lease.partition.node, [Parcel(lease, (), lease.due)], [moved], 0.0)
        assert lease.due < lease.ends - 50
    assert not lock.lost
    lock.release()


def test_a_lock_that_was_detached_meanwhile_takes_no_new_fence() -> None:
    lock = Lock(NAME)
    lock.acquire()
    lease = lease_of(lock)
    fence = lease.fence
    run(calls.renew(lease.request, "detach", 60))
    with pytest.raises(LockLost):
        run(draw_new_fence(lease))
    assert lease.fence == fence


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("ask", ["renewal", "list"])
def test_an_answer_from_another_node_than_the_one_subscribed_to_is_told(
    ask: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """C3: a subscription that stands at a demoted master counts for nothing, and whoever waits has to look."""
    lock, told = Lock(NAME, ttl=0.5, poll=True), threading.Event()  # nothing here subscribes
    lock.acquire()
    both = [lease_of(lock).partition, get_partition(name="other")]
    for partition in both:
        monkeypatch.setattr(partition, "subscribed_at", Node(partition.store.origin))
        monkeypatch.setattr(partition, "on_other_node", told.set)
    if ask == "list":
        run(together([read_holder(partition, "other") for partition in both]))
    assert told.wait(GENEROUS)
    lock.release()


def test_a_section_that_is_interrupted_where_nothing_is_held_is_undone(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits in a ``with`` statement, and again when that is about to undo it."""
    limit(monkeypatch, idle_look=0.05)
    undone: list[bool] = []
    section: Any = SimpleNamespace(undo=lambda: undone.append(True))
    idle, block = Watchdog(Notifier(), lambda partition: None), Frame()
    witness = idle.undo_after(block, section)
    del block
    eventually(lambda: undone)
    assert witness() is None


def test_a_section_that_cannot_be_undone_is_logged_once_and_keeps_no_other_from_being_undone(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit(monkeypatch, idle_look=0.05)
    undone: list[bool] = []

    def fail() -> None:
        raise TypeError("unhashable")

    sections: list[Any] = [SimpleNamespace(undo=fail), SimpleNamespace(undo=lambda: undone.append(True))]
    watchdog = Watchdog(Notifier(), lambda partition: None)
    for section in sections:
        block = Frame()
        witness = watchdog.undo_after(block, section)
        del block
        eventually(lambda: not watchdog.interruptions)
        assert witness() is None
    eventually(lambda: undone)
    thread = watchdog._thread
    assert thread is not None
    assert thread.is_alive()
    eventually(lambda: "event=watchdog-failed" in caplog.text)
    assert caplog.text.count("event=watchdog-failed") == 1


def test_a_subscription_that_stands_before_the_first_look_is_over_has_the_lock_confirmed_at_once(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for that, and the look must not put it off to the next renewal: nobody has listened until now."""
    watchdog = runtime().watchdog
    stands: list[bool] = []

    def listen(partition: Any) -> None:
        if not stands:
            stands.append(True)
            watchdog.renew_all(partition)

    monkeypatch.setattr(watchdog, "_listen", listen)
    lock = Lock(NAME, ttl=300)
    lock.acquire()
    lease = lease_of(lock)
    eventually(lambda: stands and not lease.urgent)
    lock.release()


@pytest.mark.parametrize("late", [False, True])
def test_a_start_that_is_interrupted_leaves_one_thread_in_the_end(
    late: bool, interrupted_start: Callable[..., InterruptedStart], eventually: Eventually
) -> None:
    before, watchdog = threading.enumerate(), Watchdog(Notifier(), lambda partition: None)
    strike = interrupted_start("redislock-watchdog", late=late)
    with pytest.raises(Interrupt):
        watchdog._start()
    watchdog._start()
    strike.gate.set()
    eventually(lambda: strike.others(before) == 1)
    assert (strike.thread is watchdog._thread) is late


def test_what_two_threads_undo_at_once_is_undone_and_forgotten(other: Callable[[], Other]) -> None:
    """Where the start of one was interrupted, there may be two for a moment."""
    undone: list[str] = []
    you, interruptions = other(), Interruptions()

    def undo_first() -> None:
        undone.append("first")
        if undone == ["first"]:
            you(interruptions.undo_all)

    sections: list[Any] = [SimpleNamespace(undo=undo_first), SimpleNamespace(undo=lambda: undone.append("second"))]
    frame = Frame()
    witnesses = [interruptions.watch(frame, section) for section in sections]
    del frame
    assert interruptions
    interruptions.undo_all()
    assert not interruptions
    assert set(undone) == {"first", "second"}
    assert not any(witness() for witness in witnesses)


def test_simultaneous_callers_start_one_thread() -> None:
    def watchdogs() -> int:
        return sum(thread.name == "redislock-watchdog" for thread in threading.enumerate())

    for _ in range(20):
        before, together, frame = watchdogs(), threading.Barrier(8), Frame()
        watchdog = Watchdog(Notifier(), lambda partition: None)

        def come(watchdog: Watchdog = watchdog, frame: Frame = frame, together: threading.Barrier = together) -> None:
            together.wait()
            watchdog.undo_after(frame, SimpleNamespace())

        people = [threading.Thread(target=come) for _ in range(8)]
        for person in people:
            person.start()
        for person in people:
            person.join()
        assert watchdogs() == before + 1
