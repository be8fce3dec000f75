"""One acquisition of a lock, as its holder knows it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection
from time import monotonic
from typing import Protocol

from ..exceptions import LockLost, LockUnavailable
from ..options import OnLost
from ..steps import Steps
from ..store.calls import Wanted
from ..store.place import Backend
from .canceller import Canceller

# why a lease was lost
VANISHED = "it is gone from Redis (expired, evicted, flushed or force-released)"
TAKEN = "somebody else holds it now"
FORCED = "it was force-released"
RELEASED = "the bearer of its token has released it elsewhere"
ADOPTED = "the bearer of its token has adopted it elsewhere"
ENDED = "its lease ended before it could be renewed"
OVER = "its lease ended, and it was not to be renewed"


class Lives(Protocol):
    """Whoever has acquired a lock."""

    def alive(self) -> bool: ...


class Lease:
    """What one acquisition holds: token, fence, and until when by the local monotonic clock.

    ``ends`` counts from the moment the granting request was sent, so it is never later than the end in Redis (short
    of a jump of the server's clock).
    """

    def __init__(self, wanted: Wanted, *, fence: int, ends: float, handed: bool, unknown: bool) -> None:
        self.wanted: Wanted = wanted
        self.fence: int = fence
        self.ends: float = ends
        self.handed: bool = handed  # by a release script, with a short lease until it is confirmed
        self.unknown: bool = unknown  # an acquire of this attempt may still arrive
        self.since: float = monotonic()
        self.pid: int = os.getpid()
        self.renewing: bool = True
        self.max_hold: float | None = None  # seconds
        self.template: str = wanted.name  # the name as it was written
        self.on_lost: OnLost | None = None
        self.canceller: Canceller | None = None
        self.owner: weakref.ref[Lives] | None = None  # whoever acquired it
        # the acquisitions that use it (several, when it is reentrant), and what keeps each; None: the owner does
        self.shares: dict[Section, Callable[[], object] | None] = {}
        self.lost_reason: str = ""
        self.closed: bool = False  # released or detached
        self.tried_release: bool = False
        self.detaching: bool = False  # that was tried: where it was interrupted, nobody has been told the token
        self.leaving: bool = False  # Redis is being asked to detach it, whose answer says more than the clock
        self.watched: bool = False
        self.due: float = 0.0  # when the watchdog looks next
        self.urgent: bool = False  # ask Redis now, whatever the clock says
        self.seen: bool = False  # by the watchdog: it is no short section
        self.fenced: bool | tuple[str, ...] = False  # to be claimed on these databases; True: on all that are open
        self.fence_timeout: float | None = None  # seconds
        self.claimed: frozenset[str] = frozenset()  # on these databases
        self.raising: bool = False  # a new fence was asked for
        self.asked_fence: int = fence  # with which it was renewed last

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A lease belongs to this process: a copy of what refers to it, there or here, has none."""
        return type(None), ()

    matters = True  # whether a failure to renew it is worth a warning

    # -- what was asked for -----------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        return self.wanted.backend

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def id(self) -> str:
        return self.wanted.id

    @property
    def token(self) -> str:
        return self.wanted.token or self.wanted.id

    @property
    def ttl(self) -> float:
        return self.wanted.ttl

    # -- what has become of it --------------------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Made in this process, not in the one that it was forked from."""
        return self.pid == os.getpid()

    @property
    def lost(self) -> bool:
        """Known to be lost, or by the local clock presumed to be."""
        return bool(self.lost_reason) or (not self.closed and monotonic() >= self.ends)

    def remaining(self) -> float:
        """Seconds of lease left by the local clock."""
        return 0.0 if self.lost_reason or self.closed else max(0.0, self.ends - monotonic())

    @property
    def detached(self) -> bool:
        """It was left, on purpose, to whoever has its token."""
        return self.closed and self.detaching

    def unwatch(self) -> None:
        """What the watchdog has still to say of it does not count any more."""
        self.watched = False
        if self.canceller is not None:
            self.canceller.end()

    def close(self) -> None:
        """It was released or detached: it is for nobody here to use any more."""
        self.unwatch()
        self.closed = True

    def fence_as_well(self, fenced: bool | tuple[str, ...] | None) -> None:
        """A reentrant acquisition may add claims, never drop them."""
        if fenced is True or self.fenced is True:
            self.fenced = True
        elif fenced:
            self.fenced = tuple(dict.fromkeys([*(self.fenced or ()), *fenced]))

    # -- who may release it -----------------------------------------------------------------------------------------

    def follow(self, section: Section, keeper: object | None) -> None:
        """From now on, it is renewed for ``section`` as long as ``keeper`` lives, or (None) no more.

        Whatever has become of its owner, which may have gone on, or ended.
        """
        self.shares[section] = (lambda: None) if keeper is None else weakref.ref(keeper)
        if keeper is None and len(self.shares) == 1:
            self.renewing = False

    def may_be_released(self) -> bool:
        """Whether anybody is left who could."""
        owner = None if self.owner is None else self.owner()
        owned = owner is not None and owner.alive()
        keepers = list(self.shares.values()) or [None]
        return any(owned if keeper is None else keeper() is not None for keeper in keepers)

    # -- errors -----------------------------------------------------------------------------------------------------

    def cancelled_by(self, error: BaseException | None) -> bool:
        """Whether ``error``, with which the section has ended, is the cancellation that its loss has sent."""
        return self.canceller is not None and self.canceller.caused(error)

    def unreleased_error(self, error: LockUnavailable) -> LockUnavailable:
        """What a release raises that Redis did not hear."""
        left = self.remaining()
        return LockUnavailable(
            f"{str(error).rstrip('.')}. The lock was not released: unless you try again, it stays locked for "
            f"{left:.1f} s.",
            self.name,
            lease_left=left,
        )

    @property
    def unclaimed(self) -> bool:
        """Whether it should have been claimed, and was not."""
        return bool(self.fenced) and not self.claimed

    def binds(self, aliases: Collection[str]) -> bool:
        """Whether there are any, and it was claimed on all of these databases: what they have committed is valid,
        whatever has become of the lock since. Nobody's work was overwritten."""
        return bool(aliases) and self.claimed.issuperset(aliases)

    @property
    def end_reason(self) -> str:
        """Why it is lost where only its time is over."""
        return ENDED if self.renewing else OVER

    def lost_error(self) -> LockLost:
        reason = self.lost_reason or self.end_reason
        return LockLost(
            f"The lock {self.name!r} was lost while it was held here: {reason}.",
            self.name,
            reason=reason,
            fence=self.fence,
        )


class Section(Protocol):
    """Something under a lock, as seen by those that do not make it; it is an Acquisition."""

    lease: Lease | None

    @property
    def through(self) -> object:
        """The object by which its owner finds it."""

    @property
    def held(self) -> Lease: ...

    def give_back(self) -> Steps[bool]: ...

    def end(self) -> Steps[bool]: ...

    def exit(self, error: BaseException | None) -> Steps[bool]: ...

    def leave(self) -> None: ...

    def undo_after(self, block: object) -> None: ...

    def undo(self) -> None: ...
