"""Deliberate differences between our ``cache.lock()`` and redis-py's."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import LockError, LockNotOwnedError

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.processes import Worker
from tests.helpers.ways import stopped
from tests.inside import ACQUIRE, INFO, RELEASE, after_each_call, over_by_the_clock_here

from .conftest import BACKEND, Eventually, Expire, Make, left, lock_of, waits

Far = Callable[..., Any]
Interrupt = Callable[[str, Callable[[], Any]], None]
RetryFor = Callable[[float], None]
YEAR = 365 * 86400


@pytest.fixture
def renewed(client: redis.Redis, eventually: Eventually) -> Callable[[Any], None]:
    """Wait until the lease is renewed."""

    def renewed(lock: Any) -> None:
        least = left(client, lock)

        def begins_anew() -> bool:
            nonlocal least
            now, least = left(client, lock), min(least, left(client, lock))
            return now > least + 0.1

        eventually(begins_anew)

    return renewed


# -- without a timeout ------------------------------------------------------------------------------------------------


def test_without_a_timeout_it_has_the_ttl_of_the_settings_and_is_renewed_whatever_context_has_acquired_it(
    ours: Make, settings: Any, client: redis.Redis, renewed: Expire
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 6}
    lock = ours()
    assert contextvars.copy_context().run(lock.acquire)
    assert 0 < left(client, lock) <= 6
    gc.collect()
    renewed(lock)
    assert lock.owned()
    lock.release()
    assert not lock.locked()


@pytest.mark.parametrize("thread_local", [True, pytest.param(False, marks=pytest.mark.complete)])
def test_without_a_timeout_it_ends_with_its_thread_or_with_its_object(
    thread_local: bool, ours: Make, settings: Any, renewed: Expire, expire: Expire
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 0.3 if thread_local else 3}
    lock = ours(thread_local=thread_local)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    if not thread_local:
        renewed(lock)
        assert lock.owned()
        del lock
        gc.collect()
    expire(ours())


# -- waiting and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", [None, 5], ids=["by default", "whatever the settings say"])
@pytest.mark.parametrize("blocking_timeout", [None, float("inf")])
def test_a_thread_does_not_wait_for_itself_without_end(
    patience: int | None, blocking_timeout: float | None, ours: Make, settings: Any
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "BLOCKING_TIMEOUT": patience}
    lock = ours()
    assert lock.acquire()
    with pytest.raises(LockError, match="would wait for itself"):
        ours().acquire(blocking_timeout=blocking_timeout)
    assert ours().acquire(blocking_timeout=0.01) is False
    lock.release()


def test_waiting_without_end_is_not_cut_short_by_the_settings(
    ours: Make, settings: Any, other: Callable[[], Other], eventually: Eventually
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "BLOCKING_TIMEOUT": 0}
    lock = ours(timeout=60)
    assert lock.acquire()
    waiting = other().start(ours(timeout=10).acquire)
    eventually(lambda: waits(1))
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_our_locks_see_it_and_our_errors_come_through(ours: Make, other: Callable[[], Other]) -> None:
    with Lock("foo", ttl=10):
        assert ours().acquire(blocking=False) is False
        assert not ours().owned()
    lock = ours(timeout=30)
    assert lock.acquire()
    assert Lock("foo").locked()
    with pytest.raises(LockNotAcquired):
        ours(blocking=False).__enter__()
    with pytest.raises(LockError, match="Cannot release an unlocked lock"):
        other()(lock.release)
    assert not other()(lock.owned)
    assert force_release("foo")
    with pytest.raises(LockLost) as raised:
        lock.release()
    assert raised.value.name == "foo"


async def test_it_blocks_in_a_coroutine_as_django_redis_does(ours: Make) -> None:
    with ours(timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(SynchronousOnlyOperation):
            Lock("foo").locked()


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "wrong", "error"),
    [
        *[("timeout", wrong, ValueError) for wrong in (-1, 0.0001, float("nan"), float("inf"))],
        ("timeout", "10", TypeError),
        *[("blocking_timeout", wrong, TypeError) for wrong in ("10", Decimal(1), [1])],
    ],
)
def test_a_wrong_argument_is_an_error_at_once(argument: str, wrong: Any, error: type[Exception], ours: Make) -> None:
    with pytest.raises(error, match=rf"^{argument} must be "):
        ours(**{argument: wrong})


@pytest.mark.parametrize("timeout", [11 * YEAR, 10**400], ids=["eleven years", "10**400"])
def test_a_timeout_beyond_ten_years_counts_as_ten(ours: Make, timeout: int) -> None:
    lock = ours(timeout=timeout)
    assert lock.acquire()
    assert lock.extend(timeout, replace_ttl=True)
    assert lock.reacquire()
    info = get_lock("foo")
    assert info is not None
    assert 9.9 * YEAR < info.lease_left <= 10 * YEAR
    for nothing in (0, -5):
        with pytest.raises(ValueError, match="additional_time must be"):
            lock.extend(nothing)


def test_a_timeout_of_zero_is_none_at_all(ours: Make) -> None:
    lock = ours(timeout=0)
    assert lock.acquire()
    with pytest.raises(LockError, match="no timeout"):
        lock.extend(1)
    lock.release()


def test_it_shows_its_name_and_no_token(ours: Make) -> None:
    assert repr(ours()) == "<CacheLock 'foo'>"
    with pytest.raises(TypeError, match="not int") as raised:
        ours().acquire(token=4711)
    assert "4711" not in str(raised.value)


# -- outages and interruptions ----------------------------------------------------------------------------------------


@pytest.fixture
def far(own: RedisServer, settings: Any) -> Far:
    """Makes a lock of our backend on a server of this test alone."""
    options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": 0.2}}
    settings.CACHES = {"far": {"BACKEND": BACKEND, "LOCATION": own.url, "OPTIONS": options}}
    settings.REDISLOCK = {"CACHE": "far"}
    return lambda **more: lock_of("far", "foo", **more)


def test_an_unreachable_redis_is_a_connection_error(own: RedisServer, far: Far, retry_for: RetryFor) -> None:
    lock = far()
    own.stop()
    retry_for(0.2)
    for call in (lock.acquire, lock.locked):
        with pytest.raises(redis.ConnectionError) as raised:
            call()
        assert isinstance(raised.value, LockUnavailable)
    lock.local.token = b"static"
    with pytest.raises(redis.ConnectionError):
        lock.owned()


def test_a_release_that_could_not_be_sent_can_be_tried_again(own: RedisServer, far: Far, retry_for: RetryFor) -> None:
    lock = far(timeout=600)
    assert lock.acquire()
    retry_for(0.2)
    with stopped(own), pytest.raises(redis.ConnectionError):
        lock.release()
    retry_for(30)
    lock.release()
    assert not lock.locked()


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Interrupt a call after each answer to a script."""

    def strike() -> None:
        raise KeyboardInterrupt

    def interrupt(script: str, call: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            after_each_call(patch, script, strike)
            with pytest.raises(KeyboardInterrupt):
                call()

    return interrupt


@pytest.mark.parametrize("token", [None, "mine"])
def test_an_acquire_that_is_interrupted_leaves_no_lock(
    token: str | None, ours: Make, eventually: Eventually, interrupt: Interrupt
) -> None:
    lock = ours(timeout=600)
    interrupt(ACQUIRE, lambda: lock.acquire(token=token))
    eventually(lambda: not lock.locked())


def test_a_release_that_is_interrupted_is_not_forgotten(
    ours: Make, eventually: Eventually, interrupt: Interrupt
) -> None:
    lock, by_token = ours(), ours()
    for each in (lock, by_token):
        assert lock.acquire()
        by_token.local.token = lock.local.token
        interrupt(RELEASE, each.release)
        eventually(lambda: not lock.locked())
    with pytest.raises(LockNotOwnedError):
        lock.release()


# -- several who bear the token ---------------------------------------------------------------------------------------


def test_another_process_that_is_told_the_token_can_extend_and_release(
    ours: Make, start: Callable[..., Worker], server: RedisServer
) -> None:
    bearer = """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
from django.core.cache import caches
lock = caches["ours"].lock("foo", timeout=60)
say("ready")
lock.local.token = hear().encode()
lock.extend(5)
say("extended")
lock.local.token = hear().encode()
lock.release()
say("released")
"""
    lock, worker = ours(timeout=60), start(bearer, url=server.url)
    worker.expect("ready")
    assert lock.acquire()
    worker.tell(lock.local.token.decode())
    worker.expect("extended")
    lock.release()  # whoever bears the token can, whoever has extended the lock since
    assert not lock.locked()
    assert lock.acquire()
    worker.tell(lock.local.token.decode())
    worker.expect("released")
    assert not lock.locked()


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_a_bearer_does_not_touch_the_lock_of_the_next_one_who_gets_it_in_between(
    verb: str, ours: Make, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, bearer, third = ours(timeout=10), ours(timeout=10), ours(timeout=10)
    assert lock.acquire()
    bearer.local.token = lock.local.token

    def hand_over() -> None:
        lock.release()
        assert third.acquire()

    with monkeypatch.context() as patch:
        after_each_call(patch, INFO, hand_over)
        with pytest.raises(LockNotOwnedError, match=f"Cannot {verb} a lock that's no longer owned"):
            bearer.release() if verb == "release" else bearer.extend(50)
    assert third.owned()
    assert left(client, third) <= 10


@pytest.mark.parametrize("how", ["extend", "reacquire", "release"])
def test_what_has_expired_by_the_clock_here_and_was_extended_by_another_bearer_is_still_held(
    how: str, ours: Make
) -> None:
    lock = ours(timeout=60)
    assert lock.acquire()
    over_by_the_clock_here(lock)
    if how == "release":
        lock.release()
        assert ours(timeout=10).acquire(blocking=False)
        return
    assert lock.extend(50) if how == "extend" else lock.reacquire()
    assert lock.owned()
    force_release("foo")
    with pytest.raises(LockLost):
        lock.extend(50)
