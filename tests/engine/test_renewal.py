"""Renewal and loss: what a holder sees where these are overtaken by its own calls, or where something fails."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, force_release
from django_redislock.testing import lose
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.interrupts import Interrupt, Interrupter
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, holder
from tests.inside import all_seen, hears, renew_all

Eventually = Callable[..., Any]

LOGGER = "django_redislock"


@pytest.fixture
def holds(eventually: Eventually) -> Callable[..., Lock]:
    """Acquire a lock, and hold it until it is treated as a long section."""

    def holds(ttl: float = 600, using: str | None = None, **options: Any) -> Lock:
        lock = Lock(NAME, ttl=ttl, using=using, **options)
        lock.acquire()
        eventually(all_seen)
        return lock

    return holds


def renewed(lock: Lock) -> Callable[[], bool]:
    """Whether the lease has been moved on since this was called."""
    end = inside.ends(lock)
    return lambda: inside.ends(lock) > end


# -- losses ------------------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[redis.Redis], object]] = {
    "it is gone from Redis": lambda client: client.delete(LOCK),
    "somebody else holds it now": lambda client: client.set(LOCK, f"{'x' * 22} c c 9 9 - me", px=600_000),
    "it was force-released": lambda client: force_release(NAME),
}


@pytest.mark.parametrize("reason", WAYS)
def test_a_loss_is_told_once_and_with_its_reason(
    reason: str, crowd: Crowd, client: redis.Redis, eventually: Eventually, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=1.5, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    WAYS[reason](client)

    def signals() -> list[dict[str, Any]]:
        return [facts for which, facts in heard if which == "lost"]

    eventually(lambda: losses and signals())
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost, match="was lost while it was held here") as caught:
        me(lock, "release")
    for loss in (losses[0], caught.value):
        assert (loss.name, loss.fence) == (NAME, fence)
        assert loss.reason.startswith(reason)
    assert signals() == [{"name": NAME, "template": NAME, "fence": fence, "reason": losses[0].reason, "expired": False}]
    assert len(losses) == 1


def test_a_loss_is_told_once_wherever_whoever_finds_it_out_is_interrupted(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be a thread of the site, which reads messages for all others or renews the lease itself."""
    inside.limit(monkeypatch, look_around=0.05)
    with Lock("keeps it awake"):

        def interrupted_at(place: int | None) -> int:
            losses: list[LockLost] = []
            lock, one = Lock(NAME, on_lost=losses.append), Interrupter(inside.in_background, place)
            lock.acquire()
            find = inside.finder_of_loss(lock)
            with suppress(Interrupt):
                one.run(find)
            find()  # so does the next renewal
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


# -- renewals ----------------------------------------------------------------------------------------------------------


def test_a_renewed_lock_goes_on_from_an_end_that_is_set_near(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=30)
    me(lock, "acquire")
    me(lock, "extend", 1, replace_ttl=True)  # a thirtieth of the TTL
    eventually(lambda: client.pttl(LOCK) > 20_000)
    assert not me.read(lambda: lock.lost)


def test_a_lock_whose_end_is_moved_is_looked_after_before_it_wherever_that_is_interrupted(
    eventually: Eventually,
) -> None:
    lock = Lock(NAME, ttl=30)
    lock.acquire()

    def interrupted_at(place: int | None) -> int:
        one = Interrupter(inside.in_background, place)
        with suppress(Interrupt):
            one.run(lambda: lock.extend(9, replace_ttl=True))
        eventually(lambda: inside.due_in(lock) < lock.remaining(), within=5)
        lock.extend(30, replace_ttl=True)
        return one.places

    places = max(interrupted_at(None) for _ in range(2))
    for place in range(places):
        interrupted_at(place)
    assert places > 2 or sys.version_info >= (3, 13)
    lock.release()


# in a process of its own: where thousands of locks were held before, more may pile up
MOVES = """
from tests.inside import planned
with Lock("moved", ttl=600) as lock:
    for _ in range(2200):
        lock.reacquire()
    say("planned", planned())
"""


def test_a_lock_whose_end_is_moved_again_and_again_costs_no_memory(start: Callable[..., Worker]) -> None:
    assert int(start(MOVES).expect("planned")[0]) < 1100


def test_a_lock_that_is_lost_while_it_is_extended_stays_lost(crowd: Crowd, far: Proxy, eventually: Eventually) -> None:
    ears = inside.Ears("far")
    ears.start()
    eventually(lambda: ears.ready)  # else the lease would be asked about when it is
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
    assert [loss.reason for loss in losses] == [inside.WAS_NOT_RENEWED]


def test_a_lock_that_is_released_just_before_its_renewal_may_have_lost_its_thread(
    other: Callable[[], Other], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, thread = Lock(NAME, ttl=600), other()
    thread(lock.acquire)

    def release() -> None:
        thread(lock.release)
        thread.end()

    over = inside.before_next_round(monkeypatch, release)
    renew_all()
    assert over.wait(GENEROUS)
    assert "owner-ended" not in caplog.text


def test_a_renewal_that_comes_to_nothing_after_the_release_is_the_last_one(
    far: Proxy, holds: Callable[..., Lock], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = holds(ttl=3, using="far")
    arrived = far.delay_answer(str(lock.token), 0, times=1000)
    held = far.hold_request("keep")
    renew_all("far")
    assert held.caught.wait(GENEROUS)
    lock.release()
    eventually(lambda: "event=renewal-failed" in caplog.text)
    held.let_go()
    with Lock("another", ttl=3, using="far") as another:  # it is renewed long after the next try would have been made
        eventually(renewed(another))
    assert arrived.seen == 2  # the release, and then this renewal


def test_a_renewal_that_crosses_a_change_of_the_fence_is_no_loss(
    far: Proxy,
    holds: Callable[..., Lock],
    other: Callable[[], Other],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It names the fence, and finds another one."""
    lock = holds(ttl=60, using="far")
    eventually(lambda: hears("far") and 10 < inside.due_in(lock) < 30)
    before, late, asked = lock.fence, far.hold_request("keep"), far.delay_answer("keep", 0, times=1000)
    renew_all("far")
    assert late.caught.wait(GENEROUS)
    assert before < inside.drawing(lock)() == lock.fence
    late.let_go()
    eventually(lambda: asked.seen == 2 and 10 < inside.due_in(lock) < 30)  # it was asked for once more
    changing = far.hold_answer("raise")
    drawn = other().start(inside.drawing(lock))
    assert changing.caught.wait(GENEROUS)
    renew_all("far")
    eventually(lambda: 0 < inside.due_in(lock) < 1)
    assert asked.seen == 2  # not with a fence that is about to change
    changing.let_go()
    assert drawn.result(GENEROUS) == lock.fence
    assert not lock.lost
    late = far.hold_request("keep")
    renew_all("far")
    assert late.caught.wait(GENEROUS)
    inside.drawing(lock)()
    lock.release()
    late.let_go()
    again = renewed(another := holds(ttl=60, using="far"))
    renew_all("far")
    eventually(again)  # by the thread that has brought that answer
    assert "event=lost" not in caplog.text
    another.release()


def test_a_release_in_the_background_drops_any_number_of_dead_waiters(
    client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    client.zadd(QUEUE, {f"dead-{number}": number + 1 for number in range(6000)})
    inside.release_later(lock)
    eventually(lambda: not client.exists(LOCK, QUEUE))


class Collector(Interrupter):
    """Closes a generator at that place, as the garbage collection may anywhere."""

    def __init__(self, generator: Any, place: int | None) -> None:
        super().__init__(lambda file: "django_redislock" in file, place)
        self._generator = generator

    def strike(self) -> None:
        self._generator.close()


@pytest.mark.complete
def test_a_generator_that_is_collected_anywhere_in_the_middle_of_our_work_gives_its_lock_back(
    client: redis.Redis, eventually: Eventually
) -> None:
    def forgotten() -> Iterator[None]:
        with Lock("forgotten", ttl=600):
            yield

    def section() -> None:
        with Lock(NAME, ttl=600):
            pass

    def collected_at(place: int | None) -> int:
        generator = forgotten()
        next(generator)
        one = Collector(generator, place)
        one.run(section)
        del generator
        return one.places

    places = max(collected_at(None) for _ in range(2))
    for place in range(places):
        collected_at(place)
        eventually(lambda: not holder(client, "forgotten"))
    assert places > 50


# -- what cannot be logged, or goes wrong ------------------------------------------------------------------------------


@pytest.fixture
def broken_filter() -> Iterator[list[str]]:
    """A logging filter of the site that raises; the messages that it has seen."""
    met: list[str] = []

    def broken(record: logging.LogRecord) -> bool:
        met.append(record.getMessage())
        raise ZeroDivisionError

    logger = logging.getLogger(LOGGER)
    logger.addFilter(broken)
    yield met
    logger.removeFilter(broken)


@pytest.mark.parametrize("why", ["a filter raises", "of the level"])
def test_a_renewal_that_failed_is_tried_again_though_that_is_not_logged(
    why: str,
    far: Proxy,
    holds: Callable[..., Lock],
    eventually: Eventually,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = holds(ttl=30, using="far")
    met: list[str] = request.getfixturevalue("broken_filter") if why == "a filter raises" else []
    with caplog.at_level(logging.WARNING if why == "a filter raises" else logging.ERROR, LOGGER):
        again = renewed(lock)
        far.cut()
        renew_all("far")
        eventually(lambda: far.refused and (why != "a filter raises" or "event=renewal-failed" in str(met)))
        far.mend()
        eventually(again)
    lock.release()


def test_a_loss_is_told_though_that_cannot_be_logged(eventually: Eventually, broken_filter: list[str]) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=600, on_lost=losses.append)
    lock.acquire()
    lose(lock)
    eventually(lambda: losses)
    assert any("event=lost" in message for message in broken_filter)


def test_a_renewer_that_fails_goes_on_though_that_cannot_be_logged(
    holds: Callable[..., Lock], eventually: Eventually, broken_filter: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    lock = holds(ttl=30)
    again = renewed(lock)
    inside.before_next_round(monkeypatch, fail)
    renew_all()
    eventually(lambda: any("event=watchdog-failed" in message for message in broken_filter))
    eventually(again)
    lock.release()


def test_an_interrupted_section_that_cannot_be_undone_is_logged_once_and_keeps_no_other_from_being_undone(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise TypeError("unhashable")

    inside.limit(monkeypatch, idle_look=0.05, look_around=0.05)
    undone: list[bool] = []
    for undo in (fail, lambda: undone.append(True)):
        over = inside.interrupt_section(undo)
        with Lock(NAME):  # which wakes it up
            eventually(over)
    eventually(lambda: undone and "TypeError: unhashable" in caplog.text)
    assert caplog.text.count("TypeError: unhashable") == 1


# -- a process that gets no more threads -------------------------------------------------------------------------------


def test_a_lock_is_renewed_and_messages_are_heard_as_soon_as_there_are_threads_again(
    unused: str, eventually: Eventually, caplog: pytest.LogCaptureFixture, no_threads: Callable[[bool], object]
) -> None:
    with Lock("first"):
        pass  # the renewer's own thread runs
    no_threads(True)
    lock, silent = Lock(NAME, ttl=6, using=unused), Lock("silent", ttl=6, using=unused, poll=True)
    lock.acquire()
    silent.acquire()
    both = renewed(lock), renewed(silent)
    eventually(lambda: "event=watchdog-failed" in caplog.text and "can't start new thread" in caplog.text)
    eventually(lambda: "event=renewal-failed" in caplog.text)
    no_threads(False)
    eventually(lambda: all(again() for again in both) and hears(unused))
    lock.release()
    silent.release()


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lock_is_renewed_though_the_thread_that_sent_its_last_renewal_has_died(
    holds: Callable[..., Lock], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = holds()
    died = inside.break_sender(monkeypatch)
    renew_all()
    assert died.wait(GENEROUS)
    again = renewed(lock)

    def goes_on() -> bool:
        renew_all()
        return again()

    eventually(goes_on)
    lock.release()
