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

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.ways import stopped
from tests.inside import ACQUIRE, INFO, RELEASE, after_each_call, over_by_the_clock_here

from .conftest import BACKEND, Eventually, Expire, Make, left, lock_of, waits

YEAR = 365 * 86400


@pytest.mark.parametrize("thread_local", [True, pytest.param(False, marks=pytest.mark.complete)])
def test_without_a_timeout_it_is_renewed_and_ends_with_its_thread_or_with_its_object(
    thread_local: bool, ours: Make, settings: Any, client: redis.Redis, eventually: Eventually, expire: Expire
) -> None:
    def renewed() -> None:
        eventually(lambda: 0 < left(client, ours()) < 1.3)
        eventually(lambda: 1.4 < left(client, ours()) <= 1.5)

    settings.REDISLOCK = {"CACHE": "ours", "TTL": 1.5}
    lock, end = ours(thread_local=thread_local), threading.Event()
    acquire = contextvars.copy_context().run
    thread = threading.Thread(target=lambda lock: acquire(lock.acquire) and end.wait(), args=[lock])
    thread.start()
    renewed()
    end.set()
    thread.join()
    if not thread_local:
        renewed()
        assert lock.owned()
    del lock, thread
    gc.collect()
    expire(ours())


@pytest.mark.parametrize("blocking_timeout", [None, float("inf")])
def test_waiting_has_no_end_whatever_the_settings_say_but_a_thread_does_not_wait_for_itself(
    blocking_timeout: float | None, ours: Make, settings: Any, other: Callable[[], Other], eventually: Eventually
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "BLOCKING_TIMEOUT": 0}
    lock = ours()
    assert lock.acquire()
    with pytest.raises(LockError, match="would wait for itself"):
        ours().acquire(blocking_timeout=blocking_timeout)
    assert ours().acquire(blocking_timeout=0.01) is False
    waiting = other().start(lambda: ours(timeout=10).acquire(blocking_timeout=blocking_timeout))
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
    assert force_release("foo")
    with pytest.raises(LockLost) as raised:
        lock.release()
    assert raised.value.name == "foo"


async def test_it_blocks_in_a_coroutine_as_django_redis_does(ours: Make) -> None:
    with ours(timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(SynchronousOnlyOperation):
            Lock("foo").locked()


@pytest.mark.parametrize(
    ("argument", "wrong", "error"),
    [
        *[("timeout", wrong, ValueError) for wrong in (-1, 0.0001, float("nan"), float("inf"))],
        ("timeout", "10", TypeError),
        ("blocking_timeout", Decimal(1), TypeError),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(argument: str, wrong: Any, error: type[Exception], ours: Make) -> None:
    with pytest.raises(error, match=rf"^{argument} must be "):
        ours(**{argument: wrong})
    assert repr(ours()) == "<CacheLock 'foo'>"
    with pytest.raises(TypeError, match="not int") as raised:
        ours().acquire(token=4711)
    assert "4711" not in str(raised.value)


def test_a_timeout_beyond_ten_years_counts_as_ten_and_zero_is_none_at_all(ours: Make, client: redis.Redis) -> None:
    lock = ours(timeout=10**400)
    assert lock.acquire()
    assert lock.extend(11 * YEAR, replace_ttl=True)
    assert lock.reacquire()
    assert 9.9 * YEAR < left(client, lock) <= 10 * YEAR
    for nothing in (0, -5):
        with pytest.raises(ValueError, match="additional_time must be"):
            lock.extend(nothing)
    lock.release()
    lock = ours(timeout=0)
    assert lock.acquire()
    with pytest.raises(LockError, match="no timeout"):
        lock.extend(1)
    lock.release()


def test_an_unreachable_redis_is_a_connection_error_and_the_release_can_be_tried_again(
    own: RedisServer, settings: Any, retry_for: Callable[[float], None]
) -> None:
    options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": 0.2}}
    settings.CACHES = {"far": {"BACKEND": BACKEND, "LOCATION": own.url, "OPTIONS": options}}
    settings.REDISLOCK = {"CACHE": "far"}
    lock = lock_of("far", "foo", timeout=600)
    assert lock.acquire()
    retry_for(0.2)
    with stopped(own):
        for call in (lock.release, lock.acquire, lock.locked, lock.owned):
            with pytest.raises(redis.ConnectionError) as raised:
                call()
            assert isinstance(raised.value, LockUnavailable)
    retry_for(30)
    lock.release()
    assert not lock.locked()


def strike() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("token", [None, "mine"])
def test_an_interrupted_acquire_leaves_no_lock_and_an_interrupted_release_is_not_forgotten(
    token: str | None, ours: Make, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, by_token = ours(timeout=600), ours()
    with monkeypatch.context() as patch:
        after_each_call(patch, ACQUIRE, strike)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(token=token)
    eventually(lambda: not lock.locked())
    for each in (lock, by_token):
        assert lock.acquire(token=token)
        by_token.local.token = lock.local.token
        with monkeypatch.context() as patch:
            after_each_call(patch, RELEASE, strike)
            with pytest.raises(KeyboardInterrupt):
                each.release()
        eventually(lambda: not lock.locked())
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_a_bearer_does_not_touch_the_lock_of_the_next_one_who_gets_it_in_between(
    verb: str, ours: Make, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, bearer, third = ours(timeout=10), ours(timeout=10), ours(timeout=10)
    assert lock.acquire()
    bearer.local.token = lock.local.token
    after_each_call(monkeypatch, INFO, lambda: (lock.release(), third.acquire()))
    with pytest.raises(LockNotOwnedError, match=f"Cannot {verb} a lock that's no longer owned"):
        bearer.release() if verb == "release" else bearer.extend(50)
    monkeypatch.undo()
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
    force_release("foo")
    with pytest.raises(LockLost):
        lock.extend(50)
