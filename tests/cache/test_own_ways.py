"""Deliberate differences between our ``cache.lock()`` and redis-py's."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import LockError, LockNotOwnedError

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release, get_lock
from django_redislock.cache_lock import CacheLock
from django_redislock.store import calls
from django_redislock.store.lock_store import Partition
from django_redislock.store.wire import Command
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.processes import Worker
from tests.helpers.ways import stopped

from .conftest import Make, left, waits

Eventually = Callable[..., Any]
Expire = Callable[[Any], None]
YEAR = 365 * 86400


# -- what differs, on purpose -----------------------------------------------------------------------------------------


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


def test_without_a_timeout_it_ends_with_its_thread(ours: Make, settings: Any, expire: Expire) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 0.3}
    lock = ours()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    expire(lock)


@pytest.mark.complete
def test_without_thread_local_it_outlives_its_thread_while_the_object_lives(
    ours: Make, settings: Any, renewed: Expire, expire: Expire
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 3}
    lock = ours(thread_local=False)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    renewed(lock)
    assert lock.owned()
    del lock
    gc.collect()
    expire(ours())


def test_a_thread_that_did_not_acquire_gets_a_lock_error(ours: Make, other: Callable[[], Other]) -> None:
    lock = ours(timeout=10)
    assert lock.acquire()
    with pytest.raises(LockError, match="Cannot release an unlocked lock"):
        other()(lock.release)
    assert not other()(lock.owned)
    lock.release()


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
    lock = ours(timeout=10)
    assert lock.acquire()
    waiting = other().start(ours(timeout=10).acquire)
    eventually(lambda: waits(1))
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_our_errors_come_through(ours: Make) -> None:
    lock = ours(timeout=30)
    assert lock.acquire()
    with pytest.raises(LockNotAcquired), ours(blocking=False):
        pytest.fail("entered")
    assert force_release("foo")
    with pytest.raises(LockLost) as raised:
        lock.release()
    assert raised.value.name == "foo"


def test_our_locks_see_it(ours: Make) -> None:
    with ours(timeout=10):
        assert Lock("foo").locked()
    with Lock("foo", ttl=10):
        assert ours().acquire(blocking=False) is False
        assert not ours().owned()


@pytest.mark.parametrize("timeout", [-1, 0.0001, float("nan"), float("inf"), "10"])
def test_a_wrong_timeout_is_an_error_at_once(ours: Make, timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"timeout must be"):
        ours(timeout=timeout)


@pytest.mark.parametrize("timeout", ["10", Decimal(1), [1]], ids=repr)
def test_a_wrong_blocking_timeout_is_an_error_at_once(ours: Make, timeout: Any) -> None:
    with pytest.raises(TypeError, match=r"^blocking_timeout must be seconds \(int or float\), not "):
        ours(blocking_timeout=timeout)


@pytest.mark.parametrize("timeout", [11 * YEAR, 10**400], ids=["eleven years", "10**400"])
def test_a_timeout_beyond_ten_years_counts_as_ten(ours: Make, timeout: int) -> None:
    lock = ours(timeout=timeout)
    assert lock.acquire()
    assert lock.extend(timeout, replace_ttl=True)
    assert lock.reacquire()
    info = get_lock("foo")
    assert info is not None
    assert 9.9 * YEAR < info.lease_left <= 10 * YEAR
    lock.release()


@pytest.mark.parametrize("wrong", [0, -5])
def test_a_lock_cannot_be_extended_by_nothing(ours: Make, wrong: float) -> None:
    lock = ours(timeout=10)
    assert lock.acquire()
    with pytest.raises(ValueError, match="additional_time must be"):
        lock.extend(wrong)


def test_a_timeout_of_zero_is_none_at_all(ours: Make) -> None:
    lock = ours(timeout=0)
    assert lock.acquire()
    with pytest.raises(LockError, match="no timeout"):
        lock.extend(1)
    lock.release()


def test_a_token_that_is_no_text_is_refused_and_not_told(ours: Make) -> None:
    with pytest.raises(TypeError, match="not int") as raised:
        ours().acquire(token=4711)
    assert "4711" not in str(raised.value)


def test_an_unreachable_redis_is_a_connection_error(own: RedisServer, settings: Any) -> None:
    settings.CACHES = {"ours": {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": own.url}}
    settings.REDISLOCK = {"RETRY_FOR": 0.2}
    lock = caches["ours"].lock("foo")  # type: ignore[attr-defined]
    own.stop()
    for call in (lock.acquire, lock.locked):
        with pytest.raises(redis.ConnectionError) as raised:
            call()
        assert isinstance(raised.value, LockUnavailable)
    lock.local.token = b"static"
    with pytest.raises(redis.ConnectionError):
        lock.owned()


def test_a_release_that_could_not_be_sent_can_be_tried_again(own: RedisServer, settings: Any) -> None:
    options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": 0.2}}
    ours = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": own.url, "OPTIONS": options}
    settings.CACHES = {"ours": ours}
    lock = caches["ours"].lock("foo", timeout=60)  # type: ignore[attr-defined]
    assert lock.acquire()
    with stopped(own), pytest.raises(redis.ConnectionError):
        lock.release()
    lock.release()
    assert not lock.locked()


def test_a_forked_process_holds_nothing_of_its_parents(ours: Make, start: Callable[..., Worker], server: Any) -> None:
    worker = start(
        """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
from django.core.cache import caches
lock = caches["ours"].lock("foo", timeout=60)
assert lock.acquire()
child = os.fork()
if child == 0:
    try:
        lock.release()
    except LockError as error:
        os._exit(7 if "unlocked" in str(error) and not lock.owned() else 8)
    os._exit(9)
say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
hear()
lock.release()
say("released")
""",
        url=server.url,
    )
    assert worker.expect("child") == ["7"]
    assert ours().locked()
    worker.tell()
    worker.expect("released")
    assert not ours().locked()


BEARER = """
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


def test_another_process_that_is_told_the_token_can_extend_and_release(
    ours: Make, start: Callable[..., Worker], server: RedisServer
) -> None:
    lock, worker = ours(timeout=60), start(BEARER, url=server.url)
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


@pytest.mark.parametrize(
    ("use", "verb"),
    [(CacheLock.release, "release"), (lambda lock: lock.extend(5), "extend")],
    ids=["release", "extend"],
)
def test_a_bearer_does_not_touch_the_lock_of_the_next_one_who_gets_it_in_between(
    use: Callable[[CacheLock], object], verb: str, ours: Make, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, bearer, third = ours(timeout=10), ours(timeout=10), ours(timeout=10)
    assert lock.acquire()
    bearer.local.token = lock.local.token
    find_held = calls.find_held

    def too_late(*args: Any) -> Any:
        held = yield from find_held(*args)
        lock.release()
        assert third.acquire()
        return held

    monkeypatch.setattr(calls, "find_held", too_late)
    with pytest.raises(LockNotOwnedError, match=f"Cannot {verb} a lock that's no longer owned"):
        use(bearer)
    assert left(client, third) <= 10
    third.release()


async def test_it_blocks_in_a_coroutine_as_django_redis_does(ours: Make) -> None:
    with ours(timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(SynchronousOnlyOperation):
            Lock("foo").locked()


def test_it_shows_its_name_and_no_token(ours: Make) -> None:
    assert repr(ours()) == "<CacheLock 'foo'>"


@pytest.mark.parametrize("token", [None, "mine"])
def test_an_acquire_that_is_interrupted_leaves_no_lock(
    token: str | None, ours: Make, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Partition.exchange

    def interrupted(self: Partition, commands: Sequence[Command], *args: Any) -> None:
        exchange(self, commands, *args)
        raise KeyboardInterrupt

    lock = ours(timeout=600)
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(token=token)
    eventually(lambda: not lock.locked())


def test_a_release_that_is_interrupted_is_sent_later(
    ours: Make, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> Any:
        yield from ()
        raise KeyboardInterrupt

    lock = ours()
    assert lock.acquire()
    by_token = ours()
    by_token.local.token = lock.local.token
    with monkeypatch.context() as patch:
        patch.setattr(calls, "release", interrupted)
        for each in (by_token, lock):
            with pytest.raises(KeyboardInterrupt):
                each.release()
    eventually(lambda: not lock.locked())


@pytest.mark.parametrize("how", ["extend", "reacquire"])
def test_extending_what_has_expired_by_the_clock_here_and_was_extended_by_another_bearer(how: str, ours: Make) -> None:
    lock = ours(timeout=10)
    assert lock.acquire()
    lock.local.held.held.ends = 0.0
    assert lock.extend(50) if how == "extend" else lock.reacquire()
    assert lock.owned()
    force_release(lock.name, using=lock.using)
    with pytest.raises(LockLost):
        lock.extend(50)
    lock.local.token = lock.local.held = None


def test_releasing_what_has_expired_by_the_clock_here_and_was_extended_by_another_bearer(ours: Make) -> None:
    lock = ours(timeout=10)
    assert lock.acquire()
    lock.local.held.held.ends = 0.0
    lock.release()
    assert ours(timeout=10).acquire(blocking=False)
