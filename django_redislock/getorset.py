"""``locked_get_or_set``: a cached value that one process computes, while all others wait for it and read it.

Of the threads and coroutines of one process that miss the same value, one asks for the lock, for all of them. So the
Redis of the locks sees as many requests as there are processes, and no chain of releases from one waiter to the next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent import futures
from logging import ERROR
from time import monotonic
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT

from .conf import Seconds, conf, seconds
from .exceptions import LockLost, LockNotAcquired, LockUnavailable
from .lock import Lock, Loop
from .log import log_event
from .names import fit_name, quote
from .steps import Ask, Call, Steps, arun, run_blocking

MISSING = object()


def locked_get_or_set(
    key: str,
    default: Any,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    lock_timeout: Seconds | None = None,
    using: str = "default",
) -> Any:
    """``cache.get_or_set()`` whose ``default`` is called once, by one process, while all others wait for the value.

    ``default`` is a callable, or a value (which needs no lock). ``timeout``, in seconds, and ``version`` are those of
    Django's ``get_or_set()``, and so is the treatment of None: a value like any other. ``using`` is the alias in
    ``CACHES`` of the values, with any backend; the lock is on the alias in ``REDISLOCK["CACHE"]``, or on the same one
    where that has our cache backend.

    ``lock_timeout``: how many seconds to wait at most while somebody else computes; then LockNotAcquired. 0: not at
    all; None: by the setting ``BLOCKING_TIMEOUT`` (by default without end). The computing itself may take as long as it
    needs: the lock is renewed meanwhile.

    A value that is there costs one ``get``. What ``default`` raises goes up to its caller, and the next one who waits
    tries. A value that the cache does not keep (``timeout=0``, DummyCache) is computed by one after the other.

    Raises LockUnavailable when the value is missing and the Redis of the locks cannot be reached: then everybody would
    compute it at once, which only the caller can tell to be harmless (``except LockUnavailable: return compute()``).
    Once computed, it is stored and returned, even if the lock was lost meanwhile or cannot be released.
    """
    options = {"timeout": timeout, "version": version, "lock_timeout": lock_timeout}
    return run_with(caches[using], using, key, default, **options)


async def alocked_get_or_set(
    key: str,
    default: Any,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    version: int | None = None,
    lock_timeout: Seconds | None = None,
    using: str = "default",
) -> Any:
    """See locked_get_or_set(). ``default`` may be a coroutine function as well; a plain one is called in a thread."""
    options = {"timeout": timeout, "version": version, "lock_timeout": lock_timeout}
    return await arun_with(caches[using], using, key, default, **options)


def run_with(cache: Any, alias: str, key: str, default: Any, **options: Any) -> Any:
    """The same for the backend ``cache`` that belongs to ``alias``."""
    if iscoroutinefunction(default):
        raise TypeError(f"The default {default!r} is a coroutine function: await alocked_get_or_set() instead.")
    return run_blocking(_get_or_set(cache, alias, key, default, loop=None, **options), "alocked_get_or_set")


async def arun_with(cache: Any, alias: str, key: str, default: Any, **options: Any) -> Any:
    """See run_with()."""
    return await arun(_get_or_set(cache, alias, key, default, loop=asyncio.get_running_loop(), **options))


class Cached:
    """A method of a cache, or its twin."""

    __slots__ = ("args", "cache", "kwargs", "verb")

    def __init__(self, cache: Any, verb: str, *args: Any, **kwargs: Any) -> None:
        self.cache = cache
        self.verb = verb
        self.args = args
        self.kwargs = kwargs

    def run(self) -> Any:
        return getattr(self.cache, self.verb)(*self.args, **self.kwargs)

    async def arun(self) -> Any:
        return await getattr(self.cache, f"a{self.verb}")(*self.args, **self.kwargs)


class Flight:
    """One that asks for the lock and computes, and the others of this process that wait for it to land.

    It carries no value: each reads its own from the cache, as no two should share an object that can be changed.
    """

    def __init__(self) -> None:
        self.future: futures.Future[LockUnavailable | None] = futures.Future()
        self.future.set_running_or_notify_cancel()  # cancelling one who waits must not cancel it for the others

    def land(self, trouble: LockUnavailable | None) -> None:
        self.future.set_result(trouble)


class Join:
    """Wait for a flight, at most ``timeout`` seconds (None: without end); sends back whether it has landed."""

    __slots__ = ("flight", "timeout")

    def __init__(self, flight: Flight, timeout: float | None) -> None:
        self.flight = flight
        self.timeout = timeout

    def run(self) -> bool:
        return bool(futures.wait([self.flight.future], self.timeout).done)

    async def arun(self) -> bool:
        waiter = asyncio.wrap_future(self.flight.future)
        try:
            return bool((await asyncio.wait([waiter], timeout=self.timeout))[0])
        finally:
            waiter.cancel()  # else Python 3.10 would tell it even after its loop has ended


_mutex = threading.Lock()
_flights: dict[tuple[str | None, str], Flight] = {}


def _get_or_set(
    cache: Any,
    alias: str,
    key: str,
    default: Any,
    *,
    timeout: float | None,
    version: int | None,
    lock_timeout: Seconds | None,
    loop: Loop | None,
) -> Steps[Any]:
    patience = None if lock_timeout is None else seconds(lock_timeout, "lock_timeout", positive=False)
    look = Cached(cache, "get", key, MISSING, version=version)
    value = yield look
    if value is not MISSING:
        return value

    def keep(value: Any) -> Steps[Any]:
        """Store it, unless somebody has, without asking for a lock: Django's own ``set()``, say."""
        if (yield Cached(cache, "add", key, value, timeout=timeout, version=version)):
            return value
        return (yield Cached(cache, "get", key, value, version=version))

    if not callable(default):
        return (yield from keep(default))

    # one of our backends knows its alias, and takes its locks along
    own = getattr(cache, "lock_alias", None)
    name = fit_name(f"get_or_set:{quote(own or alias)}:{cache.make_key(key, version=version)}")
    lock = Lock(name, auto_renew=True, using=own)
    if patience is None:
        patience = conf().BLOCKING_TIMEOUT
    until = None if patience is None else monotonic() + patience
    boarding = own, name
    while True:
        left = None if until is None else max(0.0, until - monotonic())
        flight = None
        if lock._own_lease_on_name() is None:  # else the default asks for its own value: the lock knows what to say
            flight, leads = _board(boarding)
            if not leads:
                if not (yield Join(flight, left)):
                    raise _not_in_time(lock, key)
                value = yield look
                if value is not MISSING:
                    return value
                if (trouble := flight.future.result()) is not None:
                    raise LockUnavailable(str(trouble), name) from trouble
                continue
        trouble = None
        try:
            if (yield from lock._take(loop, timeout=left)) is not None:
                raise _not_in_time(lock, key)
            return (yield from _compute(lock, look, default, keep, loop))
        except LockUnavailable as error:
            if error.name == name:  # and no lock of the default's
                trouble = error
            raise
        finally:
            if flight is not None:
                _land(boarding, flight, trouble)


def _compute(
    lock: Lock, look: Cached, default: Callable[[], Any], keep: Callable[[Any], Steps[Any]], loop: Loop | None
) -> Steps[Any]:
    """Under the lock, which is released; what goes wrong with that does not matter any more, as the value is there."""
    lease = lock._lease()
    try:
        value = yield look
        if value is MISSING:
            called = Call(default, (), {}) if loop is None or iscoroutinefunction(default) else Ask(default)
            value = yield from keep((yield called))
    except BaseException as error:
        yield from lock._failed(lease, error, loop)
        raise
    try:
        yield from lock._give_back()
    except LockLost:
        pass  # which was logged, and told, as such
    except LockUnavailable as error:
        log_event(ERROR, "not-released", name=lock.name, error=error, stands_for=error.stands_for)
        lock._release_later(lease)
    return value


def _not_in_time(lock: Lock, key: str) -> LockNotAcquired:
    return LockNotAcquired(
        f"The value of the cache key {key!r} is being computed by somebody else, and was not there in time.", lock.name
    )


def _board(boarding: tuple[str | None, str]) -> tuple[Flight, bool]:
    """The flight for this value, and whether the caller has to fly it."""
    with _mutex:
        flight = _flights.get(boarding)
        if flight is not None:
            return flight, False
        flight = _flights[boarding] = Flight()
        return flight, True


def _land(boarding: tuple[str | None, str], flight: Flight, trouble: LockUnavailable | None) -> None:
    with _mutex:
        _flights.pop(boarding, None)  # in a child that was forked meanwhile there are none
    flight.land(trouble)


def _after_fork_in_child() -> None:  # pragma: no cover (runs in forked children only)
    # whoever computes does so in the parent
    global _mutex
    _mutex = threading.Lock()
    _flights.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
