"""redis-py's documented behaviour, tested with redis-py's lock and with ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as RedisPyLock

from tests.helpers.actors import GENEROUS, Other

from .conftest import SHORT, Eventually, Expire, Make, left, waits

CALLS: dict[str, Callable[[Any], Any]] = {
    "release": lambda lock: lock.release(),
    "extend": lambda lock: lock.extend(10),
    "reacquire": lambda lock: lock.reacquire(),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def refuses(call: Callable[[], Any], match: str | None = None) -> None:
    """Redis need not be asked: nothing is locked here."""
    with pytest.raises(LockError, match=match) as raised:
        call()
    assert not isinstance(raised.value, LockNotOwnedError)


def test_the_methods_and_attributes_are_the_same(make: Make) -> None:
    for verb in ("acquire", "release", "extend", "reacquire", "locked", "owned"):
        theirs, mine = (
            [(p.name, p.default, p.kind) for p in inspect.signature(getattr(kind, verb)).parameters.values()]
            for kind in (RedisPyLock, type(make()))
        )
        assert mine == theirs
    lock = make()
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (None, 0.1, True, None)
    assert lock.thread_local is True
    lock = make(timeout=2.5, sleep=0.2, blocking=False, blocking_timeout=3, thread_local=False)
    assert lock.name.endswith("foo")
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (2.5, 0.2, False, 3)
    assert (lock.thread_local, lock.local.token) == (False, None)


def test_one_holds_it_at_a_time_and_releases_it_once_and_all_see_that_it_is_locked(make: Make) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    refuses(lock.release, "Cannot release")
    for _ in range(2):
        assert (lock.locked(), lock.owned()) == (False, False)
        assert lock.acquire() is True
        assert (lock.locked(), lock.owned()) == (True, True)
        assert (another.locked(), another.owned()) == (True, False)
        assert another.acquire(blocking=False) is False
        assert make(timeout=10, blocking=False).acquire() is False
        refuses(another.release)
        assert lock.release() is None
        refuses(lock.release)


@pytest.mark.parametrize(
    ("constructor", "argument", "patience"),
    [
        ({"blocking_timeout": SHORT}, {}, SHORT),
        ({"blocking_timeout": 600}, {"blocking_timeout": SHORT}, SHORT),
        ({}, {"blocking_timeout": 0}, 0),
        ({}, {"blocking_timeout": -1}, 0),
    ],
)
def test_blocking_timeout_is_waited_for(make: Make, constructor: Any, argument: Any, patience: float) -> None:
    assert make(timeout=600).acquire()
    begun = monotonic()
    assert make(timeout=10, sleep=0.01, **constructor).acquire(**argument) is False
    assert monotonic() - begun >= patience - 0.02


def test_who_waits_gets_what_expires_even_in_the_thread_that_holds_it(make: Make) -> None:
    lock = make(timeout=SHORT, sleep=0.01)
    begun = monotonic()
    assert lock.acquire()
    assert lock.acquire()
    assert make(timeout=30, blocking=False, sleep=0.01).acquire(blocking=True) is True  # overrides the constructor
    assert monotonic() - begun >= 2 * (SHORT - 0.01)


@pytest.mark.parametrize("taken", [False, True], ids=["expired", "somebody else has got it"])
@each_call
def test_what_is_no_longer_owned_cannot_be_released_or_renewed(
    call: Callable[[Any], Any], taken: bool, make: Make, expire: Expire, client: redis.Redis
) -> None:
    lock, another = make(timeout=SHORT), make(timeout=60, sleep=0.01)
    assert lock.acquire()
    if taken:
        assert another.acquire()
    else:
        expire(lock)
        assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        call(lock)
    assert another.owned() is taken
    assert not taken or 30 < left(client, another) <= 60
    assert make(timeout=1).acquire(blocking=False) is not taken


def test_the_timeout_is_the_lease_and_extend_adds_or_replaces_and_reacquire_starts_it_again(
    make: Make, client: redis.Redis
) -> None:
    lock = make(timeout=10.5)
    refuses(lambda: lock.extend(1), "an unlocked lock")
    assert lock.acquire()
    assert 5 < left(client, lock) <= 10.5
    assert lock.extend(10.5) is True
    assert 11 < left(client, lock) <= 21
    assert lock.extend(60, replace_ttl=True) is True
    assert 50 < left(client, lock) <= 60
    assert lock.extend(30, True) is True
    assert 20 < left(client, lock) <= 30
    assert lock.reacquire() is True
    assert 0.5 < left(client, lock) <= 10.5
    lock.release()
    lock = make()
    assert lock.acquire()
    for renew in (lock.reacquire, lambda: lock.extend(1)):
        refuses(renew, "a lock with no timeout")
    lock.release()


@pytest.mark.parametrize("token", ["static", b"static", "", "ü" * 200, b"\xff\x00 {}:%", "a" * 22])
def test_a_token_may_be_given_and_gets_the_lock_once(make: Make, token: str | bytes) -> None:
    lock = make(timeout=10)
    assert lock.acquire(blocking=False, token=token)
    assert lock.local.token == (token if isinstance(token, bytes) else token.encode())
    assert make(timeout=10).acquire(blocking=False, token=token) is False
    assert lock.acquire(blocking=False, token=token) is False
    assert lock.owned()
    assert lock.extend(5)
    lock.release()
    assert not lock.locked()


@pytest.mark.parametrize("given", [None, "static", "a" * 22])
def test_whoever_is_told_the_token_can_extend_and_release_and_nobody_else(
    make: Make, given: str | None, client: redis.Redis
) -> None:
    lock, another = make(timeout=20), make(timeout=20)
    for held in (False, True):
        assert not held or lock.acquire(token=given)
        another.local.token = b"no"
        assert not another.owned()
        for call in CALLS.values():
            with pytest.raises(LockNotOwnedError):
                call(another)
            another.local.token = b"no"
    assert isinstance(lock.local.token, bytes)
    another.local.token = lock.local.token
    assert another.owned()
    assert another.extend(60) is True
    assert 60 < left(client, lock) <= 80
    assert another.reacquire() is True
    assert left(client, lock) <= 20
    another.release()
    assert not lock.locked()
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_a_with_block_holds_it_and_releases_it_even_if_it_raises(make: Make, expire: Expire) -> None:
    lock = make(timeout=10)
    with lock as entered:
        assert entered is lock
        assert lock.owned()
        for options in ({"blocking_timeout": 0.02, "sleep": 0.01}, {"blocking": False}):
            refuses(make(timeout=10, **options).__enter__, "Unable to acquire lock within the time specified")
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()
    with pytest.raises(LockError), lock:
        lock.release()
    lock = make(timeout=SHORT)
    with pytest.raises(LockNotOwnedError), lock:
        expire(lock)


def test_a_threads_token_is_its_own(make: Make, other: Callable[[], Other]) -> None:
    """The timeline in redis-py's docstring."""
    lock, thread = make(timeout=0.3, sleep=0.01), other()
    assert lock.acquire()
    lock.timeout = 60
    with pytest.raises((LockError, AttributeError)):  # redis-py's own stumbles over its thread-local storage
        thread(lock.release)
    assert thread(lambda: lock.acquire() and lock.extend(30))
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert thread(lock.owned)
    thread(lock.release)


@pytest.mark.parametrize("timeout", [10, None])
def test_without_thread_local_any_thread_may_extend_and_release_and_the_first_one_wait_for_that(
    make: Make, client: redis.Redis, other: Callable[[], Other], timeout: float | None, eventually: Eventually
) -> None:
    lock, acquires = make(timeout=timeout, thread_local=False), other()
    assert acquires(lock.acquire)
    assert lock.owned()
    if timeout:
        assert lock.extend(50)
        assert 20 < left(client, lock) <= 60
        assert lock.reacquire()
        assert left(client, lock) <= 10
    waiting = acquires.start(make(timeout=10, sleep=0.01).acquire)
    if not isinstance(lock, RedisPyLock):
        eventually(lambda: waiting.done() or waits(1))
    lock.release()
    assert waiting.result(GENEROUS) is True
    refuses(lock.release)
