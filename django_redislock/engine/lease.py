"""One acquisition of a lock, as its holder knows it: until when, and when to ask Redis next; and ``on_lost="cancel"``,
which ends the task that has lost it.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Mapping
from typing import Any

from ..base.times import monotonic
from ..exceptions import LockLost, LockNotOwned, LockUnavailable
from ..options import Terms
from ..store.calls import LockRequest, Renewed, lease_end, lease_left
from ..store.lock_store import Partition

Task = asyncio.Task[Any]

CONFIRM_AFTER = 0.1  # seconds that a lock is held before it counts as a long section


class Canceller:
    """Cancels a task the way ``asyncio.timeout`` does."""

    def __init__(self, task: Task) -> None:
        # weak: the watchdog must not keep a task alive that everybody else has forgotten
        self._task = weakref.ref(task)
        self._loop = task.get_loop()
        # before Python 3.11, tasks do not count their pending cancellations
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0
        self._sent = self._over = False

    def strike(self) -> None:
        """Cancel the task. May be called from any thread; a second call does nothing."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop has ended, and the task with it

    def _cancel(self) -> None:
        task = self._task()
        if not self._sent and not self._over and task is not None:
            self._sent = True
            task.cancel()

    def end(self) -> bool:
        """The lock was released: leave the task alone from now on, and take back a cancellation already sent.

        Returns whether one was sent, and it was the only one.
        """
        if self._over:
            return False
        self._over = True
        task: Any = self._task()
        others = self._sent and hasattr(task, "uncancel") and task.uncancel() > self._before
        return self._sent and not others

    def caused(self, error: BaseException | None) -> bool:
        """Whether ``error``, which has ended the block, is our cancellation, and nobody else cancelled the task."""
        # an inner block that shares the lease must not call end() while the lease is not lost
        return self._sent and self.end() and isinstance(error, asyncio.CancelledError)


# why a lease was lost
VANISHED = "it is gone from Redis (expired, evicted, flushed or force-released)"
TAKEN = "somebody else holds it now"
OLD_KEY = "the key of the old code (REDISLOCK['ALSO_LOCK']) is gone, or somebody else's"
FORCED = "it was force-released"
RELEASED_ELSEWHERE = "the bearer of its token has released it elsewhere"
ADOPTED_ELSEWHERE = "the bearer of its token has adopted it elsewhere"
ENDED = "its lease ended before it could be renewed"
OVER = "its lease ended, and it was not to be renewed"
LIMITED = "its lease ended, and it was not to be renewed beyond max_hold"
STOPPED = "its event loop was stopped, and its process is ending"


class Lease:
    """What one acquisition holds: token, fence, and until when by the local monotonic clock.

    ``ends`` counts from the moment at which the request was sent, so it is never later than the end in Redis, unless
    the server's clock jumps ahead; and never later than what was asked for, if it jumps back (see :meth:`moved`). For a
    leader, it is ``early_by`` seconds earlier: the time to come to an end before anybody else leads.
    """

    # with the dict, which few leases need: for the attributes below
    __slots__ = (
        "__dict__",
        "__weakref__",
        "closed",
        "due",
        "early_by",
        "ends",
        "fence",
        "fenced",
        "handed",
        "id",
        "known",
        "may_arrive",
        "name",
        "partition",
        "pid",
        "releases",
        "renewing",
        "request",
        "seen",
        "shares",
        "since",
        "template",
        "terms",
        "ttl",
        "watched",
    )
    matters = True  # whether a failure to renew it is worth a warning

    claimed: Mapping[str, object] = {}  # by database, the transaction that has claimed it last
    bound: bool = False  # it was claimed in each transaction that the latest begin() has opened; see there
    canceller: Canceller | None = None
    changing: bool = False  # Redis is being asked to detach it
    detaching: float = 0.0  # detach() was called, for so many seconds; if it was interrupted, nobody knows the token
    late: tuple[str, str] | None = None  # goes with its renewals, where an acquire or a set may still arrive
    lost_reason: str = ""
    sets: int = 0  # how often its end was set, by detach() too
    tried_release: bool = False
    unrenewed: str = OVER  # why it is lost if only its time is over, and it was not to be renewed
    urgent: bool = False  # ask Redis now, whatever the clock says

    def __init__(
        self,
        request: LockRequest,
        terms: Terms,
        fence: int,
        ends: float,
        template: str,
        handed: bool = False,
        may_arrive: bool = False,
    ) -> None:
        self.request: LockRequest = request
        self.partition: Partition = request.partition
        self.name: str = request.name
        self.id: str = request.id
        self.ttl: float = request.ttl
        self.terms: Terms = terms
        self.fence: int = fence
        self.early_by: float = terms.early_by
        self.ends: float = ends - terms.early_by
        self.handed: bool = handed  # granted by a release, with a short lease until it is confirmed
        self.may_arrive: bool = may_arrive  # an acquire of this attempt may still arrive
        if may_arrive:
            self.late = request.gone, "0"
        self.since: float = monotonic()
        self.known: float = self.since  # as of when Redis has said last that it is held
        self.pid: int = os.getpid()
        self.renewing: bool = terms.auto_renew
        self.template: str = template  # the name as it was written
        self.shares: list[Any] = []  # the acquisitions that use it: several, if it is reentrant
        self.fenced: bool | tuple[str, ...] = terms.fenced  # to be claimed on these databases; True: on all in use
        self.releases: int = 0  # that are under way
        self.closed: bool = False  # released or detached: nobody here may use it any more
        self.watched: bool = False
        self.due: float = 0.0  # when the watchdog looks next
        self.seen: bool = False  # the watchdog has looked at it: it is not held for a moment only

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A lease cannot be pickled or copied: a copy of an object that refers to it has None instead."""
        return type(None), ()

    @property
    def token(self) -> str:
        """The secret by which others may adopt or release it."""
        return self.request.token or self.id

    # -- what has become of it --------------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        """What the log and the signals say of it."""
        return {"name": self.name, "template": self.template, "fence": self.fence}

    @property
    def here(self) -> bool:
        """Whether it was made in this process, not in the one that it was forked from."""
        return self.pid == os.getpid()

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, or presumed lost by the local clock."""
        return bool(self.lost_reason) or (not self.closed and monotonic() >= self.ends)

    def remaining(self) -> float:
        """Seconds of lease left by the local clock."""
        return 0.0 if self.lost_reason else max(0.0, self.ends - monotonic())

    def left_with(self, additional: float) -> float:
        """Seconds from now until the end in Redis, as far as it is known here, and ``additional`` ones."""
        return max(0.0, lease_left(self._confirmed_end())) + additional

    def moved(self, how: str, left: float, answer: Renewed) -> None:
        """It is held, says Redis, which was asked to move its end; ``how``, ``left``: see renew_command()."""
        if how in ("set", "detach"):
            asked = lease_end(answer.sent, left)
        elif how == "keep":
            asked = max(self.ends + self.early_by, lease_end(answer.sent, left))
        else:
            asked = self._confirmed_end()
        # more than was asked for is no deadline: the server's clock has jumped back, and may be put right
        self.ends = min(answer.ends, asked) - self.early_by
        self.known = answer.sent
        self.handed = False

    def _confirmed_end(self) -> float:
        """The end in Redis, as far as it is known here, to which whatever moves it confirms a handoff."""
        ends = self.ends + self.early_by
        return max(ends, lease_end(self.since, self.ttl)) if self.handed else ends

    @property
    def detached(self) -> bool:
        """Whether it was left, on purpose, to whoever has its token."""
        return self.closed and self.detaching > 0.0

    def check_not_ending(self, verb: str) -> None:
        """Raise LockNotOwned for whoever tries ``verb`` after a detach() or release() that failed: it may arrive."""
        if self.detaching or self.tried_release:
            failed = "detach" if self.detaching else "release"
            raise LockNotOwned(
                f"Cannot {verb} the lock {self.name!r}: {failed}() has failed, and may have been carried out. Release "
                f"the lock{', or detach it' if self.detaching else ''} again.",
                self.name,
            )

    def stop_renewing(self, reason: str) -> None:
        self.renewing, self.unrenewed = False, reason

    def fence_as_well(self, fenced: bool | tuple[str, ...] | None) -> None:
        """It was entered again with this ``fenced``, which can add to the claims asked for, not take any away."""
        if fenced is True or self.fenced is True:
            self.fenced = True
        elif fenced:
            self.fenced = tuple(dict.fromkeys([*(self.fenced or ()), *fenced]))

    # -- when the watchdog looks at it, and what it asks ------------------------------------------------------------

    def next_check(self) -> float:
        """When to look at it (monotonic), where it was just granted, or was renewed, or did not need to be.

        So a loss that no message reports is noticed within a third of the TTL, as long as Redis answers.
        """
        now = monotonic()
        if not self.seen:
            return now + min(CONFIRM_AFTER, max(0.0, self.ends - now) / 3)
        # early enough for several tries, even if the holder has set an end that is near
        soonest = now + min(self.ttl / 20, (self.ends - now) / 3)
        due = self.known + self.ttl / 3  # whatever the end: it may be lost
        if self.renewing:
            due = min(due, self.ends + self.early_by - self.ttl * 2 / 3)
        return min(max(due, soonest), self.ends)

    def question(self, *, first: bool, urgent: bool) -> str:
        """What to ask of Redis now: "keep" to renew it, "confirm" whether it is held (in full), "" for nothing.

        ``first``: this is the first look; it asks nothing, as a rule. ``urgent``: Redis has to be asked in any case.
        """
        if self.renewing and (urgent or self.handed or not first or self.ends - monotonic() < self.ttl / 2):
            return "keep"
        return "confirm" if urgent or self.handed or not first else ""

    # -- who may release it -----------------------------------------------------------------------------------------

    def is_last(self, acquisition: object) -> bool:
        """Return whether no other acquisition uses it; this one may have been abandoned meanwhile."""
        return self.shares in ([acquisition], [])

    def leave(self, acquisition: object) -> None:
        """This acquisition no longer uses it. May be called again, and from any thread."""
        try:
            self.shares.remove(acquisition)
        except ValueError:
            pass

    def may_be_released(self) -> bool:
        """Return whether anybody is left who could release it."""
        return any(acquisition.may_be_given_back() for acquisition in tuple(self.shares))

    # -- errors -----------------------------------------------------------------------------------------------------

    def cancelled_by(self, error: BaseException | None) -> bool:
        """Return whether ``error``, with which the work under it ended, is the cancellation that its loss has sent."""
        return self.canceller is not None and self.canceller.caused(error)

    def unreleased_error(self, error: LockUnavailable) -> LockUnavailable:
        """The error for a release that did not reach Redis."""
        left = self.remaining()
        return LockUnavailable(
            f"{str(error).rstrip('.')}. The lock was not released: unless a later release reaches Redis, it stays "
            f"locked for {left:.1f} s.",
            self.name,
            lease_left=left,
        )

    @property
    def unclaimed(self) -> bool:
        """Whether it should have been claimed in a database, and was not."""
        return bool(self.fenced) and not self.claimed

    @property
    def end_reason(self) -> str:
        """Why it is lost if only its time is over. (A handoff that was not confirmed has ended too soon.)"""
        return ENDED if self.renewing or self.handed else self.unrenewed

    def lost_error(self) -> LockLost:
        reason = self.lost_reason or self.end_reason
        return LockLost(
            f"The lock {self.name!r} was lost while it was held here: {reason}.",
            self.name,
            reason=reason,
            fence=self.fence,
        )
