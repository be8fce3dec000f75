"""One acquisition of a lock, as its holder knows it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from .connection import Backend
from .exceptions import LockLost, LockNotOwned, LockUnavailable
from .names import Keys
from .owner import Owner, Task

# why a lease was lost
GONE = "it is gone from Redis (expired, evicted, flushed or released by force)"
TAKEN = "somebody else holds it now"
FORCED = "it was released by force"
ENDED = "its lease ended before it could be renewed"

OnLost = Callable[[LockLost], object]


class Canceller:
    """``on_lost="cancel"``: ends the task that holds a lost lock, the way ``asyncio.timeout`` ends one."""

    def __init__(self, task: Task) -> None:
        # weakly: what the watchdog keeps must not keep a task alive that everybody else has forgotten
        self._task = weakref.ref(task)
        self._loop = task.get_loop()
        # before Python 3.11 a task does not count who wants its end
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0
        self._sent = self._over = False

    def strike(self) -> None:
        """Called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop has ended, and the task with it

    def _cancel(self) -> None:
        task = self._task()
        if not self._over and task is not None:
            self._sent = True
            task.cancel()

    def end(self) -> bool:
        """The lock is released: the task is left alone from now on, and a cancellation that was sent is taken back.

        Answers whether one was, and nobody else wants the end of the task.
        """
        if self._over:
            return False
        self._over = True
        task: Any = self._task()
        others = self._sent and hasattr(task, "uncancel") and task.uncancel() > self._before
        return self._sent and not others

    def caused(self, error: BaseException | None) -> bool:
        """The block has ended with ``error``: is that our cancellation, and nobody else's besides?"""
        # a block within another one that holds the same lease ends nothing, as long as that is not lost
        return self._sent and self.end() and isinstance(error, asyncio.CancelledError)


class Lease:
    """What one acquisition holds: token, fence, and until when by the local monotonic clock.

    ``ends`` counts from the moment the granting request was sent, so it is never later than the end in Redis (short
    of a jump of the server's clock).
    """

    __slots__ = (
        "adopted",
        "backend",
        "canceller",
        "closed",
        "depth",
        "due",
        "ends",
        "fence",
        "handed",
        "keys",
        "listens",
        "lost_reason",
        "max_hold",
        "name",
        "on_lost",
        "owner",
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
        task: Task | None,
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
        self.listens = True  # for the news that it was released by force: not where everybody polls
        self.max_hold = max_hold
        self.on_lost = on_lost
        self.canceller: Canceller | None = None
        self.unknown = unknown  # an acquire with this token may still arrive
        self.owner = Owner(task)
        self.depth = 1  # times acquired, when reentrant
        self.lost_reason = ""
        self.closed = False  # released, detached or adopted
        self.adopted = False  # the token went on elsewhere, or was released there
        self.tried_release = False
        self.watched = False
        self.due = 0.0  # when the watchdog looks next
        self.urgent = False  # ask Redis now, whatever the clock says
        self.seen = False  # by the watchdog: it is no short section

    @property
    def ours(self) -> bool:
        """Not released or detached, and not the lease of the process that this one was forked from."""
        return not self.closed and self.owner.here

    @property
    def lost(self) -> bool:
        return bool(self.lost_reason) or monotonic() >= self.ends

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl * 1000)

    def remaining(self) -> float:
        return 0.0 if self.lost_reason else max(0.0, self.ends - monotonic())

    def unwatch(self) -> None:
        """What the watchdog has still to say of it does not count any more."""
        self.watched = False
        if self.canceller is not None:
            self.canceller.end()

    def close(self) -> None:
        """It has ended, or goes on elsewhere: it is for nobody here to use any more."""
        self.unwatch()
        self.closed = True

    def mine(self, task: Task | None) -> bool:
        """Whether it is for the running ``task`` to use (None: sync code), whose context shows this lease."""
        return not self.closed and self.owner.is_me(task)

    def follow(self, response: object | None) -> None:
        """The view has returned, and only hooks will release: renewed while ``response`` lives, or no more (None)."""
        if response is None:
            self.renewing = False
        else:
            self.owner.follow(response)

    def adopted_error(self) -> LockNotOwned:
        return LockNotOwned(
            f"Cannot release the lock {self.name!r}: another process or thread has taken it with the same token.",
            self.name,
        )

    def unreleased_error(self, error: LockUnavailable) -> LockUnavailable:
        """What a release says that Redis did not hear."""
        left = self.remaining()
        return LockUnavailable(
            f"{str(error).rstrip('.')}. The lock is not released: unless tried again, it stands for {left:.1f} s.",
            self.name,
            stands_for=left,
        )

    def lost_error(self) -> LockLost:
        reason = self.lost_reason or ENDED
        return LockLost(
            f"The lock {self.name!r} was lost while it was held here: {reason}.",
            self.name,
            reason=reason,
            fence=self.fence,
        )
