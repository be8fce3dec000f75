"""``Semaphore``: a lock that several may hold at once, at most ``limit`` of them, first come, first served."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from .base.display import takes_by_name
from .base.log import is_ours
from .base.name_templates import warn_of_fields
from .base.names import check_name, known_as, semaphore_name
from .base.steps import Steps
from .base.times import Seconds
from .engine import Acquisition
from .inspection.info import LockStatus
from .lock import Lock
from .options import Options, SemaphoreOptions, read_options
from .store.calls import read_permits

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing


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

    What a lock has because only one can hold it, a semaphore has not: ``reentrant``, ``token`` and ``adopt``,
    ``fenced``, ``claim()``, ``detach()`` and ``suspend()``. Guaranteed and not guaranteed is what :class:`Lock` says.
    """

    __slots__ = ("limit",)

    @takes_by_name
    def __init__(self, name: str, *wrong: NoReturn, limit: int, **options: Unpack[SemaphoreOptions]) -> None:
        self.name: str = semaphore_name(check_name(name, "semaphore"))
        if "{" in name and not is_ours(sys._getframe(1)):
            warn_of_fields(name)
        read_options(options, "Semaphore()", SemaphoreOptions, beside=["limit"], wrong=wrong, number="limit")
        self._options = Options(**options, limit=limit)  # type: ignore[arg-type]  # as they are given
        self.limit: int = limit
        self._token = None
        self._sections = []
        self._latest = None

    def locked(self) -> bool:
        """Return whether ``limit`` permits are held, here or elsewhere, so that another caller would wait."""
        return super().locked()

    def status(self) -> LockStatus:
        """The :class:`LockStatus`: LOCKED if a permit is held *here*, through this object; FREE if one is to be had."""
        return super().status()

    def detach(self, ttl: Seconds | None = None) -> NoReturn:
        """A permit belongs to whoever has acquired it: raises TypeError."""
        self._refuse("detach")

    def adetach(self, ttl: Seconds | None = None) -> NoReturn:
        """See detach()."""
        self._refuse("detach")

    def claim(self, using: str = "") -> NoReturn:
        """A fence in the database lets one holder after the other write, not several at once: raises TypeError."""
        self._refuse("claim")

    def aclaim(self, using: str = "") -> NoReturn:
        """See claim()."""
        self._refuse("claim")

    def suspend(self, seconds: Seconds, note: str = "") -> NoReturn:
        """To let nobody in, hold all permits: raises TypeError."""
        self._refuse("suspend")

    def asuspend(self, seconds: Seconds, note: str = "") -> NoReturn:
        """See suspend()."""
        self._refuse("suspend")

    @property
    def token(self) -> None:
        """A permit has none by which others could adopt or release it."""
        return None

    def _refuse(self, verb: str) -> NoReturn:
        raise TypeError(f"Cannot {verb} the semaphore {known_as(self.name)[1]!r}: that takes a Lock.")

    def _locked(self) -> Steps[bool]:
        permits = yield from read_permits(self._partition(), self.name)
        return len(permits) >= self.limit

    def _owned(self, own: Acquisition | None) -> Steps[bool]:
        section = own or self._own()
        if section is None:
            return False
        permits = yield from read_permits(self._partition(), self.name)
        return any(holder.is_of(section.held.id) for holder in permits)

    def _status(self, own: Acquisition | None) -> Steps[LockStatus]:
        section = own or self._own()
        permits = yield from read_permits(self._partition(), self.name)
        if section is not None and any(holder.is_of(section.held.id) for holder in permits):
            return LockStatus.LOCKED
        return LockStatus.UNAVAILABLE if len(permits) >= self.limit else LockStatus.FREE
