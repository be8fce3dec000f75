"""``Semaphore``: a lock that several may hold at once, at most ``limit`` of them, first come, first served."""

from __future__ import annotations

from typing import NoReturn

from .base import Unpack
from .base.name_templates import warn_of_fields
from .base.names import check_name, known_as, semaphore_name
from .base.steps import Steps
from .base.times import Seconds
from .engine.acquisition import Acquisition
from .inspection.info import LockStatus
from .lock import Lock
from .options import LimitedOptions, SemaphoreOptions, check_limit, read_options
from .store.calls import read_permits


class Semaphore(Lock):
    """At most ``limit`` holders at once, of all processes that share the Redis of a cache alias.

        with Semaphore("export:7", limit=3):
            export()

    It is used like :class:`Lock`, whose methods and options it has, and as strict: waiters get a permit in the order
    in which their requests reached Redis, and a release hands it over. Each holder has a lease of its own, which is
    renewed, lost or force-released by itself, and a ``fence``. Whoever holds a permit may acquire another one.

    ``name``: 1 to about 500 bytes. Among the names of locks, in lists and settings, it is ``"semaphore:" + name``; so
    a ``Lock("export:7")`` is something else. ``limit``: at least 1.

    The limit that was asked for last counts. With a higher one than before, more are let in at once; with a lower one,
    fewer as permits come back; whoever meets another limit than its own logs a warning. So there are never more holders
    than the highest limit that anybody has asked for.

    ``locked()`` tells whether all permits are held, ``status()`` is LOCKED if one is held *here*, through this object,
    and FREE if one is to be had. A semaphore does not have what depends on a single holder: ``reentrant``, ``token``
    and ``adopt``, ``fenced``, ``claim()``, ``detach()`` and ``suspend()``. The guarantees are those of :class:`Lock`.
    """

    __slots__ = ("limit",)

    def __init__(self, name: str, *, limit: int, **options: Unpack[SemaphoreOptions]) -> None:
        self.name: str = check_name(semaphore_name(check_name(name, "semaphore")), "semaphore")
        if "{" in name:
            warn_of_fields(name)
        every: LimitedOptions = {**options, "limit": check_limit(limit)}
        self._options = read_options(every, "Semaphore()", LimitedOptions)
        self.limit: int = limit
        self._token = None
        self._acquisitions = []
        self._latest = None

    def detach(self, ttl: Seconds | None = None) -> NoReturn:
        """Raises TypeError: a permit belongs to whoever has acquired it."""
        self._refuse("detach")

    adetach = detach

    def claim(self, using: str = "") -> NoReturn:
        """Raises TypeError: a fence in the database lets one holder after the other write, not several at once."""
        self._refuse("claim")

    aclaim = claim

    def suspend(self, seconds: Seconds, note: str = "") -> NoReturn:
        """Raises TypeError. To keep everybody out, acquire all permits."""
        self._refuse("suspend")

    asuspend = suspend

    @property
    def token(self) -> None:
        """A permit has none by which others could adopt or release it."""
        return None

    def _acquisition(self, token: str | None = None) -> Acquisition:
        if token is not None:
            self._refuse("adopt")
        return super()._acquisition()

    def _refuse(self, verb: str) -> NoReturn:
        raise TypeError(f"Cannot {verb} the semaphore {known_as(self.name)[1]!r}: that takes a Lock.")

    def _locked(self) -> Steps[bool]:
        permits = yield from read_permits(self._partition(), self.name)
        return permits.held >= self.limit

    def _owned(self, own: Acquisition | None) -> Steps[bool]:
        id, _ = self._known(own)
        return id is not None and (yield from read_permits(self._partition(own), self.name, id)).mine

    def _status(self, own: Acquisition | None) -> Steps[LockStatus]:
        id, _ = self._known(own)
        permits = yield from read_permits(self._partition(own), self.name, id or "")
        if permits.mine:
            return LockStatus.LOCKED
        return LockStatus.UNAVAILABLE if permits.held >= self.limit else LockStatus.FREE
