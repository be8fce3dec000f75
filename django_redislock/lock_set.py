"""``LockSet``: several locks at once, all or none, without deadlocks."""

from __future__ import annotations

from asyncio import CancelledError, _get_running_loop
from collections.abc import Coroutine, Mapping
from copy import copy
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from .base import Unpack
from .base.display import shown
from .base.name_templates import warn_of_fields
from .base.names import check_name, refuse_semaphore
from .base.steps import Steps, arun, refuse_event_loop, run, run_blocking
from .base.times import Seconds
from .engine.acquisition import Acquisition
from .engine.held import twin
from .engine.several import Several
from .engine.with_block import Enterable
from .exceptions import LockError
from .lock import Lock
from .open_transactions import warn_of_release
from .options import SetOptions, check_timeout, read_options


class LockSet(Enterable):
    """The locks on all of these ``names``, or none of them; two sets never wait for each other in a circle.

        with LockSet("account:3", "account:7", blocking_timeout=5):
            transfer()

    Names that are given twice count once. All sets acquire their locks in the same order, that of the names' bytes in
    UTF-8, and hold the first ones while they wait for the next: each wait is first come, first served. If one is not
    acquired in time, or an error is raised, those before it are given back. A deadlock takes code that acquires single
    locks one inside the other, in another order than by name.

    The options are those of :class:`Lock` without ``token`` and ``adopt``. ``blocking_timeout`` is for all locks
    together. ``on_lost`` is called once, for the first one that is lost: then all count as lost.

    It belongs to the thread or task that acquires it, as a lock does, and methods that talk to Redis have a twin for
    coroutines. The first of several acquisitions of the same set is the one to be released last (``reentrant``).

    Guaranteed and not guaranteed, of each lock, is what :class:`Lock` says. The locks are neither acquired nor released
    at one moment, though in one round trip if all are free; on a cluster, they may be on different nodes.
    """

    __slots__ = ("__weakref__", "_locks", "_options", "_templates")

    def __init__(self, *names: str, **options: Unpack[SetOptions]) -> None:
        for name in names:
            if not isinstance(name, str):
                hint = ", LockSet(*names) if they are in a list" if isinstance(name, (list, tuple)) else ""
                raise TypeError(f"LockSet() takes the names of locks{hint}, not {shown(name)}.")
            if "{" in name:
                warn_of_fields(name)
        self._make(dict.fromkeys(map(check_name, names), options.get("template", "")), options)

    @classmethod
    def of(cls, templates: Mapping[str, str], options: Any) -> LockSet:
        """The set of locks with these names, which were made of these templates."""
        made = cls.__new__(cls)
        made._make(templates, options)
        return made

    def _make(self, templates: Mapping[str, str], options: Any) -> None:
        if not templates:
            raise ValueError("LockSet() takes the name of at least one lock.")
        self._options = read_options(options, "LockSet()", SetOptions)
        self._templates = templates
        for name in templates:
            refuse_semaphore(name, in_set=True)
        self._locks = {name: Lock(name, **options) for name in sorted(templates)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.names)}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy has acquired nothing."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, (attributes, slots), *rest = reduced
        copies = {name: copy(lock) for name, lock in self._locks.items()}
        return function, arguments, (attributes, {**slots, "_locks": copies}), *rest

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they are acquired."""
        return tuple(self._locks)

    # -- acquiring --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        *,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
    ) -> bool:
        """Acquire all locks; return False when one of them could not be acquired in time: then none is held.

        Arguments and errors are those of :meth:`Lock.acquire`; also raises LockLost when a lock was lost while this
        waited for the next. After an error, what was acquired is given back in the background.
        """
        if _get_running_loop() is not None:
            refuse_event_loop("Await aacquire() instead")
        several = self._acquisition()
        try:
            return several.acquire(several.terms.deadline(blocking, check_timeout(blocking_timeout))) is None
        except BaseException:
            several.abandon()
            raise

    @twin
    def aacquire(
        self,
        *,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """See acquire(). Cancelled at any moment, it leaves neither locks nor places in queues."""
        return self._aobtain(self._acquisition(), blocking, blocking_timeout)

    # -- releasing --------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release all locks, the last one first.

        Raises LockNotOwned when this thread or task holds none of them; LockLost when one was lost meanwhile, and
        LockUnavailable when Redis could not be told: the other locks are released all the same, and what Redis could
        not be told is sent in the background.
        """
        if _get_running_loop() is not None:
            refuse_event_loop("Await arelease() instead")
        several = self._own()
        try:
            run(self._end(several, None, releases=True))
        except LockError:
            raise
        except BaseException:  # interrupted
            several.abandon()
            raise

    @twin
    def arelease(self) -> Coroutine[Any, Any, None]:
        """See release(). If cancelled, it completes in the background."""
        return self._arelease(self._own())

    async def _arelease(self, several: Several) -> None:
        try:
            await arun(self._end(several, None, releases=True))
        except (LockError, CancelledError):
            raise
        except BaseException:  # interrupted
            several.abandon()
            raise

    # -- while they are held ----------------------------------------------------------------------------------------

    def extend(self, additional: Seconds, *, replace_ttl: bool = False) -> bool:
        """See :meth:`Lock.extend`; one lock after the other."""
        return run_blocking(self._extend(self._each(), additional, replace_ttl), "Await aextend() instead")

    @twin
    def aextend(self, additional: Seconds, *, replace_ttl: bool = False) -> Coroutine[Any, Any, bool]:
        """See extend()."""
        return arun(self._extend(self._each(), additional, replace_ttl))

    def check(self) -> None:
        """Raise LockLost if one of the locks is lost, LockNotOwned if one is not held here. No round trip."""
        for lock in self._locks.values():
            lock.check()

    def claim(self, using: str = DEFAULT_DB_ALIAS) -> None:
        """Claim all locks, in their order; see :meth:`Lock.claim`."""
        for lock in self._locks.values():
            lock.claim(using)

    async def aclaim(self, using: str = DEFAULT_DB_ALIAS) -> None:
        """See claim(). For a transaction in the thread of Django's async ORM (``sync_to_async``)."""
        await sync_to_async(self.claim)(using)

    @property
    def lost(self) -> bool:
        """Whether one of the locks is lost; see :attr:`Lock.lost`."""
        return any(lock.lost for lock in self._locks.values())

    def remaining(self) -> float:
        """Seconds until the first lease ends, by the local monotonic clock; 0.0 when one is lost or not held here."""
        return min(lock.remaining() for lock in self._locks.values())

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock, by its name. Raises LockNotOwned like :attr:`Lock.fence`."""
        return {name: lock.fence for name, lock in self._locks.items()}

    def owned(self) -> bool:
        """Return whether this thread or task holds all locks through this object; asks Redis."""
        return run_blocking(self._owned(self._each()), "Await aowned() instead")

    @twin
    def aowned(self) -> Coroutine[Any, Any, bool]:
        """See owned()."""
        return arun(self._owned(self._each()))

    # -- for sync and async alike -----------------------------------------------------------------------------------

    def _acquisition(self) -> Several:
        return Several.of(self._templates, self._options, through=self._locks)

    def _each(self) -> list[tuple[Lock, Acquisition | None]]:
        return [(lock, lock._own()) for lock in self._locks.values()]

    def _own(self) -> Several:
        """What is held through this object here."""
        return Several(acquisition for _, acquisition in self._each() if acquisition is not None)

    def _end(self, several: Several, error: BaseException | None, *, releases: bool = False) -> Steps[None]:
        """A block has ended: with ``error``, or (None) normally.

        ``releases``: all are released, which raises also if Redis could not be told.
        """
        if all(lease.closed for lease in several.leases):
            several = self._own()  # released inside the block, and perhaps acquired again
        if not several.acquisitions:
            if error is None:
                raise next(iter(self._locks.values()))._not_owned("release")
            return
        yield from (several.end if releases else several.exit)(error)
        for lease in several.leases:
            if lease.closed and error is None:
                warn_of_release(lease)

    def _extend(self, each: list[tuple[Lock, Acquisition | None]], additional: Seconds, replaces: bool) -> Steps[bool]:
        for lock, acquisition in each:
            lock._held("extend", acquisition)
        for lock, acquisition in each:
            yield from lock._extend(acquisition, additional, replaces)
        return True

    def _owned(self, each: list[tuple[Lock, Acquisition | None]]) -> Steps[bool]:
        for lock, acquisition in each:
            if not (yield from lock._owned(acquisition)):
                return False
        return True
