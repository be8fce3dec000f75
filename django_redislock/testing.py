"""For the tests of a site: locks of their own for each test, and others who hold locks.

All of this works on a real Redis and in the memory mode, in sync tests and in coroutines, which it blocks for a round
trip or two.
"""

from __future__ import annotations

import re
import secrets
import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from redis.connection import Connection
from redis.exceptions import ConnectionError

from .base.display import shown
from .base.names import check_name, refuse_semaphore
from .base.steps import Steps, run
from .base.times import Seconds, ttl_seconds
from .cache_lock import CacheLock
from .conf import conf, pinned
from .engine.lease import FORCED
from .engine.runtime import runtime
from .exceptions import LockNotAcquired, LockNotOwned, LockUnavailable
from .fencing import FencedQuerySet
from .fencing.table import write_fence
from .inspection.info import LockInfo, inspect
from .inspection.lists import read_matching
from .lock import Lock
from .signals import lock_acquired
from .store import calls
from .store.calls import LockRequest
from .store.lock_store import LockStore, Partition
from .store.records import make_keys
from .store.retry import call
from .store.stores import get_partition, get_store, made_stores, when_outdated
from .store.wire import CONNECTION_ERRORS

__all__ = [
    "OwnLocksMixin",
    "assert_locked",
    "assert_not_locked",
    "hold",
    "lose",
    "overtaken",
    "own_locks",
    "redis_away",
    "reset",
]

HELD_FOR = 3600.0  # seconds; longer than any test
SOMEBODY = "another-host:1:MainThread"

# of the own_locks() that we are in: the prefix, and the stores in which it was used before CACHES has changed
_blocks: list[tuple[str, list[LockStore]]] = []


# -- locks of one's own ------------------------------------------------------------------------------------------------


@contextmanager
def own_locks() -> Iterator[None]:
    """Use locks, pools, values and counters that nobody else sees, and end all that is left of them in the end.

    ``REDISLOCK["KEY_PREFIX"]`` is one that was never used before, for all threads of this process, also where the
    settings change meanwhile. ``ALSO_LOCK`` is off, as keys of old code are nobody's own. Costs no round trip where
    nothing was locked.
    """
    prefix = f"{conf().KEY_PREFIX}-test-{secrets.token_hex(6)}"
    with pinned(KEY_PREFIX=prefix, ALSO_LOCK=None):
        _blocks.append((prefix, []))
        try:
            yield
        finally:
            try:
                reset()
            except LockUnavailable as error:
                if not isinstance(error.__cause__, CONNECTION_ERRORS):
                    raise
                # the test has stopped it; nobody uses the prefix again
            finally:
                _blocks.pop()
                for store in made_stores():
                    store.close()


def reset() -> None:
    """End all locks, and delete all pools, values and counters of this test, as if there had never been any.

    Who holds a lock in this process holds nothing any more, and is told of no loss. Raises RuntimeError outside
    :func:`own_locks`, where others may be using the locks, and LockUnavailable. It reads the names of all keys in the
    database (``SCAN``).
    """
    if not _blocks:
        raise RuntimeError(
            "Cannot reset the locks of a site, only those of a test: use the plugin 'django_redislock.pytest_plugin', "
            "OwnLocksMixin, or own_locks()."
        )
    watchdog, (prefix, outdated) = runtime().watchdog, _blocks[-1]
    for lease in watchdog.leases():
        if lease.partition.store.prefix.endswith(prefix):
            watchdog.end(lease)
    for partition in [partition for store in [*made_stores(), *outdated] for partition in store.partitions.values()]:
        run(_delete_keys(partition))
        runtime().listener(partition).tell_all()


def _remember(store: LockStore) -> None:
    for outdated in [outdated for prefix, outdated in _blocks if store.prefix.endswith(prefix)]:
        outdated.append(store)


when_outdated.append(_remember)


def _delete_keys(partition: Partition) -> Steps[None]:
    pattern = re.sub(r"([*?\[\]^\\])", r"\\\1", partition.prefix) + "*"
    cursor = "0"
    while True:
        reply = yield from call(partition, ("SCAN", cursor, "MATCH", pattern, "COUNT", "1000"))
        following, keys = reply.answer
        if keys:
            yield from call(partition, ("UNLINK", *(key.decode() for key in keys)))
        cursor = following.decode()
        if cursor == "0":
            return


if TYPE_CHECKING:
    _TestCase = unittest.TestCase
else:
    _TestCase = object


class OwnLocksMixin(_TestCase):
    """Gives each test of a ``TestCase`` (of unittest, of Django) locks of its own; see :func:`own_locks`.

    They begin before ``setUp()`` and end after ``tearDown()`` and the cleanups. ``setUpClass()`` and
    ``setUpTestData()`` still use the site's.
    """

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        with own_locks():
            return super().run(result)


# -- others ------------------------------------------------------------------------------------------------------------


@contextmanager
def hold(name: str, *, ttl: Seconds = HELD_FOR, using: str | None = None) -> Iterator[None]:
    """Hold the lock ``name`` as another process would, which neither renews it nor hears that it is lost.

    Whoever asks in this process, this very thread or task too, finds it busy for ``ttl`` seconds (an hour) or until the
    end of the block. A lock that is force-released meanwhile stays so. Raises LockNotAcquired when somebody holds the
    lock or waits for it, and LockUnavailable.
    """
    name = check_name(name)
    refuse_semaphore(name)
    partition = get_partition(using, name)
    keys, id = make_keys(partition.prefix, name), secrets.token_urlsafe(16)
    request = LockRequest(partition, keys, name, id, ttl_seconds(ttl, "ttl"), owner=SOMEBODY, listens=False)
    reply = run(calls.acquire(request, calls.NOT_AT_ALL, None))
    if reply.state != calls.GRANTED:
        raise LockNotAcquired(f"Could not hold the lock {name!r} as somebody else: it is not free.", name)
    try:
        yield
    finally:
        run(calls.release(request, may_arrive=False))


def lose(lock: Lock | CacheLock | str, *, using: str | None = None) -> None:
    """Make this process lose a lock that any of its threads or tasks holds, as if it were force-released.

    Takes the lock or its name (on the alias ``using``). The next waiter gets it. On return ``lock.lost`` is True;
    ``on_lost`` and the signal ``lock_lost`` follow in a background thread. Raises LockNotOwned when nobody in this
    process holds it, and LockUnavailable.
    """
    watchdog = runtime().watchdog
    if not isinstance(lock, (str, Lock, CacheLock)):
        raise TypeError(f"lose() takes a lock or its name, not {shown(lock)}. To lose a set, give one of its names.")
    name, partition = (lock, get_partition(using, lock)) if isinstance(lock, str) else (lock.name, lock._partition())
    own = [] if isinstance(lock, (str, CacheLock)) else [one.lease for one in lock._acquisitions[::-1]]
    for lease in filter(None, own or watchdog.leases()):
        if lease.watched and lease.partition is partition and lease.name == name:
            run(calls.force(partition, lease.name, lease.fence, id=lease.id))
            watchdog.lose(lease, FORCED)
            return
    raise LockNotOwned(f"Cannot lose the lock {name!r}: nobody in this process holds it.", name)


@contextmanager
def overtaken(
    name: str, *, using: str | None = None, database: str = DEFAULT_DB_ALIAS, rows: FencedQuerySet[Any] | None = None
) -> Iterator[None]:
    """Let whoever acquires the lock ``name`` in this block be overtaken at once, without knowing.

    Redis has forgotten the holder, whom nobody tells, and somebody with a higher fence has claimed the lock on
    ``database`` and, with ``fenced()``, changed the ``rows``. So a claim, or an update of these rows, must raise
    LockLost. Raises AssertionError when nobody has acquired the lock.
    """
    name = check_name(name)
    refuse_semaphore(name)
    watchdog, expected = runtime().watchdog, name
    overtakes: list[Exception | None] = []

    def overtake(*, name: str, **facts: Any) -> None:
        partition = get_partition(using, expected)
        for lease in watchdog.leases():
            if lease.partition is partition and lease.name == name == expected:
                try:
                    watchdog.unwatch(lease)  # nothing tells its holder
                    run(calls.force(partition, name, lease.fence, id=lease.id))
                    _write_as_successor(name, lease.fence + 1, database, rows)
                    overtakes.append(None)
                except Exception as error:  # the signal would swallow it
                    overtakes.append(error)

    lock_acquired.connect(overtake, weak=False)
    try:
        yield
    finally:
        lock_acquired.disconnect(overtake)
        if error := next(filter(None, overtakes), None):
            raise error
    if not overtakes:
        raise AssertionError(f"Nobody acquired the lock {name!r} in this block, so nobody was overtaken.")


def _write_as_successor(name: str, fence: int, database: str, rows: FencedQuerySet[Any] | None) -> None:
    with transaction.atomic(using=database):
        write_fence(connections[database], name, fence, "somebody", None)
        if rows is not None:
            # that of somebody else
            lock: Any = SimpleNamespace(name=name, fence=fence, check=lambda: None, _note_fence=lambda fence: None)
            rows.using(database).fenced(lock).update()


@contextmanager
def redis_away(using: str | None = None) -> Iterator[None]:
    """Let the Redis of the locks be out of reach of this process: whoever asks gets LockUnavailable, at once.

    (``RETRY_FOR`` is 0.) Leases that are held are not renewed, and end by the local clock. The cache goes on. Where
    ``CACHES`` changes inside the block, or :func:`own_locks` begins, Redis can be reached again.
    """
    store = get_store(using)
    with ExitStack() as stack:
        stack.enter_context(pinned(RETRY_FOR=0.0))
        stack.enter_context(patch.object(store.threads, "exchange", _refuse))
        stack.enter_context(patch.object(store, "aexchange", _arefuse))
        for node in list(store.nodes):
            # not by patch.object(), which would leave other threads no config for a moment at the end
            stack.callback(setattr, node, "config", node.config)
            node.config = replace(node.config, kind=_Nowhere)
        for partition in list(store.partitions.values()):
            runtime().listener(partition).reconnect()
        yield


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConnectionError("out of reach inside django_redislock.testing.redis_away()")


async def _arefuse(*args: Any, **kwargs: Any) -> NoReturn:
    _refuse()


class _Nowhere(Connection):
    def __init__(self, **keywords: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # that of redis-py

    connect = _refuse


# -- assertions --------------------------------------------------------------------------------------------------------


def assert_locked(name: str, *, using: str | None = None) -> None:
    """Assert that somebody holds the lock ``name``, here or elsewhere. To be suspended is not to be held."""
    info = _look(name, using)
    if info is None or not info.held:
        locks = run(read_matching(get_store(using).everywhere(), lambda name: True))
        held = ", ".join(repr(lock.name) for lock in locks if lock.held)
        suspended = "" if info is None else ", which is suspended"
        raise AssertionError(f"Nobody holds the lock {name!r}{suspended}. The locks that are held: {held or 'none'}.")


def assert_not_locked(name: str, *, using: str | None = None) -> None:
    """Assert that nobody holds the lock ``name``."""
    info = _look(name, using)
    if info is not None:
        state = f"held by {info.owner}" if info.held else "suspended"
        raise AssertionError(f"The lock {name!r} is {state} for {info.lease_left:.3f} s more.")


def _look(name: str, using: str | None) -> LockInfo | None:
    name = check_name(name)
    return run(inspect(get_partition(using, name), name, waiters=0))
