"""One acquisition of a lock, as its holder knows it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from time import monotonic

from .connection import Backend
from .exceptions import LockLost
from .names import Keys

# why a lease was lost
GONE = "it is gone from Redis (expired, evicted, flushed or released by force)"
TAKEN = "somebody else holds it now"
FORCED = "it was released by force"
ENDED = "its lease ended before it could be renewed"

OnLost = Callable[[LockLost], object]


class Bond:
    """Kept by what a thread or task knows that it holds. When that is forgotten, nobody can release the lease."""

    __slots__ = ("__weakref__",)


def _unbound() -> None:
    return None


class Lease:
    """What one acquisition holds: token, fence, and until when by the local monotonic clock.

    ``ends`` counts from the moment the granting request was sent, so it is never later than the end in Redis (short
    of a jump of the server's clock).
    """

    __slots__ = (
        "_bond",
        "backend",
        "closed",
        "depth",
        "due",
        "ends",
        "fence",
        "handed",
        "keys",
        "lost_reason",
        "max_hold",
        "name",
        "on_lost",
        "owner",
        "pid",
        "renewing",
        "seen",
        "since",
        "token",
        "tried_release",
        "ttl",
        "unknown",
        "urgent",
        "watched",
    )

    def __init__(
        self,
        backend: Backend,
        keys: Keys,
        name: str,
        token: str,
        *,
        fence: int,
        ttl: float,
        ends: float,
        handed: bool,
        renewing: bool,
        max_hold: float | None,
        on_lost: OnLost | None,
        unknown: bool,
    ) -> None:
        self.backend = backend
        self.keys = keys
        self.name = name
        self.token = token
        self.fence = fence
        self.ttl = ttl  # seconds
        self.ends = ends
        self.since = monotonic()
        self.handed = handed  # by a release script, with a short lease until it is confirmed
        self.renewing = renewing
        self.max_hold = max_hold
        self.on_lost = on_lost
        self.unknown = unknown  # an acquire with this token may still arrive
        self.owner = weakref.ref(threading.current_thread())
        self._bond: Callable[[], Bond | None] = _unbound
        self.pid = os.getpid()
        self.depth = 1  # times acquired, when reentrant
        self.lost_reason = ""
        self.closed = False  # released or detached
        self.tried_release = False
        self.watched = False
        self.due = 0.0  # when the watchdog looks next
        self.urgent = False  # ask Redis now, whatever the clock says
        self.seen = False  # by the watchdog: it is no short section

    @property
    def ours(self) -> bool:
        """Not released or detached, and not the lease of the process that this one was forked from."""
        return not self.closed and self.pid == os.getpid()

    @property
    def lost(self) -> bool:
        return bool(self.lost_reason) or monotonic() >= self.ends

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl * 1000)

    def remaining(self) -> float:
        return 0.0 if self.lost_reason else max(0.0, self.ends - monotonic())

    def bond(self) -> Bond:
        """What those who hold the lease must keep; new when nobody does."""
        bond = self._bond()
        if bond is None:
            bond = Bond()
            self._bond = weakref.ref(bond)
        return bond

    def owner_alive(self) -> bool:
        """Whether the thread lives that acquired it, and whoever could still release it."""
        owner = self.owner()
        return owner is not None and owner.is_alive() and self._bond() is not None

    def lost_error(self) -> LockLost:
        reason = self.lost_reason or ENDED
        return LockLost(
            f"The lock {self.name!r} was lost while it was held here: {reason}.",
            self.name,
            reason=reason,
            fence=self.fence,
        )
