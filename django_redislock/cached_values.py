"""``locked_get_or_set``: a cached value that one process computes, while all others wait for it and read it.

Of the threads and coroutines of one process that miss the same value, one asks for the lock, for all of them. So the
Redis server used for locks sees as many requests as there are processes, and no chain of releases from one waiter to
the next.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, overload

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT

from .base import Unpack
from .base.display import shown
from .base.names import fit_name, quote
from .base.processes import PerProcess
from .base.steps import DRIVING_LOOP, Call, CallOut, Steps, arun, is_async, run_blocking
from .base.times import Deadline, Seconds, monotonic
from .conf import conf
from .engine.acquisition import Acquisition, Frame
from .engine.held import caller, holds
from .engine.waiters import Park, Waiter, make_waiter
from .exceptions import LockError, LockUnavailable
from .options import ANY_NUMBER, Options, check_timeout
from .store.aliases import check_alias
from .store.stores import get_partition


class Computation:
    """One caller that asks for the lock and computes, while the others of this process wait for it to end.

    It carries no value: each reads its own from the cache, since no two should share a mutable object. When PATIENCE is
    over, the next caller asks for the lock as well, and the others wait for whichever ends first: the one that computes
    may be slow, or was interrupted, or its event loop was closed. One more asks each time the wait has doubled.
    """

    def __init__(self) -> None:
        self.begun: float = monotonic()
        self.until: float = self.begun + PATIENCE
        self.ended: bool = False
        self.trouble: LockUnavailable | None = None  # by which it ended
        self.waiters: set[Waiter] = set()  # in no Future: an interruption in there may leave it locked for good

    def wait(self, deadline: Deadline) -> Steps[None]:
        waiter = make_waiter((yield DRIVING_LOOP))
        self.waiters.add(waiter)
        try:
            if not self.ended:  # who ends it says so first, and wakes those who wait then
                yield Park(waiter, min(deadline.at, self.until))
        finally:
            self.waiters.discard(waiter)

    def wake(self) -> None:
        """Wake those who wait: it has ended."""
        for waiter in list(self.waiters):
            waiter.wake()


# those of this process, by the identity of a partition, and a name
computations: PerProcess[dict[tuple[str, str], Computation]] = PerProcess(dict)


T = TypeVar("T")

MISSING = object()
PATIENCE = 10.0  # seconds for which one caller of a process asks for the lock, and computes, for all others


class ValueOptions(TypedDict, total=False):
    """The options of locked_get_or_set(), for type checkers."""

    timeout: Seconds | None
    version: int | None
    blocking_timeout: Seconds | None
    using: str


@overload
def locked_get_or_set(key: str, default: Callable[[], T], **options: Unpack[ValueOptions]) -> T: ...
@overload
def locked_get_or_set(key: str, default: T, **options: Unpack[ValueOptions]) -> T: ...
def locked_get_or_set(
    key: str,
    default: Any,
    *,
    timeout: Seconds | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
) -> Any:
    """``cache.get_or_set()`` whose ``default`` is called once, by one process, while all others wait for the value.

    ``default`` is a callable, or a value (which needs no lock). ``timeout``, in seconds (int, float or timedelta), and
    ``version`` are those of Django's ``get_or_set()``, and so is the treatment of None: a value like any other.
    ``using`` is the alias in ``CACHES`` of the values, with any backend (but without django-redis's ``HerdClient``,
    whose ``add()`` does not replace what its ``get()`` calls expired); the lock is on the alias in
    ``REDISLOCK["CACHE"]``, or on the same one where that has our cache backend.

    ``blocking_timeout``: how many seconds to wait at most while somebody else computes; then LockNotAcquired. 0: not at
    all; None: from the setting ``BLOCKING_TIMEOUT`` (by default without end). The computing itself may take as long as
    it needs: the lock is renewed meanwhile.

    A value that is there costs one ``get``. What ``default`` raises propagates to its caller, and the next one who
    waits tries. A value that the cache does not keep (``timeout=0``, DummyCache) is computed by each caller in turn.
    Two computations that ask for each other's values wait for each other; so do a computation and a task or thread that
    it has begun, waits for, and that asks for the same value; and so may a coroutine that computes and sync code of the
    same event loop (below ``sync_to_async``), whose thread it may need: give a ``blocking_timeout``. A computation that
    asks for its own value by itself gets LockError.

    Raises LockUnavailable when the value is missing and the Redis server used for locks cannot be reached: then
    everybody would compute it at once, which only the caller can tell to be harmless (``except LockUnavailable: return
    compute()``). Once computed, it is stored and returned, even if the lock was lost meanwhile or cannot be released.
    """
    if is_async(default):
        raise TypeError(f"The default {default!r} is a coroutine function: await alocked_get_or_set() instead.")
    steps = _lookup(using, key, default, timeout, version, blocking_timeout)
    return run_blocking(steps, "Await alocked_get_or_set() instead")


@overload
async def alocked_get_or_set(key: str, default: Callable[[], Awaitable[T]], **options: Unpack[ValueOptions]) -> T: ...
@overload
async def alocked_get_or_set(key: str, default: Callable[[], T], **options: Unpack[ValueOptions]) -> T: ...
@overload
async def alocked_get_or_set(key: str, default: T, **options: Unpack[ValueOptions]) -> T: ...
async def alocked_get_or_set(
    key: str,
    default: Any,
    *,
    timeout: Seconds | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
) -> Any:
    """See locked_get_or_set(). ``default`` may be a coroutine function as well; a plain one is called in a thread."""
    return await arun(_lookup(using, key, default, timeout, version, blocking_timeout))


def _cache_timeout(value: Any) -> Any:
    """Return the timeout of a value as Django takes it. Unlike a TTL, it may be negative, or a century."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is None or value is DEFAULT_TIMEOUT:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"timeout must be seconds (int, float or timedelta) or None, not {shown(value)}.")
    if not abs(value) < math.inf:
        raise ValueError(f"timeout must be finite, or None for no end, not {shown(value)}.")
    return value


def _lookup(
    alias: str, key: str, default: Any, timeout: Seconds | None, version: int | None, blocking_timeout: Seconds | None
) -> Steps[Any]:
    """Read the value; where it is missing, compute it, or wait for whoever does."""
    cache: Any = caches[check_alias(alias)]
    timeout = _cache_timeout(timeout)

    def get(otherwise: object = MISSING) -> Call:
        return Call(cache.get, (key, otherwise), {"version": version}, twin=cache.aget)

    def keep(value: Any) -> Steps[Any]:
        """Store it, unless somebody did without a lock (Django's own ``set()``, say); return what all others get."""
        yield Call(cache.add, (key, value), {"timeout": timeout, "version": version}, twin=cache.aadd)
        return (yield get(value))

    patience = check_timeout(blocking_timeout)
    value = yield get()
    if value is not MISSING:
        return value
    if not callable(default):
        return (yield from keep(default))
    lock_alias: str | None = getattr(cache, "lock_alias", None)  # our own backend has its locks where its values are
    name = fit_name(f"get_or_set:{quote(lock_alias or alias)}:{cache.make_key(key, version=version)}")
    partition = get_partition(lock_alias, name)
    place = partition.identity, name
    if holds(partition, name, caller()) is not None:
        text = f"Could not compute the value of the cache key {key!r}: what computes it asks for that very value."
        raise LockError(text, name)
    not_in_time = f"Could not get the value of the cache key {key!r} in time: it is being computed elsewhere."
    begun, deadline = monotonic(), Deadline.after(conf().BLOCKING_TIMEOUT if patience is None else patience)
    mine = Computation()  # before the try, so that its end always has one
    try:
        while True:
            mine = Computation()  # anew: its time begins now
            known = computations.get().setdefault(place, mine)
            if known.ended:  # its caller is about to take it out, or was interrupted before it could
                known.wake()
                computations.get()[place] = known = mine
            if mine.begun >= known.until:
                known.until, mine = 2 * mine.begun - known.begun, known  # the next one asks as well
            if mine is known or deadline.passed:  # if it has passed, the lock is asked for once
                break
            yield from known.wait(deadline)
            value = yield get()
            if value is not MISSING:
                return value
            if known.trouble is not None:
                raise LockUnavailable(str(known.trouble), name) from known.trouble
        frame, options = Frame(), Options(auto_renew=True, max_waiters=ANY_NUMBER, using=lock_alias)
        acquisition = Acquisition(name, options)
        acquisition.abandon_after(frame)
        try:
            refusal = yield from acquisition.obtain(deadline)
            if refusal is not None:
                raise refusal.in_words(not_in_time, waited=monotonic() - begun)
            value = yield get()
            if value is MISSING:
                value = yield Call(default) if is_async(default) else CallOut(default)
                value = yield from keep(value)
            yield from acquisition.exit_quietly()  # the value is there
            return value
        except BaseException as error:
            if isinstance(error, LockUnavailable) and error.name == name:  # not of a lock that the default uses
                mine.trouble = error
            yield from acquisition.fail(error)
            raise
    finally:
        mine.ended = True  # before any call: a signal handler could raise in there
        if computations.get().get(place) is mine:
            computations.get().pop(place, None)
        mine.wake()
