"""``locked_get_or_set``: a cached value that one process computes, while all others wait for it and read it.

Of the threads and coroutines of one process that miss the same value, one asks for the lock, for all of them. So the
Redis server used for locks sees as many requests as there are processes, and no chain of releases from one waiter to
the next.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import thread as futures_thread
from datetime import timedelta
from logging import WARNING
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, overload

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT

from .base.display import refuse_arguments, shown, takes_by_name
from .base.log import log_event
from .base.names import fit_name, quote
from .base.processes import PerProcess
from .base.steps import DRIVING_LOOP, Call, CallOut, Steps, arun, is_async, run_blocking, served_loop
from .base.times import Deadline, Seconds, monotonic
from .conf import conf
from .engine.acquisition import Acquisition, Frame
from .engine.announcements import tell_refused
from .engine.current_holder import CurrentHolder
from .engine.held import caller, holds
from .engine.waiters import Park, Waiter, make_waiter
from .exceptions import LockError, LockNotAcquired, LockUnavailable
from .options import ANY_NUMBER, Options, check_timeout, terms_of
from .store.aliases import check_alias
from .store.lock_store import Partition
from .store.stores import get_partition

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing


class Computation:
    """One caller that asks for the lock and computes, while the others of this process wait for it to end.

    It carries no value: each reads its own from the cache, since no two should share a mutable object.
    """

    def __init__(self, acquisition: Acquisition, frame: Frame) -> None:
        self.acquisition = acquisition
        self._loop = asyncio._get_running_loop()  # of a coroutine
        self._frame = weakref.ref(frame)  # whoever is interrupted does not come to the end
        self.ended: bool = False
        self.trouble: LockUnavailable | None = None  # by which it ended
        self.waiters: set[Waiter] = set()

    @property
    def goes_on(self) -> bool:
        """Whether it may still come to its end, so that nobody else should compute."""
        lease = self.acquisition.lease
        return self._frame() is not None and not self.acquisition.orphaned and not (lease is not None and lease.lost)

    def _may_need_this_thread(self) -> bool:
        """Return whether this thread runs sync code for the event loop of the coroutine that computes."""
        if self._loop is None or asyncio._get_running_loop() is not None:
            return False
        try:
            pool: Any = self._loop._default_executor  # type: ignore[attr-defined]  # all that shows asyncio.to_thread()
            threads = getattr(pool, "_threads", ())
        except AttributeError:  # pragma: no cover (uvloop does not show its pool: it may be any)
            threads = futures_thread._threads_queues
        return served_loop() is self._loop or threading.current_thread() in threads

    def wait(self, deadline: Deadline, begun: float, holder: CurrentHolder) -> Steps[bool]:
        """Return whether it has ended in time. Also False if it never will, or may be waiting for this thread.

        A long wait since ``begun`` is logged by ``holder``.
        """
        waiter = make_waiter((yield DRIVING_LOOP))
        self.waiters.add(waiter)
        try:
            # who ends it says so first, and wakes those who wait then
            while not self.ended and self.goes_on and not deadline.passed:
                now, lease = monotonic(), self.acquisition.lease
                if now >= holder.tell_at:
                    held: dict[str, Any] = {} if lease is None else {"owner": lease.request.owner, "fence": lease.fence}
                    holder.tell(self.acquisition.name, now - begun, **held)
                yield Park(waiter, min(deadline.at, holder.tell_at, now + LOOK_EVERY))
                if monotonic() >= now + LOOK_EVERY and self._may_need_this_thread():
                    break
            return self.ended
        finally:
            self.waiters.discard(waiter)


class _Computations:
    """Those that are under way in this process, by partition and name of their locks."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may run on this thread and compute as well
        self._under_way: dict[tuple[Partition, str], Computation] = {}

    def join(self, name: str, options: Options, frame: Frame) -> tuple[Computation, bool]:
        """The computation of this value, and whether the caller, whose ``frame`` this is, has to do it."""
        with self._mutex:
            known = self._under_way.get((get_partition(options.using, name), name))
            if known is not None and known.goes_on:
                return known, False
            made = Computation(Acquisition(name, options), frame)
            made.acquisition.abandon_after(frame)
            self._under_way[made.acquisition.partition, name] = made
            return made, True

    def end(self, computation: Computation, trouble: LockUnavailable | None) -> None:
        key = computation.acquisition.partition, computation.acquisition.name
        with self._mutex:
            if self._under_way.get(key) is computation:
                del self._under_way[key]
        computation.trouble, computation.ended = trouble, True
        for waiter in list(computation.waiters):
            waiter.wake()


computations = PerProcess(_Computations)


T = TypeVar("T")

MISSING = object()
CACHED = ["timeout", "version", "blocking_timeout"]  # options of the methods of our backends
OPTIONS = [*CACHED, "using"]
LOOK_EVERY = 1.0  # seconds between looks whether the one that computes is still there


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
@takes_by_name
def locked_get_or_set(
    key: str,
    default: Any,
    *wrong: NoReturn,
    timeout: Seconds | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
    **unknown: NoReturn,
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
    Sync code below ``sync_to_async`` waits for a coroutine of the same event loop for a second, then computes by
    itself: the coroutine may be waiting for that very thread. Two computations that ask for each other's values wait
    for each other; so do a computation and a task or thread that it has begun, waits for, and that asks for the same
    value: give a ``blocking_timeout``. A computation that asks for its own value by itself gets LockError.

    Raises LockUnavailable when the value is missing and the Redis server used for locks cannot be reached: then
    everybody would compute it at once, which only the caller can tell to be harmless (``except LockUnavailable: return
    compute()``). Once computed, it is stored and returned, even if the lock was lost meanwhile or cannot be released.
    """
    if wrong or unknown:
        refuse_arguments("locked_get_or_set()", wrong, unknown, OPTIONS, "timeout")
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
@takes_by_name
async def alocked_get_or_set(
    key: str,
    default: Any,
    *wrong: NoReturn,
    timeout: Seconds | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
    **unknown: NoReturn,
) -> Any:
    """See locked_get_or_set(). ``default`` may be a coroutine function as well; a plain one is called in a thread."""
    if wrong or unknown:
        refuse_arguments("alocked_get_or_set()", wrong, unknown, OPTIONS, "timeout")
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
    if holds(get_partition(lock_alias, name), name, caller()) is not None:
        text = f"Could not compute the value of the cache key {key!r}: what computes it asks for that very value."
        raise LockError(text, name)
    not_in_time = f"Could not get the value of the cache key {key!r} in time: it is being computed elsewhere."
    begun, deadline = monotonic(), Deadline.after(conf().BLOCKING_TIMEOUT if patience is None else patience)
    frame, options = Frame(), Options(auto_renew=True, max_waiters=ANY_NUMBER, using=lock_alias)
    holder = CurrentHolder(begun + terms_of(options, name).slow_wait)
    while True:
        computation, leads = computations.get().join(name, options, frame)
        if leads:
            break
        ended = yield from computation.wait(deadline, begun, holder)
        if not ended and deadline.passed:
            outcome = "timeout" if deadline.waits else "busy"
            refused = LockNotAcquired(not_in_time, name, outcome=outcome, waited=monotonic() - begun)
            yield from tell_refused(name, name, refused)
            raise refused
        value = yield get()
        if value is not MISSING:
            return value
        if not ended and computation.goes_on:
            log_event(WARNING, "computed-twice", key=key)
            return (yield from keep((yield CallOut(default))))
        if computation.trouble is not None:
            raise LockUnavailable(str(computation.trouble), name) from computation.trouble
    acquisition = computation.acquisition
    trouble: LockUnavailable | None = None
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
            trouble = error
        yield from acquisition.fail(error)
        raise
    finally:
        computations.get().end(computation, trouble)
