"""The same: releasing, extending, looking, and threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

from django_redislock.cache_lock import CacheLock
from tests.helpers.actors import GENEROUS, Other

from .conftest import SHORT, Make, left, waits

Expire = Callable[[Any], None]


# -- release ----------------------------------------------------------------------------------------------------------


def test_releasing_an_unlocked_lock(make: Make) -> None:
    with pytest.raises(LockError, match="Cannot release") as raised:
        make(timeout=10).release()
    assert not isinstance(raised.value, LockNotOwnedError)


def test_releasing_twice(make: Make) -> None:
    lock = make(timeout=10)
    assert lock.acquire()
    lock.release()
    with pytest.raises(LockError) as raised:
        lock.release()
    assert not isinstance(raised.value, LockNotOwnedError)


def test_releasing_what_somebody_else_holds(make: Make) -> None:
    holder = make(timeout=10)
    assert holder.acquire()
    with pytest.raises(LockError):
        make(timeout=10).release()
    assert holder.owned()


def test_releasing_an_expired_lock(make: Make, expire: Expire) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert lock.local.token is None


def test_releasing_a_lock_that_somebody_else_has_got_since(make: Make) -> None:
    lock, another = make(timeout=SHORT), make(timeout=30, sleep=0.01)
    assert lock.acquire()
    assert another.acquire()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert another.owned()


# -- extend and reacquire ---------------------------------------------------------------------------------------------


def test_extend_adds(make: Make, client: redis.Redis) -> None:
    lock = make(timeout=10)
    assert lock.acquire()
    assert lock.extend(10) is True
    assert 15 < left(client, lock) <= 20


def test_extend_replaces(make: Make, client: redis.Redis) -> None:
    lock = make(timeout=10)
    assert lock.acquire()
    assert lock.extend(20, replace_ttl=True) is True
    assert 15 < left(client, lock) <= 20
    assert lock.extend(5, True) is True
    assert 2 < left(client, lock) <= 5


def test_extend_by_a_float(make: Make, client: redis.Redis) -> None:
    lock = make(timeout=10.5)
    assert lock.acquire()
    assert lock.extend(10.5)
    assert 16 < left(client, lock) <= 21


def test_reacquire_starts_the_timeout_again(make: Make, client: redis.Redis) -> None:
    lock = make(timeout=10)
    assert lock.acquire()
    assert lock.extend(30)
    assert lock.reacquire() is True
    assert 5 < left(client, lock) <= 10


RENEWALS = pytest.mark.parametrize("renew", [lambda lock: lock.extend(10), lambda lock: lock.reacquire()])


@RENEWALS
def test_an_unlocked_lock_cannot_be_renewed(make: Make, renew: Callable[[Any], Any]) -> None:
    with pytest.raises(LockError, match="an unlocked lock") as raised:
        renew(make(timeout=10))
    assert not isinstance(raised.value, LockNotOwnedError)


@RENEWALS
def test_a_lock_without_a_timeout_cannot_be_renewed(make: Make, renew: Callable[[Any], Any]) -> None:
    lock = make()
    assert lock.acquire()
    with pytest.raises(LockError, match="a lock with no timeout"):
        renew(lock)
    lock.release()


@RENEWALS
def test_an_expired_lock_cannot_be_renewed(make: Make, expire: Expire, renew: Callable[[Any], Any]) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock)
    with pytest.raises(LockNotOwnedError):
        renew(lock)
    assert not lock.locked()


@RENEWALS
def test_a_lock_that_somebody_else_has_got_cannot_be_renewed(
    make: Make, client: redis.Redis, renew: Callable[[Any], Any]
) -> None:
    lock, another = make(timeout=SHORT), make(timeout=5, sleep=0.01)
    assert lock.acquire()
    assert another.acquire()
    with pytest.raises(LockNotOwnedError):
        renew(lock)
    assert left(client, another) <= 5


# -- locked and owned -------------------------------------------------------------------------------------------------


def test_anybody_sees_that_it_is_locked_and_its_holder_that_it_owns_it(make: Make) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert not lock.locked()
    assert not lock.owned()
    assert lock.acquire()
    assert another.locked()
    assert not another.owned()
    lock.release()


# -- threads ----------------------------------------------------------------------------------------------------------


def test_a_threads_token_is_its_own(make: Make, other: Callable[[], Other]) -> None:
    """The timeline in redis-py's docstring."""
    lock = make(timeout=0.5, sleep=0.01)
    assert lock.acquire()
    thread = other()
    assert thread(lock.acquire)
    assert thread(lambda: lock.extend(30))
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert thread(lock.owned)
    thread(lock.release)


def test_a_thread_does_not_see_the_acquisition_of_another(make: Make, other: Callable[[], Other]) -> None:
    lock = make(timeout=10)
    assert lock.acquire()
    with pytest.raises((LockError, AttributeError)):  # redis-py's own stumbles over its thread-local storage
        other()(lock.release)
    assert lock.owned()
    lock.release()


@pytest.mark.parametrize("timeout", [10, None])
def test_without_thread_local_any_thread_may_release(
    make: Make, other: Callable[[], Other], timeout: float | None
) -> None:
    lock = make(timeout=timeout, thread_local=False)
    assert lock.acquire()
    thread = other()
    assert thread(lock.owned)
    thread(lock.release)
    assert not lock.locked()
    with pytest.raises(LockError):
        lock.release()


def test_without_thread_local_any_thread_may_extend(
    make: Make, client: redis.Redis, other: Callable[[], Other]
) -> None:
    lock = make(timeout=10, thread_local=False)
    assert lock.acquire()
    assert other()(lambda: lock.extend(10))
    assert 15 < left(client, lock) <= 20
    assert other()(lock.reacquire)
    assert 5 < left(client, lock) <= 10
    lock.release()


@pytest.mark.parametrize("make", ["redis-py", "ours"], indirect=True)
def test_without_thread_local_the_acquiring_thread_may_wait_for_the_releasing_one(
    make: Make, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    lock, acquires = make(thread_local=False), other()
    assert acquires(lock.acquire)
    waiting = acquires.start(make(timeout=10, sleep=0.01).acquire)
    if isinstance(lock, CacheLock):  # nobody sees who waits for redis-py's
        eventually(lambda: waiting.done() or waits(1))
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_threads_take_turns_with_one_object(make: Make, other: Callable[[], Other]) -> None:
    lock = make(timeout=30, sleep=0.001)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    for turn in [other().start(work) for _ in range(4)]:
        turn.result(GENEROUS)
    assert (len(most), max(most)) == (20, 1)
