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

RENEWALS: dict[str, Callable[[Any], Any]] = {
    "extend": lambda lock: lock.extend(10),
    "reacquire": lambda lock: lock.reacquire(),
}
each_renewal = pytest.mark.parametrize("renew", RENEWALS.values(), ids=RENEWALS)


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


# -- acquire and release ----------------------------------------------------------------------------------------------


def test_one_holds_it_at_a_time_and_all_see_that_it_is_locked(make: Make) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    for _ in range(2):
        assert (lock.locked(), lock.owned()) == (False, False)
        assert lock.acquire() is True
        assert (lock.locked(), lock.owned()) == (True, True)
        assert (another.locked(), another.owned()) == (True, False)
        assert another.acquire(blocking=False) is False
        assert make(timeout=10, blocking=False).acquire() is False
        assert lock.release() is None


def test_the_argument_blocking_counts_more_than_that_of_the_constructor(make: Make) -> None:
    assert make(timeout=SHORT).acquire()
    assert make(timeout=10, blocking=False, sleep=0.01).acquire(blocking=True) is True


@pytest.mark.parametrize("where", ["constructor", "argument", "argument counts more"])
def test_blocking_timeout_is_waited_for(make: Make, where: str) -> None:
    assert make(timeout=600).acquire()
    options = {"argument": {}, "argument counts more": {"blocking_timeout": 600}}.get(
        where, {"blocking_timeout": SHORT}
    )
    begun = monotonic()
    lock = make(timeout=10, sleep=0.01, **options)
    assert lock.acquire(**({} if where == "constructor" else {"blocking_timeout": SHORT})) is False
    assert monotonic() - begun >= SHORT - 0.02


@pytest.mark.parametrize("none", [0, -1])
def test_a_blocking_timeout_of_nothing_tries_once(make: Make, none: float) -> None:
    assert make(timeout=10).acquire(blocking_timeout=none) is True
    assert make(timeout=10).acquire(blocking_timeout=none) is False


def test_who_waits_gets_what_is_released(make: Make, other: Callable[[], Other], eventually: Eventually) -> None:
    holder = make(timeout=60)
    assert holder.acquire()
    waiting = other().start(make(timeout=30, sleep=0.01).acquire)
    if not isinstance(holder, RedisPyLock):  # nobody sees who waits for redis-py's
        eventually(lambda: waits(1))
    holder.release()
    assert waiting.result(GENEROUS) is True


def test_who_waits_gets_what_expires_even_in_the_thread_that_holds_it(make: Make) -> None:
    lock = make(timeout=SHORT, sleep=0.01)
    begun = monotonic()
    assert lock.acquire()
    assert lock.acquire()
    assert make(timeout=30, sleep=0.01).acquire() is True
    assert monotonic() - begun >= 2 * (SHORT - 0.01)


@pytest.mark.parametrize("timeout", [10, 10.5, 5.75])
def test_the_timeout_is_the_lease(make: Make, client: redis.Redis, timeout: float) -> None:
    lock = make(timeout=timeout)
    assert lock.acquire()
    assert timeout - 5 < left(client, lock) <= timeout


def test_only_what_is_locked_here_can_be_released_and_once(make: Make) -> None:
    holder = make(timeout=10)
    refuses(holder.release, "Cannot release")
    assert holder.acquire()
    refuses(make(timeout=10).release)
    assert holder.owned()
    holder.release()
    refuses(holder.release)


@pytest.mark.parametrize("taken", [False, True], ids=["expired", "somebody else has got it"])
@pytest.mark.parametrize("call", [lambda lock: lock.release(), *RENEWALS.values()], ids=["release", *RENEWALS])
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


# -- extend and reacquire ---------------------------------------------------------------------------------------------


def test_extend_adds_or_replaces_and_reacquire_starts_the_timeout_again(make: Make, client: redis.Redis) -> None:
    lock = make(timeout=10.5)
    assert lock.acquire()
    assert lock.extend(10.5) is True
    assert 11 < left(client, lock) <= 21
    assert lock.extend(60, replace_ttl=True) is True
    assert 50 < left(client, lock) <= 60
    assert lock.extend(30, True) is True
    assert 20 < left(client, lock) <= 30
    assert lock.reacquire() is True
    assert 0.5 < left(client, lock) <= 10.5


@each_renewal
def test_only_a_lock_with_a_timeout_that_is_locked_here_can_be_renewed(make: Make, renew: Callable[[Any], Any]) -> None:
    refuses(lambda: renew(make(timeout=10)), "an unlocked lock")
    lock = make()
    assert lock.acquire()
    refuses(lambda: renew(lock), "a lock with no timeout")
    lock.release()


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_made_in_bytes(make: Make) -> None:
    lock, made = make(timeout=10), []
    for _ in range(2):
        assert lock.acquire()
        made.append(lock.local.token)
        lock.release()
    assert isinstance(made[0], bytes)
    assert made[0] != made[1]


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
def test_whoever_is_told_the_token_can_extend_and_release(make: Make, given: str | None, client: redis.Redis) -> None:
    lock, another = make(timeout=20), make(timeout=20)
    assert lock.acquire(token=given)
    assert not another.owned()
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


@pytest.mark.parametrize("locked", [True, False])
def test_another_token_can_do_nothing(make: Make, locked: bool) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert not locked or lock.acquire(token="static")
    another.local.token = b"no"
    assert not another.owned()
    for call in (another.reacquire, lambda: another.extend(5), another.release):
        with pytest.raises(LockNotOwnedError):
            call()
    assert lock.owned() is lock.locked() is locked


# -- with -------------------------------------------------------------------------------------------------------------


def test_a_with_block_holds_it_and_releases_it_even_if_it_raises(make: Make) -> None:
    lock = make(timeout=10)
    with lock as entered:
        assert entered is lock
        assert lock.owned()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()


@pytest.mark.parametrize("options", [{"blocking_timeout": 0.02, "sleep": 0.01}, {"blocking": False}])
def test_a_with_block_that_does_not_get_it_raises(make: Make, options: dict[str, Any]) -> None:
    assert make(timeout=10).acquire()
    refuses(make(timeout=10, **options).__enter__, "Unable to acquire lock within the time specified")
    assert make().locked()


def test_a_with_block_raises_whose_lock_has_ended_before(make: Make, expire: Expire) -> None:
    lock = make(timeout=SHORT)
    with pytest.raises(LockNotOwnedError), lock:
        expire(lock)
    lock = make(timeout=10)

    def release_inside() -> None:
        with lock:
            lock.release()

    refuses(release_inside)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_a_threads_token_is_its_own(make: Make, other: Callable[[], Other]) -> None:
    """The timeline in redis-py's docstring."""
    lock, thread = make(timeout=0.5, sleep=0.01), other()
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
def test_without_thread_local_any_thread_may_extend_and_release(
    make: Make, client: redis.Redis, other: Callable[[], Other], timeout: float | None
) -> None:
    lock, thread = make(timeout=timeout, thread_local=False), other()
    assert lock.acquire()
    assert thread(lock.owned)
    if timeout:
        assert thread(lambda: lock.extend(50))
        assert 20 < left(client, lock) <= 60
        assert thread(lock.reacquire)
        assert left(client, lock) <= 10
    thread(lock.release)
    assert not lock.locked()
    refuses(lock.release)


def test_without_thread_local_the_acquiring_thread_may_wait_for_the_releasing_one(
    make: Make, other: Callable[[], Other], eventually: Eventually
) -> None:
    lock, acquires = make(thread_local=False), other()
    assert acquires(lock.acquire)
    waiting = acquires.start(make(timeout=10, sleep=0.01).acquire)
    if not isinstance(lock, RedisPyLock):
        eventually(lambda: waiting.done() or waits(1))
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_threads_take_turns_with_one_object(make: Make, other: Callable[[], Other]) -> None:
    lock, inside, most = make(timeout=60, sleep=0.001), [], []

    def work() -> None:
        for _ in range(5):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    for turn in [other().start(work) for _ in range(4)]:
        turn.result(GENEROUS)
    assert most == [1] * 20
