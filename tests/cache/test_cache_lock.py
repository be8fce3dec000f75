"""``cache.lock()``: redis-py's documented behaviour, with its lock and with ours; and how ours differs on purpose."""

import contextvars
import gc
import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as RedisPyLock

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, until
from tests.helpers.state import queued
from tests.helpers.ways import stopped
from tests.inside import ACQUIRE, INFO, RELEASE, after_each_call, keys_of, over_by_the_clock_here

BACKEND = "django_redislock.cache.RedisCache"
Make = Callable[..., Any]
YEAR = 365 * 86400
SHORT = 0.4  # seconds
CALLS: dict[str, Callable[[Any], Any]] = {
    "release": lambda lock: lock.release(),
    "extend": lambda lock: lock.extend(10),
    "reacquire": lambda lock: lock.reacquire(),
}


@pytest.fixture
def _aliases(settings: Any, server: RedisServer) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "redis-py": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url},
        "ours": {"BACKEND": BACKEND, "LOCATION": server.url},
    }
    settings.REDISLOCK = {"CACHE": "ours"}


@pytest.fixture(params=["redis-py", "ours"])
def make(request: pytest.FixtureRequest, _aliases: None) -> Make:
    return lambda **options: caches[request.param].lock("foo", **options)  # type: ignore[attr-defined]


@pytest.fixture
def ours(_aliases: None) -> Make:
    return lambda **options: caches["ours"].lock("foo", **options)  # type: ignore[attr-defined]


def left(client: redis.Redis, lock: Any) -> float:
    """Seconds of lease left, according to Redis."""
    key = lock.name if isinstance(lock, RedisPyLock) else keys_of(lock.name).lock
    return float(client.pttl(key)) / 1000


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
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_owned_no_more_is_refused(call: Any, taken: bool, make: Make, client: Any) -> None:
    lock, another = make(timeout=SHORT), make(timeout=60, sleep=0.01)
    assert lock.acquire()
    if taken:
        assert another.acquire()
    else:
        until(lambda: not lock.locked())
        assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        call(lock)
    assert another.owned() is taken
    assert not taken or until(lambda: 30 < left(client, another) <= 60)  # a handoff has less until it is confirmed
    assert make(timeout=1).acquire(blocking=False) is not taken


@pytest.mark.complete
def test_who_bears_the_token_extends_the_lock_as_far_as_replicas_know_of_it(
    ours: Make, own: RedisServer, replica: RedisServer, settings: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "ours": {**settings.CACHES["ours"], "LOCATION": own.url}}
    settings.REDISLOCK = {**settings.REDISLOCK, "REPLICAS": 1}
    lock, bearer = ours(timeout=60), ours(timeout=60)
    assert lock.acquire()
    bearer.local.token = lock.local.token
    assert bearer.extend(60)
    with stopped(replica), pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        bearer.extend(60)
    lock.release()


def test_the_timeout_is_the_lease_that_extend_and_reacquire_change(make: Make, client: redis.Redis) -> None:
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
def test_who_knows_the_token_can_extend_and_release(make: Make, given: str | None, client: redis.Redis) -> None:
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


def test_a_with_block_holds_it_and_releases_it_even_if_it_raises(make: Make) -> None:
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
        until(lambda: not lock.locked())


def test_a_threads_token_is_its_own(make: Make, other: Any) -> None:
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
    make: Make, client: redis.Redis, other: Any, timeout: float | None
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
        until(lambda: waiting.done() or queued(client, "foo"))
    lock.release()
    assert waiting.result(GENEROUS) is True
    refuses(lock.release)


@pytest.mark.parametrize("thread_local", [True, pytest.param(False, marks=pytest.mark.complete)])
@pytest.mark.complete
def test_without_a_timeout_it_is_renewed_and_ends_with_its_thread_or_with_its_object(
    thread_local: bool, ours: Make, settings: Any, client: redis.Redis
) -> None:
    def renewed() -> None:
        until(lambda: 0 < left(client, ours()) < 3.9)
        until(lambda: 4 < left(client, ours()) <= 4.5)

    settings.REDISLOCK = {"CACHE": "ours", "TTL": 4.5}
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
    until(lambda: not ours().locked())


@pytest.mark.parametrize("blocking_timeout", [None, float("inf")])
def test_waiting_has_no_end_whatever_the_settings_say_but_a_thread_does_not_wait_for_itself(
    blocking_timeout: float | None, ours: Make, settings: Any, other: Any, client: redis.Redis
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "BLOCKING_TIMEOUT": 0, "MAX_WAITERS": {"*": 0}}
    lock = ours()
    assert lock.acquire()
    with pytest.raises(LockError, match="would wait for itself"):
        ours().acquire(blocking_timeout=blocking_timeout)
    assert ours().acquire(blocking_timeout=0.01) is False
    waiting = other().start(lambda: ours(timeout=10).acquire(blocking_timeout=blocking_timeout))
    until(lambda: queued(client, "foo"))
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_our_locks_see_it_and_our_errors_come_through(ours: Make, other: Any) -> None:
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


async def test_ours_blocks_in_a_coroutine_as_django_redis_does(ours: Make) -> None:
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


def test_an_unreachable_redis_is_a_connection_error_for_now(own: RedisServer, settings: Any, retry_for: Any) -> None:
    options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": 0.2}}
    settings.CACHES = {"far": {"BACKEND": BACKEND, "LOCATION": own.url, "OPTIONS": options}}
    settings.REDISLOCK = {"CACHE": "far"}
    lock = caches["far"].lock("foo", timeout=600)  # type: ignore[attr-defined]
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
    retry_for(0.2)
    with ExitStack() as later, pytest.raises(redis.ConnectionError), lock:
        later.enter_context(stopped(own))  # the end of a block raises as well, as redis-py's does
    retry_for(30)
    lock.release()


def test_so_is_a_cluster_that_was_never_reached(settings: Any, retry_for: Any) -> None:
    settings.CACHES = {"far": {"BACKEND": BACKEND, "LOCATION": "redis://127.0.0.1:1"}}
    settings.REDISLOCK = {"CACHE": "far", "CLUSTER": True}
    retry_for(0.0)
    lock = caches["far"].lock("foo")  # type: ignore[attr-defined]
    for call in (lock.acquire, lock.locked):
        with pytest.raises(redis.ConnectionError) as raised:
            call()
        assert isinstance(raised.value, LockUnavailable)


@pytest.mark.parametrize("token", [None, "mine"])
def test_an_interrupted_call_leaves_no_lock(token: Any, ours: Make, monkeypatch: Any) -> None:
    lock, by_token, strike = ours(timeout=600), ours(), Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        after_each_call(patch, ACQUIRE, strike)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(token=token)
    until(lambda: not lock.locked())
    for each in (lock, by_token):
        assert lock.acquire(token=token)
        by_token.local.token = lock.local.token
        with monkeypatch.context() as patch:
            after_each_call(patch, RELEASE, strike)
            with pytest.raises(KeyboardInterrupt):
                each.release()
        until(lambda: not lock.locked())
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_a_bearer_spares_who_gets_the_lock_in_between(verb: str, ours: Make, client: Any, monkeypatch: Any) -> None:
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
def test_what_has_expired_by_the_clock_here_but_was_extended_by_another_bearer_is_held(how: str, ours: Make) -> None:
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
