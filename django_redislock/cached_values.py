"""``locked_get_or_set``: a cached value that one process computes, while all others wait for it and read it.

Of the threads and coroutines of one process that miss the same value, one asks for the lock, for all of them. So the
Redis server used for locks sees as many requests as there are processes, and no chain of releases from one waiter to
the next.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from logging import WARNING
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT

from .base.display import refuse_arguments, takes_by_name
from .base.log import log_event
from .base.names import fit_name, quote
from .base.processes import PerProcess
from .base.steps import Call, CallOut, DrivingLoop, Steps, arun, run_blocking
from .base.times import Deadline, Seconds, monotonic
from .conf import conf
from .engine import Acquisition, Frame, holds, release_quietly
from .engine.held import Runner, running_task, runs, served_loop
from .engine.waiters import Park, Waiter, lone_waiter
from .exceptions import LockError, LockNotAcquired, LockUnavailable
from .options import Options, check_timeout
from .store.stores import get_partition

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing


class Computation:
    """One caller that asks for the lock and computes, while the others of this process wait for it to end.

    It carries no value: each reads its own from the cache, since no two should share a mutable object.
    """

    def __init__(self, leader: Runner, frame: Frame) -> None:
        self.leader = weakref.ref(leader)
        self.loop = loop_here()  # for which it is computed
        self.section: Acquisition | None = None  # once it asks for the lock
        self.ended: bool = False
        self.trouble: LockUnavailable | None = None  # by which it ended
        self.waiters: dict[Waiter, None] = {}
        self._frame = weakref.ref(frame)  # whoever is interrupted does not come to the end

    @property
    def goes_on(self) -> bool:
        """Whether it may still come to its end, so that nobody else should compute."""
        lease = None if self.section is None else self.section.lease
        over = lease is not None and (lease.lost or lease.closed)
        return self._frame() is not None and (leader := self.leader()) is not None and runs(leader) and not over

    def end(self, trouble: LockUnavailable | None) -> None:
        self.trouble, self.ended = trouble, True
        for waiter in list(self.waiters):
            waiter.wake()


def loop_here() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, or for which it runs sync code."""
    return asyncio._get_running_loop() or served_loop()


class _Computations:
    """Those that are under way in this process, by alias and name of their locks."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may run on this thread and compute as well
        self._under_way: dict[tuple[str | None, str], Computation] = {}

    def join(self, key: tuple[str | None, str], frame: Frame) -> tuple[Computation, bool]:
        """The computation of this value, and whether the caller has to do it."""
        leader = running_task() or threading.current_thread()
        with self._mutex:
            known = self._under_way.get(key)
            # a finalizer may want the value for which its own thread is about to ask
            if known is not None and known.goes_on and known.leader() is not leader:
                return known, False
            self._under_way[key] = made = Computation(leader, frame)
            return made, True

    def end(self, key: tuple[str | None, str], computation: Computation, trouble: LockUnavailable | None) -> None:
        with self._mutex:
            if self._under_way.get(key) is computation:
                del self._under_way[key]
        computation.end(trouble)


computations = PerProcess(_Computations)


T = TypeVar("T")

MISSING = object()
CACHED = ["timeout", "version", "blocking_timeout"]  # what is given by name
LOOK_EVERY = 1.0  # seconds between looks whether the one that computes is still there


class ValueOptions(TypedDict, total=False):
    """The options of locked_get_or_set(), for type checkers."""

    timeout: float | None
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
    timeout: float | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
    **unknown: NoReturn,
) -> Any:
    """``cache.get_or_set()`` whose ``default`` is called once, by one process, while all others wait for the value.

    ``default`` is a callable, or a value (which needs no lock). ``timeout``, in seconds, and ``version`` are those of
    Django's ``get_or_set()``, and so is the treatment of None: a value like any other. ``using`` is the alias in
    ``CACHES`` of the values, with any backend; the lock is on the alias in ``REDISLOCK["CACHE"]``, or on the same one
    where that has our cache backend.

    ``blocking_timeout``: how many seconds to wait at most while somebody else computes; then LockNotAcquired. 0: not at
    all; None: from the setting ``BLOCKING_TIMEOUT`` (by default without end). The computing itself may take as long as
    it needs: the lock is renewed meanwhile.

    A value that is there costs one ``get``. What ``default`` raises propagates to its caller, and the next one who
    waits tries. A value that the cache does not keep (``timeout=0``, DummyCache) is computed by each caller in turn.
    Sync code below ``sync_to_async`` waits for a coroutine of the same event loop for a second, then computes by
    itself: the coroutine may be waiting for that very thread. Two computations that ask for each other's values wait
    for each other: give a ``blocking_timeout``.

    Raises LockUnavailable when the value is missing and the Redis server used for locks cannot be reached: then
    everybody would compute it at once, which only the caller can tell to be harmless (``except LockUnavailable: return
    compute()``). Once computed, it is stored and returned, even if the lock was lost meanwhile or cannot be released.
    """
    if wrong or unknown:
        refuse_arguments("locked_get_or_set()", wrong, unknown, [*CACHED, "using"], "timeout")
    options = {"timeout": timeout, "version": version, "blocking_timeout": blocking_timeout}
    return get_or_set(caches[using], using, key, default, **options)


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
    timeout: float | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    blocking_timeout: Seconds | None = None,
    using: str = "default",
    **unknown: NoReturn,
) -> Any:
    """See locked_get_or_set(). ``default`` may be a coroutine function as well; a plain one is called in a thread."""
    if wrong or unknown:
        refuse_arguments("alocked_get_or_set()", wrong, unknown, [*CACHED, "using"], "timeout")
    options = {"timeout": timeout, "version": version, "blocking_timeout": blocking_timeout}
    return await aget_or_set(caches[using], using, key, default, **options)


def get_or_set(cache: Any, alias: str, key: str, default: Any, **options: Any) -> Any:
    """The same for the backend ``cache`` that belongs to ``alias``."""
    if iscoroutinefunction(default):
        raise TypeError(f"The default {default!r} is a coroutine function: await alocked_get_or_set() instead.")
    lookup = _Lookup(cache, alias, key, default, **options)
    return run_blocking(lookup.get(), "Await alocked_get_or_set() instead")


async def aget_or_set(cache: Any, alias: str, key: str, default: Any, **options: Any) -> Any:
    """See get_or_set()."""
    lookup = _Lookup(cache, alias, key, default, **options)
    return await arun(lookup.get())


class _Lookup:
    """One value that somebody wants."""

    def __init__(
        self,
        cache: Any,
        alias: str,
        key: str,
        default: Any,
        *,
        timeout: float | None,
        version: int | None,
        blocking_timeout: Seconds | None,
    ) -> None:
        self.cache = cache
        self.key = key
        self.default = default
        self.timeout = timeout
        self.version = version
        self.blocking_timeout = check_timeout(blocking_timeout)
        # our own backend knows its alias, and has its locks there too
        self.lock_alias: str | None = getattr(cache, "lock_alias", None)
        self.alias = self.lock_alias or alias

    def get(self) -> Steps[Any]:
        value = yield self._get(MISSING)
        if value is not MISSING:
            return value
        if not callable(self.default):
            return (yield from self._keep(self.default))
        name = fit_name(f"get_or_set:{quote(self.alias)}:{self.cache.make_key(self.key, version=self.version)}")
        patience = conf().BLOCKING_TIMEOUT if self.blocking_timeout is None else self.blocking_timeout
        begun, deadline = monotonic(), Deadline.after(patience)
        options = Options(auto_renew=True, using=self.lock_alias)
        frame = Frame()
        # a default that asks for its own value does not wait for itself: the lock raises the error
        computation: Computation | None = None
        while holds(get_partition(self.lock_alias, name), name) is None:
            computation, leads = computations.get().join((self.lock_alias, name), frame)
            if leads:
                break
            ended = yield from self._wait_for(computation, deadline)
            if not ended and deadline.passed:
                outcome = "timeout" if deadline.waits else "busy"
                raise LockNotAcquired(self._not_in_time, name, outcome=outcome, waited=monotonic() - begun)
            value = yield self._get(MISSING)
            if value is not MISSING:
                return value
            if not ended and computation.goes_on:
                return (yield from self._compute())
            if ended and computation.trouble is not None:
                raise LockUnavailable(str(computation.trouble), name) from computation.trouble
        section = Acquisition(name, options)
        section.undo_after(frame)
        if computation is not None:
            computation.section = section
        trouble: LockUnavailable | None = None
        try:
            try:
                refusal = yield from section.obtain(deadline)
            except LockError as error:
                if type(error) is not LockError:
                    raise
                raise LockError(self._asks_itself, name) from None
            if refusal is not None:
                text = self._asks_itself if computation is None else self._not_in_time
                raise refusal.in_words(text, waited=monotonic() - begun)
            value = yield self._get(MISSING)
            if value is MISSING:
                value = yield from self._compute()
            yield from release_quietly(section)  # the value is there
            return value
        except BaseException as error:
            if isinstance(error, LockUnavailable) and error.name == name:  # not of a lock that the default uses
                trouble = error
            yield from section.fail(error)
            raise
        finally:
            if computation is not None:
                computations.get().end((self.lock_alias, name), computation, trouble)

    def _wait_for(self, computation: Computation, deadline: Deadline) -> Steps[bool]:
        """Whether the computation has ended in time. Also False if it never will, or may be waiting for us."""
        waiter = lone_waiter((yield DrivingLoop()))
        computation.waiters[waiter] = None
        try:
            while True:
                needed = _may_be_needed_by(computation)
                # who ends it says so first, and wakes those who wait then
                if not computation.ended:
                    yield Park(waiter, min(deadline.left(), LOOK_EVERY))
                if computation.ended:
                    return True
                if deadline.passed or not computation.goes_on:
                    return False
                if needed:
                    log_event(WARNING, "computed-twice", key=self.key)
                    return False
        finally:
            computation.waiters.pop(waiter, None)

    def _get(self, otherwise: object) -> Call:
        return Call(self.cache.get, (self.key, otherwise), {"version": self.version}, twin=self.cache.aget)

    def _keep(self, value: Any) -> Steps[Any]:
        """Store it, unless somebody did without a lock (Django's own ``set()``, say); return what is stored."""
        options = {"timeout": self.timeout, "version": self.version}
        if (yield Call(self.cache.add, (self.key, value), options, twin=self.cache.aadd)):
            return value
        return (yield self._get(value))

    def _compute(self) -> Steps[Any]:
        value = yield Call(self.default) if iscoroutinefunction(self.default) else CallOut(self.default)
        return (yield from self._keep(value))

    @property
    def _not_in_time(self) -> str:
        return f"Could not get the value of the cache key {self.key!r} in time: it is being computed elsewhere."

    @property
    def _asks_itself(self) -> str:
        return f"Could not compute the value of the cache key {self.key!r}: what computes it asks for that very value."


def _may_be_needed_by(computation: Computation) -> bool:
    """Whether this thread runs sync code for the event loop of that computation, which may need the thread itself."""
    loop = computation.loop
    if loop is None or asyncio._get_running_loop() is not None:
        return False
    # all that shows asyncio.to_thread()
    threads = getattr(getattr(loop, "_default_executor", None), "_threads", ())
    return served_loop() is loop or threading.current_thread() in threads
