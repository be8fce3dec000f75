"""redis-py's documented behaviour, tested with redis-py's lock and with ours: acquiring, tokens, ``with``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as RedisPyLock

from django_redislock.cache_lock import CacheLock
from tests.helpers.actors import GENEROUS, Other

from .conftest import SHORT, Make, left, lock_of, waits

Eventually = Callable[..., Any]
Expire = Callable[[Any], None]

# -- acquire ----------------------------------------------------------------------------------------------------------


def test_the_two_are_what_they_should_be(make: Make, ours: Make) -> None:
    assert isinstance(ours(), CacheLock)
    assert isinstance(make(), (RedisPyLock, CacheLock))
    assert isinstance(lock_of("redis-py", "foo"), RedisPyLock)


def test_the_methods_take_the_same_arguments() -> None:
    for verb in ("acquire", "release", "extend", "reacquire", "locked", "owned"):
        theirs, mine = (inspect.signature(getattr(kind, verb)).parameters for kind in (RedisPyLock, CacheLock))
        assert [(p.name, p.default, p.kind) for p in mine.values()] == [
            (p.name, p.default, p.kind) for p in theirs.values()
        ]


def test_it_has_the_same_attributes(make: Make) -> None:
    lock = make(timeout=2.5, sleep=0.2, blocking=False, blocking_timeout=3, thread_local=False)
    assert lock.name.endswith("foo")
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (2.5, 0.2, False, 3)
    assert lock.thread_local is False
    assert lock.local.token is None


def test_it_has_the_same_defaults(make: Make) -> None:
    lock = make()
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (None, 0.1, True, None)
    assert lock.thread_local is True


def test_acquire_and_release(make: Make) -> None:
    lock = make(timeout=10)
    assert lock.acquire() is True
    assert lock.locked()
    assert lock.owned()
    assert lock.release() is None
    assert not lock.locked()
    assert not lock.owned()


def test_it_can_be_acquired_again(make: Make) -> None:
    lock = make(timeout=10)
    for _ in range(3):
        assert lock.acquire(blocking=False)
        lock.release()


def test_another_one_is_not_got(make: Make) -> None:
    assert make(timeout=10).acquire(blocking=False) is True
    assert make(timeout=10).acquire(blocking=False) is False


def test_blocking_false_of_the_constructor(make: Make) -> None:
    assert make(timeout=10).acquire()
    assert make(timeout=10, blocking=False).acquire() is False


def test_the_argument_blocking_counts_more(make: Make) -> None:
    assert make(timeout=SHORT).acquire()
    assert make(timeout=10, blocking=False, sleep=0.01).acquire(blocking=True) is True


@pytest.mark.parametrize("where", ["constructor", "argument", "argument counts more"])
def test_blocking_timeout_is_waited_for(make: Make, where: str) -> None:
    assert make(timeout=30).acquire()
    options: dict[str, Any] = {"argument": {}, "argument counts more": {"blocking_timeout": 60}}.get(
        where, {"blocking_timeout": SHORT}
    )
    begun = monotonic()
    lock = make(timeout=10, sleep=0.01, **options)
    assert lock.acquire(**({} if where == "constructor" else {"blocking_timeout": SHORT})) is False
    assert SHORT - 0.02 <= monotonic() - begun < 20


@pytest.mark.parametrize("none", [0, -1])
def test_a_blocking_timeout_of_nothing_tries_once(make: Make, none: float) -> None:
    assert make(timeout=10).acquire(blocking_timeout=none) is True
    assert make(timeout=10).acquire(blocking_timeout=none) is False


def test_who_waits_gets_what_is_released(make: Make, other: Callable[[], Other], eventually: Eventually) -> None:
    holder = make(timeout=30)
    assert holder.acquire()
    waiting = other().start(make(timeout=30, sleep=0.01).acquire)
    if isinstance(holder, CacheLock):  # nobody sees who waits for redis-py's
        eventually(lambda: waits(1))
    holder.release()
    assert waiting.result(GENEROUS) is True


def test_who_waits_gets_what_expires(make: Make) -> None:
    assert make(timeout=SHORT).acquire()
    assert make(timeout=30, sleep=0.01).acquire() is True


def test_the_thread_that_holds_it_may_wait_for_its_end(make: Make) -> None:
    lock = make(timeout=SHORT, sleep=0.01)
    begun = monotonic()
    assert lock.acquire()
    assert lock.acquire()
    assert monotonic() - begun >= SHORT - 0.01


@pytest.mark.parametrize("timeout", [10, 10.5, 0.75])
def test_the_timeout_is_the_lease(make: Make, client: redis.Redis, timeout: float) -> None:
    lock = make(timeout=timeout)
    assert lock.acquire()
    assert timeout - 0.7 < left(client, lock) <= timeout


def test_a_lock_ends_with_its_timeout(make: Make, expire: Expire) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock)
    assert not lock.owned()
    assert make(timeout=1).acquire(blocking=False)


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_made_in_bytes(make: Make) -> None:
    one, two = make(timeout=SHORT, sleep=0.01), make(timeout=SHORT, sleep=0.01)
    assert one.acquire()
    assert two.acquire()
    assert isinstance(one.local.token, bytes)
    assert one.local.token != two.local.token


@pytest.mark.parametrize("token", ["static", b"static", "", "ü" * 200, b"\xff\x00 {}:%", "a" * 22])
def test_a_token_may_be_given(make: Make, token: str | bytes) -> None:
    lock = make(timeout=10)
    assert lock.acquire(blocking=False, token=token)
    assert lock.local.token == (token if isinstance(token, bytes) else token.encode())
    assert lock.owned()
    assert lock.extend(5)
    lock.release()
    assert not lock.locked()


def test_a_token_that_is_given_twice_gets_the_lock_once(make: Make) -> None:
    lock = make(timeout=10)
    assert lock.acquire(blocking=False, token="worker")
    assert make(timeout=10).acquire(blocking=False, token="worker") is False
    assert lock.acquire(blocking=False, token="worker") is False
    assert lock.owned()


@pytest.mark.parametrize("given", [None, "static", "a" * 22])
def test_whoever_is_told_the_token_can_release(make: Make, given: str | None) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert lock.acquire(token=given)
    assert not another.owned()
    another.local.token = lock.local.token
    assert another.owned()
    another.release()
    assert not lock.locked()
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_whoever_is_told_the_token_can_extend(make: Make, client: redis.Redis) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert lock.acquire(token="static")
    another.local.token = lock.local.token
    assert another.extend(30) is True
    assert 35 < left(client, lock) <= 40
    assert another.reacquire() is True
    assert 5 < left(client, lock) <= 10
    another.release()


def test_another_token_can_do_nothing(make: Make) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert lock.acquire(token="static")
    another.local.token = b"no"
    assert not another.owned()
    for call in (another.reacquire, lambda: another.extend(5), another.release):
        with pytest.raises(LockNotOwnedError):
            call()
    assert lock.owned()


def test_a_token_is_told_where_the_lock_is_free(make: Make) -> None:
    lock = make(timeout=10)
    lock.local.token = b"static"
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.extend(5)
    assert not lock.locked()


# -- with -------------------------------------------------------------------------------------------------------------


def test_a_with_block_holds_it(make: Make) -> None:
    lock = make(timeout=10)
    with lock as entered:
        assert entered is lock
        assert lock.owned()
    assert not lock.locked()


def test_a_with_block_that_raises_releases_it(make: Make) -> None:
    with pytest.raises(KeyError), make(timeout=10):
        raise KeyError
    assert not make().locked()


@pytest.mark.parametrize("options", [{"blocking_timeout": 0.02, "sleep": 0.01}, {"blocking": False}])
def test_a_with_block_that_does_not_get_it_raises(make: Make, options: dict[str, Any]) -> None:
    assert make(timeout=10).acquire()
    with pytest.raises(LockError, match="Unable to acquire lock within the time specified") as raised:  # noqa: SIM117
        with make(timeout=10, **options):
            pytest.fail("entered")
    assert not isinstance(raised.value, LockNotOwnedError)
    assert make().locked()


def test_a_with_block_that_outlives_the_lock_raises(make: Make, expire: Expire) -> None:
    lock = make(timeout=SHORT)
    with pytest.raises(LockNotOwnedError), lock:
        expire(lock)


def test_a_with_block_whose_lock_was_released_raises(make: Make) -> None:
    with pytest.raises(LockError) as raised, make(timeout=10) as lock:
        lock.release()
    assert not isinstance(raised.value, LockNotOwnedError)
