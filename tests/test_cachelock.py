"""redis-py's documented lock behaviour, shown of redis-py's own lock and of ours; then what differs on purpose."""

from __future__ import annotations

import contextvars
import gc
import inspect
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as RedisPyLock

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release
from django_redislock.cachelock import CacheLock
from django_redislock.connection import Backend, Command
from django_redislock.names import make_keys
from redisserver import RedisServer

from .actors import GENEROUS, Other
from .processes import Worker
from .ways import Eventually, stopped

Make = Callable[..., Any]
SHORT = 0.15  # seconds


@pytest.fixture(autouse=True)
def _aliases(settings: Any, server: RedisServer) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "redis-py": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url},
        "ours": {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": server.url},
    }
    settings.REDISLOCK = {"CACHE": "ours"}


@pytest.fixture(params=["redis-py", "ours"])
def make(request: pytest.FixtureRequest) -> Make:
    """``cache.lock("foo", ...)`` of django-redis, which is redis-py's, and of our backend."""

    def make(**options: Any) -> Any:
        return caches[request.param].lock("foo", **options)  # type: ignore[attr-defined]

    return make


@pytest.fixture
def ours() -> Make:
    def ours(**options: Any) -> CacheLock:
        lock: CacheLock = caches["ours"].lock("foo", **options)  # type: ignore[attr-defined]
        return lock

    return ours


def left(client: redis.Redis, lock: Any) -> float:
    """Seconds of lease, as Redis says."""
    key = lock.name if isinstance(lock, RedisPyLock) else make_keys("redislock{0}:", lock.name).lock
    return float(client.pttl(key)) / 1000


def waits(number: int) -> bool:
    info = Lock("foo").info()
    return info is not None and info.waiters == number


def expire(lock: Any, eventually: Eventually) -> None:
    eventually(lambda: not lock.locked())


@pytest.mark.parametrize("token", [None, "mine"])
def test_an_acquire_that_is_interrupted_leaves_no_lock(
    token: str | None, ours: Make, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Backend.execute

    def interrupted(self: Backend, command: Command) -> None:
        execute(self, command)
        raise KeyboardInterrupt

    lock = ours(timeout=600)
    with monkeypatch.context() as patch:
        patch.setattr(Backend, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(token=token)
    eventually(lambda: not lock.locked())


# -- acquire --------------------------------------------------------------------------------------------------------


def test_the_two_are_what_they_should_be(make: Make, ours: Make) -> None:
    assert isinstance(ours(), CacheLock)
    assert isinstance(make(), (RedisPyLock, CacheLock))
    assert isinstance(caches["redis-py"].lock("foo"), RedisPyLock)  # type: ignore[attr-defined]


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


def test_a_lock_ends_with_its_timeout(make: Make, eventually: Eventually) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock, eventually)
    assert not lock.owned()
    assert make(timeout=1).acquire(blocking=False)


# -- tokens ---------------------------------------------------------------------------------------------------------


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


# -- with -----------------------------------------------------------------------------------------------------------


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


def test_a_with_block_that_outlives_the_lock_raises(make: Make, eventually: Eventually) -> None:
    lock = make(timeout=SHORT)
    with pytest.raises(LockNotOwnedError), lock:
        expire(lock, eventually)


def test_a_with_block_whose_lock_was_released_raises(make: Make) -> None:
    with pytest.raises(LockError) as raised, make(timeout=10) as lock:
        lock.release()
    assert not isinstance(raised.value, LockNotOwnedError)


# -- release --------------------------------------------------------------------------------------------------------


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


def test_releasing_an_expired_lock(make: Make, eventually: Eventually) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock, eventually)
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


# -- extend and reacquire -------------------------------------------------------------------------------------------


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


def test_what_was_extended_lives_longer(make: Make, eventually: Eventually) -> None:
    lock, witness = make(timeout=SHORT), caches["redis-py"].lock("witness", timeout=SHORT)  # type: ignore[attr-defined]
    assert lock.acquire()
    assert lock.extend(30)
    assert witness.acquire()
    expire(witness, eventually)
    assert lock.owned()
    lock.release()


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
def test_an_expired_lock_cannot_be_renewed(make: Make, eventually: Eventually, renew: Callable[[Any], Any]) -> None:
    lock = make(timeout=SHORT)
    assert lock.acquire()
    expire(lock, eventually)
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


# -- locked and owned -----------------------------------------------------------------------------------------------


def test_anybody_sees_that_it_is_locked_and_its_holder_that_it_owns_it(make: Make) -> None:
    lock, another = make(timeout=10), make(timeout=10)
    assert not lock.locked()
    assert not lock.owned()
    assert lock.acquire()
    assert another.locked()
    assert not another.owned()
    lock.release()


# -- threads --------------------------------------------------------------------------------------------------------


def test_a_threads_token_is_its_own(make: Make, other: Callable[[], Other], eventually: Eventually) -> None:
    """The timeline in redis-py's docstring."""
    lock = make(timeout=SHORT, sleep=0.01)
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


def test_without_thread_local_the_acquiring_thread_may_wait_for_the_releasing_one(
    make: Make, other: Callable[[], Other]
) -> None:
    lock = make(thread_local=False)
    assert lock.acquire()
    worker = other()
    entered = threading.Event()

    def work() -> None:
        assert entered.wait(GENEROUS)
        lock.release()

    worker.start(work)
    entered.set()
    assert make(timeout=10, sleep=0.01).acquire() is True


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


# -- what differs, on purpose ---------------------------------------------------------------------------------------


def test_without_a_timeout_it_is_renewed_while_it_is_held(
    ours: Make, settings: Any, client: redis.Redis, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 1}
    lock, witness = ours(), caches["redis-py"].lock("witness", timeout=2)  # type: ignore[attr-defined]
    assert lock.acquire()
    assert 0 < left(client, lock) <= 1
    assert witness.acquire()
    expire(witness, eventually)
    assert lock.owned()
    lock.release()
    assert not lock.locked()


def test_it_is_renewed_even_if_the_context_of_its_acquisition_is_gone(
    ours: Make, settings: Any, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 1}
    lock, witness = ours(), caches["redis-py"].lock("witness", timeout=2)  # type: ignore[attr-defined]
    assert contextvars.copy_context().run(lock.acquire)
    gc.collect()
    assert witness.acquire()
    expire(witness, eventually)
    assert lock.owned()
    lock.release()


def test_without_a_timeout_it_ends_with_its_thread(ours: Make, settings: Any, eventually: Eventually) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 0.3}
    lock = ours()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    expire(lock, eventually)


def test_without_thread_local_it_outlives_its_thread_while_the_object_lives(
    ours: Make, settings: Any, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"CACHE": "ours", "TTL": 1}
    lock, witness = ours(thread_local=False), caches["redis-py"].lock("witness", timeout=2.5)  # type: ignore[attr-defined]
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    assert witness.acquire()
    expire(witness, eventually)
    assert lock.owned()
    del lock
    gc.collect()
    expire(ours(), eventually)


def test_a_thread_that_did_not_acquire_gets_a_lock_error(ours: Make, other: Callable[[], Other]) -> None:
    lock = ours(timeout=10)
    assert lock.acquire()
    with pytest.raises(LockError, match="Cannot release an unlocked lock"):
        other()(lock.release)
    assert not other()(lock.owned)
    lock.release()


def test_a_thread_does_not_wait_for_itself_without_end(ours: Make) -> None:
    lock = ours()
    assert lock.acquire()
    with pytest.raises(LockError, match="would wait for itself"):
        ours().acquire()
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


def test_our_errors_come_through(ours: Make, eventually: Eventually) -> None:
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


# a process that is told the token
BEARER = """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
from django.core.cache import caches
lock = caches["ours"].lock("foo", timeout=60)
lock.local.token = token
"""


def test_another_process_that_is_told_the_token_can_release(
    ours: Make, start: Callable[..., Worker], server: Any
) -> None:
    lock = ours(timeout=60)
    assert lock.acquire()
    start(
        BEARER
        + """
lock.release()
say("released")
""",
        url=server.url,
        token=lock.local.token,
    ).expect("released")
    assert not lock.locked()


def test_whoever_bears_the_token_can_release_though_another_process_has_extended_the_lock(
    ours: Make, start: Callable[..., Worker], server: Any
) -> None:
    lock = ours(timeout=60)
    assert lock.acquire()
    start(
        BEARER
        + """
lock.extend(5)
say("extended")
hear()
""",
        url=server.url,
        token=lock.local.token,
    ).expect("extended")
    lock.release()
    assert not lock.locked()


def test_a_lock_that_ended_between_look_and_adoption_is_not_extended(
    ours: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, another = ours(timeout=10), ours(timeout=10)
    assert lock.acquire()
    stored = lock.local.token.decode()
    lock.release()
    assert ours(timeout=10).acquire()
    another.local.token = stored.encode()
    monkeypatch.setattr(CacheLock, "_stored", lambda *args: stored)
    with pytest.raises(LockNotOwnedError, match="Cannot extend a lock that's no longer owned"):
        another.extend(5)


async def test_it_blocks_in_a_coroutine_as_django_redis_does(ours: Make) -> None:
    with ours(timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(SynchronousOnlyOperation):
            Lock("foo").locked()


def test_it_shows_its_name_and_no_token(ours: Make) -> None:
    assert repr(ours()) == "<CacheLock 'foo'>"
