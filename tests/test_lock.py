"""What users see of Lock and FairLock, with a real server, real threads and real processes."""

from __future__ import annotations

import contextvars
import itertools
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import (
    FairLock,
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    force_release,
    get_lock,
    lock_acquired,
    lock_force_released,
    lock_lost,
    lock_released,
    scripts,
)
from django_redislock.connection import get_backend
from django_redislock.lease import FORCED
from django_redislock.listener import get_listener
from django_redislock.lock import _holdings
from django_redislock.steps import Steps
from django_redislock.watchdog import watchdog
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, TOKEN, Ghost, Other, flag, holder, queued, server_time
from .processes import Worker
from .proxy import proxy

Eventually = Callable[..., Any]
Listens = Callable[[Lock], None]
Settings = Any  # its type has another name in each pytest-django
Start = Callable[..., Worker]


# -- acquire -----------------------------------------------------------------------------------------------------------


def test_a_free_lock_is_got_at_once_and_nobody_else_gets_it(kind: type[Lock], other: Callable[[], Other]) -> None:
    thread = other()
    assert kind(NAME).acquire()
    assert thread(lambda: kind(NAME, blocking=False).acquire()) is False
    assert thread(lambda: kind(NAME, blocking_timeout=0).acquire()) is False
    assert thread(lambda: kind(NAME).acquire(blocking=False)) is False
    assert thread(lambda: kind(NAME).acquire(blocking_timeout=0)) is False
    assert thread(lambda: kind("order:43").acquire(blocking=False)) is True


def test_a_single_try_leaves_nothing_in_the_queue(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis
) -> None:
    kind(NAME).acquire()
    assert not other()(lambda: kind(NAME, blocking=False).acquire())
    assert queued(client) == 0


@pytest.mark.parametrize("timeout", [0.25, timedelta(milliseconds=250)])
def test_a_bounded_wait_ends_in_time_and_leaves_the_queue(
    kind: type[Lock], timeout: float | timedelta, other: Callable[[], Other], client: redis.Redis
) -> None:
    kind(NAME).acquire()
    begin = monotonic()
    assert other()(lambda: kind(NAME, blocking_timeout=timeout).acquire()) is False
    assert 0.25 <= monotonic() - begin < 5
    assert queued(client) == 0


def test_the_arguments_of_acquire_override_those_of_the_constructor(
    kind: type[Lock], other: Callable[[], Other]
) -> None:
    thread = other()
    kind(NAME).acquire()
    begin = monotonic()
    assert not thread(lambda: kind(NAME, blocking=False).acquire(blocking=True, blocking_timeout=0.2))
    assert monotonic() - begin >= 0.2
    assert not thread(lambda: kind(NAME, blocking_timeout=GENEROUS * 2).acquire(blocking_timeout=0.01))
    assert not thread(lambda: kind(NAME, blocking_timeout=GENEROUS * 2).acquire(blocking=False))


def test_without_a_timeout_the_setting_bounds_the_wait(
    kind: type[Lock], other: Callable[[], Other], settings: Settings
) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.1}
    kind(NAME).acquire()
    assert not other()(kind(NAME).acquire)


def test_without_any_timeout_a_waiter_waits_until_its_turn_comes(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = kind(NAME)
    lock.acquire()
    waiting = other().start(kind(NAME).acquire)
    eventually(lambda: client.zcard(KEYS.queue))
    assert not waiting.done()
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_a_lock_shows_its_name_and_not_its_token(kind: type[Lock]) -> None:
    assert repr(kind(NAME, token=TOKEN)) == f"<{kind.__name__} {NAME!r}>"


def test_what_cannot_be_an_option_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match="on_lost must be a plain function, 'cancel' or None, not 'beep'"):
        Lock(NAME, on_lost="beep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"blocking_timeout must be 0 or more seconds and finite, not -1"):
        Lock(NAME, blocking_timeout=-1)
    with pytest.raises(ValueError, match=r"ttl must be at least 0.001 seconds and finite, not 0"):
        Lock(NAME, ttl=0)
    with pytest.raises(ValueError, match="A token must be") as caught:
        Lock(NAME, token="short secret")
    assert "secret" not in str(caught.value)


# -- release and errors ------------------------------------------------------------------------------------------------


def test_release_without_acquire_says_that_the_lock_is_not_owned(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis
) -> None:
    lock = kind(NAME)
    with pytest.raises(LockNotOwned, match="does not hold it") as caught:
        lock.release()
    assert not isinstance(caught.value, LockLost)
    lock.acquire()
    with pytest.raises(LockNotOwned) as caught:
        other()(lock.release)
    assert not isinstance(caught.value, LockLost)
    assert holder(client) == lock.token
    lock.release()
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        lock.release()


def test_release_of_a_lost_lock_raises_lock_lost_and_forgets_it(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    lock.acquire()
    fence = lock.fence
    client.delete(KEYS.lock)
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert (caught.value.name, caught.value.fence) == (NAME, fence)
    assert caught.value.reason
    with pytest.raises(LockNotOwned) as again:
        lock.release()
    assert not isinstance(again.value, LockLost)


def test_the_lock_of_another_holder_survives_the_release_of_a_lost_one(kind: type[Lock], client: redis.Redis) -> None:
    lock, second = kind(NAME), kind(NAME)
    lock.acquire()
    client.delete(KEYS.lock)
    assert second.acquire(blocking=False)
    with pytest.raises(LockLost):
        lock.release()
    assert holder(client) == second.token
    second.release()


def test_errors_carry_the_name_and_are_errors_of_redis_py(kind: type[Lock], other: Callable[[], Other]) -> None:
    lock = kind(NAME)
    lock.acquire()

    def enter() -> None:
        with kind(NAME, blocking=False):
            raise AssertionError("not reached")

    errors: list[LockError] = []
    for call, expected in ((enter, LockNotAcquired), (kind(NAME).release, LockNotOwned)):
        with pytest.raises(expected) as caught:
            other()(call)
        errors.append(caught.value)
    with pytest.raises(LockError) as waiting_for_itself:
        kind(NAME).acquire()
    errors.append(waiting_for_itself.value)
    for error in errors:
        assert error.name == NAME
        assert NAME in str(error)
        assert isinstance(error, redis.exceptions.LockError)
    assert isinstance(errors[1], redis.exceptions.LockNotOwnedError)
    assert issubclass(LockLost, LockNotOwned)
    assert issubclass(LockUnavailable, LockError)


# -- extend, reacquire -------------------------------------------------------------------------------------------------


def test_extend_adds_to_the_lease_and_reacquire_resets_it(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME, ttl=100)
    lock.acquire()
    assert lock.extend(50) is True
    assert 130_000 < int(client.pttl(KEYS.lock)) <= 150_000
    assert 130 < lock.remaining() <= 150
    assert lock.extend(timedelta(seconds=20), replace_ttl=True) is True
    assert 10_000 < int(client.pttl(KEYS.lock)) <= 20_000
    assert 10 < lock.remaining() <= 20
    assert lock.reacquire() is True
    assert 80_000 < int(client.pttl(KEYS.lock)) <= 100_000
    assert 80 < lock.remaining() <= 100


def test_extend_and_reacquire_need_a_lock_that_is_held(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    for call in (lambda: lock.extend(1), lock.reacquire, lock.check, lock.detach):
        with pytest.raises(LockNotOwned) as caught:
            call()
        assert not isinstance(caught.value, LockLost)
    lock.acquire()
    client.delete(KEYS.lock)
    with pytest.raises(LockLost, match="gone from Redis"):
        lock.extend(1)
    with pytest.raises(LockLost):
        lock.reacquire()


def test_extend_of_a_lock_that_somebody_else_has_now_says_so(kind: type[Lock], client: redis.Redis) -> None:
    lock, second = kind(NAME), kind(NAME)
    lock.acquire()
    client.delete(KEYS.lock)
    assert second.acquire(blocking=False)
    with pytest.raises(LockLost, match="somebody else holds it"):
        lock.extend(1)
    assert holder(client) == second.token


# -- what a lock says about itself -------------------------------------------------------------------------------------


def test_locked_is_about_anybody_and_owned_about_this_thread(kind: type[Lock], other: Callable[[], Other]) -> None:
    lock, thread = kind(NAME), other()
    assert (lock.locked(), lock.owned()) == (False, False)
    lock.acquire()
    assert (lock.locked(), lock.owned()) == (True, True)
    assert thread(lambda: (lock.locked(), lock.owned())) == (True, False)
    assert (kind(NAME).locked(), kind(NAME).owned()) == (True, False)
    assert kind(NAME, token=lock.token).owned()
    lock.release()
    assert (lock.locked(), lock.owned()) == (False, False)


def test_owned_asks_redis(kind: type[Lock], client: redis.Redis) -> None:
    lock, second = kind(NAME), kind(NAME)
    lock.acquire()
    client.delete(KEYS.lock)
    assert not lock.owned()
    assert second.acquire(blocking=False)
    assert (lock.locked(), lock.owned(), second.owned()) == (True, False, True)


def test_remaining_and_lost_follow_the_local_clock(client: redis.Redis, eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=1, auto_renew=False)
    assert (lock.remaining(), lock.lost) == (0.0, False)
    lock.acquire()
    assert 0 < lock.remaining() <= 1
    assert not lock.lost
    lock.check()
    eventually(lambda: lock.lost)
    assert lock.remaining() == 0.0
    with pytest.raises(LockLost, match=r"lease ended"):
        lock.check()
    eventually(lambda: not client.exists(KEYS.lock))  # it ends there a little later
    with pytest.raises(LockLost):
        lock.release()


def test_the_lease_by_the_local_clock_is_never_longer_than_in_redis(client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=50)
    lock.acquire()
    for _ in range(20):
        local = lock.remaining()
        assert local * 1000 <= int(client.pttl(KEYS.lock)) + 1000 * local - 1000 * lock.remaining()


def test_each_acquisition_has_a_token_of_its_own(kind: type[Lock]) -> None:
    lock = kind(NAME)
    assert lock.token is None
    assert lock.fence is None
    tokens: set[str] = set()
    for _ in range(20):
        with lock:
            assert lock.token is not None
            assert re.fullmatch(r"[A-Za-z0-9_-]{22,}", lock.token)
            tokens.add(lock.token)
        assert lock.token is lock.fence is None
    assert len(tokens) == 20


def test_fences_grow_strictly_also_across_names_threads_and_a_flush(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis
) -> None:
    fences = []

    def take(name: str) -> None:
        with kind(name) as lock:
            fences.append(lock.fence)

    thread = other()
    for _ in range(5):
        take(NAME)
        take("order:43")
        thread(lambda: take(NAME))
        client.flushall()
    assert None not in fences
    assert all(one < two for one, two in itertools.pairwise(fences))  # type: ignore[operator]


def test_fences_grow_even_when_redis_forgets_them_and_its_clock_is_behind(
    kind: type[Lock], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_backend(), "known", 0)  # set back at the end: the next test lives in the present
    future = server_time(client) + 10**9
    client.set("redislock{0}:fence", future)
    with kind(NAME) as lock:
        assert lock.fence == future + 1
    client.flushall()
    with kind(NAME) as lock:
        assert lock.fence == future + 2


def test_the_ttl_comes_from_the_constructor_the_first_matching_pattern_or_the_setting(
    kind: type[Lock], settings: Settings, client: redis.Redis
) -> None:
    assert kind(NAME).ttl == 30
    settings.REDISLOCK = {"TTL": 40, "TTLS": {"order:4?": 50, "order:*": 60}}
    assert [kind(name).ttl for name in ("seat:1", NAME, "order:5")] == [40, 50, 60]
    assert kind(NAME, ttl=timedelta(seconds=70)).ttl == 70
    assert kind(NAME, ttl=1.5).ttl == 1.5
    lock = kind(NAME)
    lock.acquire()
    assert 40_000 < int(client.pttl(KEYS.lock)) <= 50_000
    settings.REDISLOCK = {}
    assert lock.ttl == 50
    assert lock.name == NAME
    lock.release()


def test_info_tells_the_holder_and_the_waiters_in_order(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = kind(NAME, ttl=100)
    assert lock.info() is None
    lock.acquire()
    threads = [other() for _ in range(3)]
    waiting = []
    for index, thread in enumerate(threads):
        cls = FairLock if index == 1 else Lock
        waiting.append(thread.start(lambda cls=cls: cls(NAME).acquire(blocking_timeout=GENEROUS)))  # type: ignore[misc]
        eventually(lambda index=index: client.zcard(KEYS.queue) == index + 1)
    info = lock.info()
    assert info is not None
    assert (info.name, info.fence, info.waiters) == (NAME, lock.fence, 3)
    assert re.fullmatch(rf"\S+:{os.getpid()}:MainThread.*", info.owner)
    assert abs(info.since - datetime.now(timezone.utc)) < timedelta(seconds=GENEROUS)
    assert (
        timedelta(0) < info.expires - info.since - timedelta(seconds=100) + timedelta(seconds=1) < timedelta(seconds=2)
    )
    assert 0 <= info.held_for < GENEROUS
    assert 100 - GENEROUS < info.lease_left <= 100
    assert [one.fair for one in info.queue] == [False, True, False]
    names = [thread._thread.name for thread in threads]
    assert [one.owner.split(":", 2)[2].startswith(name) for one, name in zip(info.queue, names, strict=True)] == [
        True
    ] * 3
    assert [one.waited for one in info.queue] == sorted((one.waited for one in info.queue), reverse=True)
    assert str(lock.token) not in repr(info)
    lock.release()
    for thread, future in zip(threads, waiting, strict=True):
        assert future.result(GENEROUS)
        force_release(NAME)
        thread.end()
    assert lock.info() is None


# -- whose acquisition -------------------------------------------------------------------------------------------------


def test_one_object_shared_by_threads_has_an_acquisition_per_thread(
    kind: type[Lock], other: Callable[[], Other]
) -> None:
    lock, thread = kind(NAME), other()
    lock.acquire()
    mine = lock.token, lock.fence
    waiting = thread.start(lambda: lock.acquire(blocking_timeout=GENEROUS))
    assert mine == (lock.token, lock.fence)
    lock.release()
    assert waiting.result(GENEROUS)
    assert (lock.token, lock.fence) == (None, None)
    theirs = thread(lambda: (lock.token, lock.fence))
    assert theirs[0] not in (None, mine[0])
    assert theirs[1] > mine[1]  # type: ignore[operator]
    assert (lock.owned(), thread(lock.owned)) == (False, True)
    thread(lock.release)
    assert not lock.locked()


def test_threads_that_share_one_object_exclude_each_other(kind: type[Lock], other: Callable[[], Other]) -> None:
    lock = kind(NAME)
    inside: list[int] = []
    worst = []

    def sections() -> None:
        for _ in range(15):
            with lock:
                inside.append(1)
                worst.append(len(inside))
                threading.Event().wait(0.0005)  # let others run
                inside.pop()

    for future in [other().start(sections) for _ in range(6)]:
        future.result(GENEROUS)
    assert worst == [1] * 90


def test_a_reentrant_lock_is_free_after_as_many_releases_as_acquires(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME, reentrant=True)
    assert lock.acquire()
    token, fence = lock.token, lock.fence
    assert lock.acquire(blocking=False)
    assert lock.acquire()
    assert (lock.token, lock.fence) == (token, fence)
    lock.release()
    lock.release()
    assert holder(client) == token
    assert lock.owned()
    lock.release()
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        lock.release()


def test_reentrance_holds_across_objects_but_not_across_threads(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis
) -> None:
    outer, inner = kind(NAME), kind(NAME, reentrant=True)
    outer.acquire()
    assert inner.acquire()
    assert inner.token == outer.token
    assert not other()(lambda: kind(NAME, reentrant=True).acquire(blocking=False))
    outer.release()
    assert inner.owned()
    assert holder(client) == inner.token
    with pytest.raises(LockNotOwned):
        outer.release()
    inner.release()
    assert holder(client) == ""


def test_waiting_without_end_for_oneself_raises(kind: type[Lock]) -> None:
    lock = kind(NAME)
    lock.acquire()
    for again in (lock, kind(NAME)):
        with pytest.raises(LockError, match="would wait for itself"):
            again.acquire()
    assert lock.owned()
    lock.release()


def test_with_a_bound_a_lock_held_by_oneself_is_simply_not_got(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    lock.acquire()
    assert lock.acquire(blocking=False) is False
    assert kind(NAME).acquire(blocking_timeout=0.05) is False
    assert lock.owned()
    assert client.zcard(KEYS.queue) == 0
    lock.release()
    assert holder(client) == ""


# -- with --------------------------------------------------------------------------------------------------------------


def test_with_raises_when_the_lock_is_not_got_in_time(kind: type[Lock], other: Callable[[], Other]) -> None:
    def enter() -> None:
        with kind(NAME, blocking_timeout=0.05):
            raise AssertionError("not reached")

    thread = other()
    with kind(NAME) as lock:
        assert lock.owned()
        with pytest.raises(LockNotAcquired, match=NAME):
            thread(enter)
    assert not lock.locked()


def test_with_tells_at_its_end_that_the_lock_was_lost(client: redis.Redis) -> None:
    with pytest.raises(LockLost), Lock(NAME):
        client.delete(KEYS.lock)


def test_an_exception_in_the_block_wins_over_the_loss(
    kind: type[Lock], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def section() -> None:
        with kind(NAME):
            client.delete(KEYS.lock)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        section()
    assert caplog.text.count("event=lost") == 1
    assert "event=not-released" not in caplog.text  # which would tell the same again


def test_an_exception_in_the_block_wins_over_a_release_that_came_before(
    kind: type[Lock], caplog: pytest.LogCaptureFixture
) -> None:
    def section() -> None:
        with kind(NAME) as lock:
            lock.release()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        section()
    assert f"event=not-released name={NAME} error=" in caplog.text


def test_what_a_block_that_raised_could_not_release_is_given_back_in_the_end(
    kind: type[Lock], server: RedisServer, settings: Settings, client: redis.Redis, eventually: Eventually
) -> None:
    with proxy(server.port) as network:
        far = {**settings.CACHES["default"], "LOCATION": network.url, "OPTIONS": {"SOCKET_TIMEOUT": 1}}
        settings.CACHES = {**settings.CACHES, "far": far}

        def section() -> None:
            with kind(NAME, ttl=600, using="far"):
                network.cut()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            section()
        assert holder(client)
        network.mend()
        eventually(lambda: not holder(client))


# -- renewal and loss --------------------------------------------------------------------------------------------------


def test_renewal_keeps_a_lock_beyond_its_ttl(client: redis.Redis, eventually: Eventually) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.9, on_lost=losses.append)
    begin = monotonic()
    lock.acquire()
    fence = lock.fence
    eventually(lambda: monotonic() - begin > 2)
    assert lock.owned()
    assert not lock.lost
    assert lock.fence == fence
    assert 0 < lock.remaining() <= 0.9
    lock.release()
    assert losses == []


@pytest.mark.parametrize("where", ["option", "setting"])
def test_without_renewal_the_lease_ends_and_on_lost_is_called_once(
    where: str, settings: Settings, client: redis.Redis, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": where == "option"}
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.3, auto_renew=False if where == "option" else None, on_lost=losses.append)
    lock.acquire()
    fence = lock.fence
    eventually(lambda: losses)
    assert lock.lost
    eventually(lambda: holder(client) == "")
    with pytest.raises(LockLost):
        lock.release()
    assert len(losses) == 1
    assert (type(losses[0]), losses[0].name, losses[0].fence) == (LockLost, NAME, fence)


def test_the_option_auto_renew_overrides_the_setting(settings: Settings, eventually: Eventually) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": False}
    lock = Lock(NAME, ttl=0.9, auto_renew=True)
    begin = monotonic()
    lock.acquire()
    eventually(lambda: monotonic() - begin > 1.5)
    lock.release()


def test_a_flush_is_noticed_at_the_next_renewal(
    client: redis.Redis, eventually: Eventually, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=3, on_lost=losses.append)
    lock.acquire()
    begin, fence = monotonic(), lock.fence
    client.flushall()
    eventually(lambda: losses)
    assert monotonic() - begin < 2.5  # not by the local clock
    assert lock.lost
    assert "gone from Redis" in losses[0].reason
    with pytest.raises(LockLost, match="gone from Redis"):
        lock.check()
    with pytest.raises(LockLost):
        lock.release()
    assert heard[1:] == [("lost", {"name": NAME, "fence": fence, "reason": losses[0].reason})]
    assert len(losses) == 1


def test_a_lock_that_somebody_else_has_now_is_lost_and_left_alone(client: redis.Redis, eventually: Eventually) -> None:
    losses: list[LockLost] = []
    lock, second = Lock(NAME, ttl=0.9, on_lost=losses.append), Lock(NAME)
    lock.acquire()
    client.delete(KEYS.lock)
    assert second.acquire(blocking=False)
    eventually(lambda: losses)
    assert losses[0].reason == "somebody else holds it now"
    assert holder(client) == second.token


def test_lost_is_set_before_on_lost_is_called(other: Callable[[], Other]) -> None:
    seen: Future[bool] = Future()
    thread = other()
    lock = Lock(NAME, on_lost=lambda error: seen.set_result(thread(lambda: lock.lost)))
    thread(lock.acquire)
    thread(lambda: force_release(NAME))
    # told by a message, as soon as the listener runs, or by the next renewal
    assert seen.result(GENEROUS) is True


def test_an_on_lost_that_raises_stops_neither_the_renewal_nor_the_news_of_other_locks(
    client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def beep(error: LockLost) -> None:
        raise ZeroDivisionError

    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.3, auto_renew=False, on_lost=beep)
    second = Lock("order:43", ttl=0.6, auto_renew=False, on_lost=losses.append)
    lock.acquire()
    second.acquire()
    eventually(lambda: losses)
    assert lock.lost
    assert "event=on-lost-failed" in caplog.text


def test_renewal_ends_at_max_hold(settings: Settings, eventually: Eventually, caplog: pytest.LogCaptureFixture) -> None:
    settings.REDISLOCK = {"MAX_HOLD": 0.5}
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.9, on_lost=losses.append)
    begin = monotonic()
    lock.acquire()
    eventually(lambda: losses)
    assert monotonic() - begin > 1  # it was renewed at first
    assert "event=max-hold" in caplog.text
    eventually(lambda: not lock.locked())


def test_the_lock_of_a_thread_that_ended_is_not_renewed_and_a_warning_says_so(
    other: Callable[[], Other], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock, thread = Lock(NAME, ttl=3), other()
    thread(lock.acquire)
    thread.end()
    eventually(lambda: "event=owner-ended" in caplog.text)
    eventually(lambda: not lock.locked())


def test_the_end_of_a_lease_is_told_when_redis_refuses_the_watchdog(
    own: RedisServer, settings: Settings, eventually: Eventually
) -> None:
    database = {**settings.CACHES["default"], "LOCATION": f"redis://127.0.0.1:{own.port}/1"}
    settings.CACHES = {**settings.CACHES, "default": database}
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=0.9, on_lost=losses.append)
    lock.acquire()
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-select")  # no new connection reaches its database
        client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: losses)
    assert lock.lost


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("extended", [False, True])
def test_a_force_released_holder_hears_of_it_by_message(
    extended: bool, listens: Listens, eventually: Eventually, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=300, on_lost=losses.append)
    lock.acquire()
    if extended:
        lock.extend(300)
    fence = lock.fence
    listens(lock)
    assert force_release(NAME, by="the test") is not None
    eventually(lambda: losses, within=5)
    assert lock.lost
    assert losses[0].reason == "it was released by force"
    with pytest.raises(LockLost, match="by force"):
        lock.release()
    assert sorted(heard[1:]) == [
        ("force", {"name": NAME, "by": "the test"}),
        ("lost", {"name": NAME, "fence": fence, "reason": "it was released by force"}),
    ]


# -- signals -----------------------------------------------------------------------------------------------------------


def test_acquire_and_release_send_signals(
    kind: type[Lock],
    other: Callable[[], Other],
    client: redis.Redis,
    eventually: Eventually,
    heard: list[tuple[str, dict[str, Any]]],
) -> None:
    lock = kind(NAME)
    with lock:
        first = lock.fence
        begin = monotonic()
        waiting = other().start(lambda: kind(NAME).acquire(blocking_timeout=GENEROUS))
        eventually(lambda: client.zcard(KEYS.queue) and monotonic() - begin > 0.05)
    assert waiting.result(GENEROUS)
    # two threads: the next holder's signal may come before the one of the release that made it so
    ((_, left),) = [entry for entry in heard if entry[0] == "released"]
    (_, got), (_, next_got) = [entry for entry in heard if entry[0] == "acquired"]
    assert (got["name"], got["fence"], left["name"], left["fence"]) == (NAME, first, NAME, first)
    assert 0 <= got["waited"] < GENEROUS
    assert left["held"] >= 0.05
    assert next_got["fence"] > first
    assert next_got["waited"] > 0


def test_a_lock_that_was_not_got_sends_nothing(
    kind: type[Lock], other: Callable[[], Other], heard: list[tuple[str, dict[str, Any]]]
) -> None:
    kind(NAME).acquire()
    assert not other()(lambda: kind(NAME, blocking=False).acquire())
    assert [which for which, _ in heard] == ["acquired"]


def test_a_receiver_that_raises_breaks_nothing(eventually: Eventually, caplog: pytest.LogCaptureFixture) -> None:
    def receiver(**facts: object) -> None:
        raise ZeroDivisionError

    losses: list[LockLost] = []
    signals = (lock_acquired, lock_released, lock_lost, lock_force_released)
    for sent in signals:
        sent.connect(receiver, weak=False)
    try:
        with Lock(NAME) as lock:
            assert lock.owned()
        assert not lock.locked()
        lost = Lock(NAME, ttl=0.3, auto_renew=False, on_lost=losses.append)
        lost.acquire()
        assert force_release(NAME) is not None
        eventually(lambda: losses)
    finally:
        for sent in signals:
            sent.disconnect(receiver)
    assert caplog.text.count("event=receiver-failed") == 5


# -- handing a lock to another process ---------------------------------------------------------------------------------

ADOPTER = """
say("ready")
token = hear()
lock = Lock(name, token=token, ttl=ttl)
if adopt:
    say("adopted", lock.acquire(), lock.fence, lock.token == token)
    hear()
    say("state", lock.owned(), lock.lost)
lock.release()
say("released")
hear()
"""


def test_a_detached_lock_is_released_by_the_token_in_another_process(start: Start, client: redis.Redis) -> None:
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=30, adopt=False)
    lock = Lock(NAME, on_lost=losses.append)
    lock.acquire()
    token = lock.detach()
    assert (lock.token, lock.fence, lock.lost, lock.remaining(), lock.owned()) == (None, None, False, 0.0, False)
    assert holder(client) == token
    with pytest.raises(LockNotOwned):
        lock.release()
    worker.expect("ready")
    worker.tell(token)
    worker.expect("released")
    assert holder(client) == ""
    assert losses == []


def test_an_adopted_lock_is_renewed_by_the_process_that_adopted_it(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=1.2, adopt=True)
    worker.expect("ready")
    lock = Lock(NAME, ttl=1.2, on_lost=losses.append)
    lock.acquire()
    begin, fence, token = monotonic(), lock.fence, lock.detach()
    worker.tell(token)
    assert worker.expect("adopted") == ["True", str(fence), "True"]
    eventually(lambda: monotonic() - begin > 2.6)
    assert holder(client) == token
    worker.tell()
    assert worker.expect("state") == ["True", "False"]
    worker.expect("released")
    assert holder(client) == ""
    assert losses == []


def test_a_detached_lock_is_not_renewed_here(client: redis.Redis, eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=0.6)
    lock.acquire()
    lock.detach()
    eventually(lambda: holder(client) == "", within=10)


def test_a_lock_that_was_handed_over_has_its_full_ttl_when_it_is_detached(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    def take() -> str:
        lock = kind(NAME, ttl=100)
        assert lock.acquire(blocking_timeout=GENEROUS)
        return lock.detach()

    lock = kind(NAME)
    lock.acquire()
    waiting = other().start(take)
    eventually(lambda: client.zcard(KEYS.queue) and _waited(client) > 150_000)
    lock.release()
    token = waiting.result(GENEROUS)
    assert holder(client) == token
    assert int(client.pttl(KEYS.lock)) > 60_000  # a handoff's own lease is a third


def test_a_token_that_does_not_hold_the_lock_cannot_release_it(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    lock.acquire()
    with pytest.raises(LockNotOwned):
        kind(NAME, token=TOKEN).release()
    # tokens compare whole, never by prefix
    assert lock.token is not None
    long = kind("order:43")
    long.acquire(token=TOKEN + "-and-more")
    with pytest.raises(LockNotOwned):
        kind("order:43", token=TOKEN).release()
    assert not kind("order:43", token=TOKEN).owned()
    assert holder(client, "order:43") == TOKEN + "-and-more"
    assert holder(client) == lock.token


def test_detach_of_a_lost_lock_raises(eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=0.2, auto_renew=False)
    lock.acquire()
    eventually(lambda: lock.lost)
    with pytest.raises(LockLost):
        lock.detach()


# -- order -------------------------------------------------------------------------------------------------------------


def _waited(client: redis.Redis) -> int:
    """Microseconds that the head of the queue has waited."""
    head = client.zrange(KEYS.queue, 0, 0, withscores=True)
    return server_time(client) - int(head[0][1]) if head else 0


def test_threads_get_a_fair_lock_in_the_order_in_which_they_asked(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = FairLock(NAME)
    order: list[int] = []

    def section(number: int) -> None:
        with FairLock(NAME, blocking_timeout=GENEROUS):
            order.append(number)

    lock.acquire()
    waiting = []
    for number in range(20):
        waiting.append(other().start(lambda number=number: section(number)))  # type: ignore[misc]
        eventually(lambda number=number: client.zcard(KEYS.queue) == number + 1)
    lock.release()
    for future in waiting:
        future.result(GENEROUS)
    assert order == list(range(20))


IN_TURN = """
lock = {"Lock": Lock, "FairLock": FairLock}[kind](name)
say("ready")
hear()
with lock:
    say("got", lock.fence)
    hear()
say("done")
hear()
"""


def test_processes_get_a_fair_lock_in_the_order_in_which_they_asked(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    workers = [start(IN_TURN, name=NAME, kind="FairLock") for _ in range(4)]
    for worker in workers:
        worker.expect("ready")
    workers = [workers[index] for index in (2, 0, 3, 1)]
    with FairLock(NAME) as lock:
        fences = [lock.fence]
        for number, worker in enumerate(workers, 1):
            worker.tell()
            eventually(lambda number=number: client.zcard(KEYS.queue) == number)
    for number, worker in enumerate(workers, 1):
        fences.append(int(worker.expect("got")[0]))
        assert client.zcard(KEYS.queue) == len(workers) - number
        worker.tell()
        worker.expect("done")
    assert fences == sorted(fences)  # type: ignore[type-var]
    assert holder(client) == ""


@pytest.mark.parametrize(
    ("head", "newcomer", "overtakes"), [("L", Lock, True), ("L", FairLock, False), ("F", Lock, False)]
)
def test_only_a_lock_overtakes_and_only_a_lock_that_came_just_now(
    head: str, newcomer: type[Lock], overtakes: bool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    waiter = ghost()
    for _ in range(50):
        client.flushall()
        first, second = newcomer(NAME), newcomer(NAME)
        first.acquire()
        begin = server_time(client)
        waiter.queue(TOKEN, mode=head)
        assert queued(client) == 1
        first.release()
        got = second.acquire(blocking=False)
        if server_time(client) - begin < 80_000:  # fast enough to tell
            break
    else:
        pytest.fail("the machine is too slow to tell")
    assert got is overtakes
    assert holder(client) == (second.token if overtakes else TOKEN if head == "F" else "")


@pytest.mark.parametrize("newcomer", [Lock, FairLock])
def test_a_lock_waiter_that_has_waited_100_ms_is_handed_the_lock(
    newcomer: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock, waiter = Lock(NAME), other()
    successes: list[bool] = []
    enough = threading.Event()

    def try_again_and_again() -> None:
        while not enough.is_set():
            if newcomer(NAME).acquire(blocking=False):
                successes.append(True)
                return

    lock.acquire()
    waiting = waiter.start(lambda: Lock(NAME).acquire(blocking_timeout=GENEROUS, token=TOKEN))
    eventually(lambda: _waited(client) > 150_000)
    trying = other().start(try_again_and_again)
    lock.release()
    try:
        assert holder(client) == TOKEN
        assert waiting.result(GENEROUS)
    finally:
        enough.set()
        trying.result(GENEROUS)
    assert successes == []


def test_a_waiter_whose_clock_is_ahead_counts_as_old(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    ghost().queue(TOKEN, mode="L", age=-GENEROUS)
    lock.release()
    assert holder(client) == TOKEN
    assert flag(client) == "h"


def test_a_release_hands_a_fair_lock_to_a_waiter_in_another_process(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(IN_TURN, name=NAME, kind="FairLock")
    worker.expect("ready")
    with FairLock(NAME) as lock:
        fence = lock.fence
        worker.tell()
        eventually(lambda: client.zcard(KEYS.queue))
    assert holder(client) not in ("", lock.token)  # by the release itself
    got = int(worker.expect("got")[0])
    assert fence is not None
    assert got > fence
    worker.tell()
    worker.expect("done")
    assert holder(client) == ""


SECTIONS = """
import redis
raw = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
lock = {"Lock": Lock, "FairLock": FairLock}[kind](name, blocking_timeout=60)
say("ready")
hear()
worst, fences = 0, []
for _ in range(times):
    with lock:
        worst = max(worst, raw.incr("inside"))
        fences.append((int(raw.get("last") or 0) < lock.fence))
        raw.set("last", lock.fence)
        raw.decr("inside")
say("done", worst, all(fences), len(fences))
hear()
"""


def test_processes_that_mix_lock_and_fair_lock_exclude_each_other_and_all_get_through(start: Start) -> None:
    workers = [start(SECTIONS, name=NAME, kind=kind, times=40) for kind in ("Lock", "FairLock", "Lock", "FairLock")]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.tell()
    for worker in workers:
        assert worker.expect("done", within=60) == ["1", "True", "40"]


# -- trouble -----------------------------------------------------------------------------------------------------------

INTERRUPTED = """
lock = {"Lock": Lock, "FairLock": FairLock}[kind](name)
say("ready")
try:
    lock.acquire()
except KeyboardInterrupt:
    say("interrupted")
hear()
"""


def test_ctrl_c_while_waiting_leaves_no_queue_entry(
    kind: type[Lock], start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    lock = kind(NAME)
    lock.acquire()
    worker = start(INTERRUPTED, name=NAME, kind=kind.__name__)
    worker.expect("ready")
    eventually(lambda: client.zcard(KEYS.queue))
    worker.signal(signal.SIGINT)
    worker.expect("interrupted")
    eventually(lambda: queued(client) == 0)
    assert holder(client) == lock.token
    assert worker.process.poll() is None
    lock.release()
    assert holder(client) == ""


def test_a_redis_that_is_down_makes_every_call_raise_lock_unavailable(
    own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    held, lock = Lock("held"), Lock(NAME)
    held.acquire()
    own.stop()
    calls: list[Callable[[], object]] = [
        lock.acquire,
        lambda: lock.acquire(blocking=False),
        lambda: lock.acquire(blocking_timeout=5),
        lock.locked,
        lock.info,
        held.owned,
        lambda: held.extend(1),
        held.release,
    ]
    for call in calls:
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            call()
        assert caught.value.name in (NAME, "held")


def test_a_release_that_found_redis_down_can_be_tried_again(
    own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    lock = Lock(NAME)
    lock.acquire()
    own.stop()
    with pytest.raises(LockUnavailable):
        lock.release()
    assert lock.token is not None
    own.start()
    lock.release()
    assert lock.token is None


def test_an_exception_in_the_block_wins_over_a_redis_that_is_down(
    own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)

    def section() -> None:
        with Lock(NAME):
            own.stop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        section()


def test_a_waiter_gives_up_after_a_long_outage(
    kind: type[Lock],
    own: RedisServer,
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    retry_for: Callable[[float], None],
) -> None:
    retry_for(0.1)
    monkeypatch.setattr("django_redislock.attempt.OUTAGE", 0.3)
    monkeypatch.setattr("django_redislock.listener.OUTAGE", 0.3)
    kind(NAME).acquire()
    waiting = other().start(kind(NAME).acquire)
    with own.client() as client:
        eventually(lambda: client.zcard(KEYS.queue))
    own.stop()
    with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
        waiting.result(GENEROUS)
    assert caught.value.name == NAME


def test_one_token_cannot_wait_twice_in_a_process(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    with kind(NAME):
        waiting = other().start(lambda: kind(NAME, token=TOKEN).acquire(blocking_timeout=GENEROUS))
        eventually(lambda: queued(client))
        with pytest.raises(LockError, match="with the same token already"):
            other()(lambda: kind(NAME, token=TOKEN).acquire(blocking_timeout=GENEROUS))
    assert waiting.result(GENEROUS) is True


def test_a_waiter_outlives_a_restart_of_redis_and_gets_its_lock(
    kind: type[Lock], own: RedisServer, other: Callable[[], Other], eventually: Eventually
) -> None:
    lock, thread = kind(NAME, ttl=300), other()
    lock.acquire()
    fence = lock.fence
    waiting = thread.start(kind(NAME).acquire)
    with own.client() as client:
        eventually(lambda: client.zcard(KEYS.queue))
    assert not waiting.done()
    own.stop()
    own.start()
    # Redis has forgotten everything
    assert waiting.result(GENEROUS) is True
    eventually(lambda: lock.lost)
    with pytest.raises(LockLost):
        lock.release()
    info = lock.info()
    assert info is not None
    assert fence is not None
    assert info.fence > fence


def test_release_after_a_restart_raises_lock_lost(
    kind: type[Lock], own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.connection.IDLE", 0.0)  # a restart may take less than its 5 ms
    lock = kind(NAME, ttl=300)
    lock.acquire()
    own.stop()
    own.start()
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire()


def test_a_waiter_outlives_a_flush_and_gets_its_lock(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = kind(NAME, ttl=30)
    lock.acquire()
    waiting = other().start(kind(NAME).acquire)
    eventually(lambda: client.zcard(KEYS.queue))
    client.flushall()
    assert waiting.result(GENEROUS) is True


def test_a_waiter_outlives_the_loss_of_every_connection(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    lock = kind(NAME)
    lock.acquire()
    waiting = other().start(lambda: kind(NAME).acquire(token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue))
    client.client_kill_filter(_type="pubsub", skipme=True)
    client.client_kill_filter(_type="normal", skipme=True)
    client.zrem(KEYS.queue, TOKEN)
    eventually(lambda: client.zcard(KEYS.queue))  # it queues again
    assert not waiting.done()
    lock.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.parametrize("where", ["after a crash", "in time"])
def test_the_lock_of_a_killed_process_goes_to_the_next_one(
    kind: type[Lock], where: str, start: Start, other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(
        'lock = Lock(name, ttl=1)\nlock.acquire()\nsay("got")\nhear()\nlock.release()\nsay("done")\nhear()', name=NAME
    )
    worker.expect("got")
    waiting = other().start(lambda: kind(NAME, ttl=30).acquire(blocking_timeout=GENEROUS, token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue))
    if where == "in time":
        worker.tell()
        worker.expect("done")
    else:
        worker.kill()
    assert waiting.result(GENEROUS) is True
    assert holder(client) == TOKEN


def test_an_exception_of_a_signal_handler_ends_a_wait(start: Start) -> None:
    worker = start(
        """
import signal
from django_redislock import listener
class TooLong(Exception): ...
def late(*args): raise TooLong
with Lock("a"):
    pass
signal.signal(signal.SIGALRM, late)
held = lambda: (Lock("a").acquire(), say("held"), threading.Event().wait())
threading.Thread(target=held, daemon=True).start()
hear()
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    FairLock("a").acquire()
except TooLong:
    say("raised")
hear()
"""
    )
    worker.expect("held")
    worker.tell()
    worker.expect("raised")


def test_what_a_site_does_about_a_loss_holds_up_nobody_who_waits(
    kind: type[Lock], other: Callable[[], Other], eventually: Eventually
) -> None:
    mutex = threading.Lock()
    told = threading.Event()

    def on_lost(error: LockLost) -> None:
        with mutex:
            told.set()

    lost = kind("lost", on_lost=on_lost)
    lost.acquire()
    busy = other()
    busy(lambda: kind(NAME).acquire())
    with mutex:  # what on_lost wants is held by the thread that waits, and that may be the one that reads
        helper = other().start(lambda: (eventually(lambda: (i := get_lock(NAME)) and i.waiters), force_release("lost")))
        assert not kind(NAME).acquire(blocking_timeout=1)
        helper.result(GENEROUS)
    assert told.wait(GENEROUS)


def test_exiting_in_on_lost_ends_no_renewal_of_others(kind: type[Lock], eventually: Eventually) -> None:
    def on_lost(error: LockLost) -> None:
        raise SystemExit

    other, lost = kind("other", ttl=0.9), kind("lost", on_lost=on_lost)
    other.acquire()
    lost.acquire()
    force_release("lost")
    eventually(lambda: lost.lost)
    lease = _holdings.get()[other].lease
    for _ in range(3):
        ends = lease.ends
        eventually(lambda ends=ends: lease.ends > ends)
    other.release()


def test_a_lock_that_nobody_can_release_any_more_is_not_renewed(kind: type[Lock], eventually: Eventually) -> None:
    contextvars.copy_context().run(lambda: kind(NAME, ttl=0.6).acquire())
    eventually(lambda: get_lock(NAME) is None)


def test_what_an_evicted_queue_leaves_ends_by_itself_and_the_next_handoff_clears_it_up(
    kind: type[Lock],
    client: redis.Redis,
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 0.2)
    second, third = other(), other()
    lock = kind(NAME)
    lock.acquire()
    lock.detach()  # nobody looks after it
    waiting = second.start(lambda: lock.acquire(blocking_timeout=GENEROUS))
    eventually(lambda: queued(client))
    client.delete(KEYS.queue, KEYS.lock)
    assert waiting.result(GENEROUS)
    assert client.hlen(KEYS.waiters) == 1
    assert 0 < client.pttl(KEYS.waiters) <= 60_000
    waiting = third.start(lambda: lock.acquire(blocking_timeout=GENEROUS))
    eventually(lambda: _waited(client) > 100_000)  # a Lock is handed over to those who have waited for as long
    second(lock.release)
    assert waiting.result(GENEROUS)
    third(lock.release)
    assert not client.exists(KEYS.waiters)


def test_the_looks_of_a_name_are_planned_once_one_of_its_waiters_has_looked(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    # R5: the first of a name got its lock at once; who was busy meanwhile inherits a time to look, not "never"
    holder, ears = other(), get_listener(get_backend())
    holder(lambda: kind(NAME).acquire())
    waiting = other().start(lambda: kind(NAME).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: queued(client))
    first = ears.register("second", "x" * 22)
    second = ears.register("second", "y" * 22)
    ears.schedule(second, 300, 0.0)
    ears.unregister(first)
    assert (ears.next_look(second) or 0) > monotonic() - GENEROUS
    ears.unregister(second)
    force_release(NAME)
    assert waiting.result(GENEROUS)


def test_a_wake_of_an_earlier_attempt_with_the_same_token_is_no_grant(
    client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    with FairLock(NAME) as lock:
        adopter = FairLock(NAME, token=TOKEN)
        waiting = other().start(lambda: adopter.acquire(blocking_timeout=GENEROUS) and adopter.fence)
        eventually(lambda: queued(client))
        looks = calls(client)
        old = f"g {TOKEN} {lock.fence} {server_time(client)} 30000 {NAME}"
        assert client.publish(get_backend().channel, old) == 1
        eventually(lambda: calls(client) > looks)  # it looks for itself instead
        assert not waiting.done()
        assert holder(client) == lock.token
    assert (waiting.result(GENEROUS) or 0) > (lock.fence or 0)


def calls(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_an_extend_that_is_answered_after_the_loss_was_told_raises(
    kind: type[Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = kind(NAME, ttl=60)
    lock.acquire()
    lease = lock._lease()
    renew = scripts.renew

    def answered_late(*args: Any) -> Steps[scripts.Renewed]:
        answer = yield from renew(*args)
        watchdog.lose(lease, FORCED)
        return answer

    monkeypatch.setattr(scripts, "renew", answered_late)
    with pytest.raises(LockLost, match="released by force"):
        lock.extend(5)
    assert lock.lost
