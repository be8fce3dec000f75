"""Who holds a lock that an attempt wants: what is known of the holder, for the log and for the error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from ..base.log import log_event
from ..base.names import known_as, named
from ..exceptions import LockNotAcquired
from ..store.calls import LockRequest
from ..store.records import parse_holder
from .waiters import Waiter


@dataclass(slots=True, eq=False, repr=False)
class CurrentHolder:
    """What an attempt knows of whoever holds its lock. ``tell_at``: when to log that it waits (monotonic)."""

    tell_at: float
    busy_for: float | None = None  # seconds; None: nothing is known of the holder
    full: bool = False  # the queue has as many waiters as it may have
    _value: bytes | None = None  # of the lock, as of the last answer
    _old: str | None = None  # what holds a key of the lock, where that is not ours

    def note(self, value: bytes | None, left: float, waiter: Waiter | None) -> None:
        """Keep what Redis has said of the lock. ``left``: seconds of the lease."""
        self._value = value
        self.busy_for = max(0.0, left)
        if waiter is not None and waiter.registered:
            waiter.group.seen = value

    def note_old(self, key: str) -> None:
        """Our lock was to be had, and this key of old code was not."""
        self._value, self.busy_for, self._old = None, None, f"old code (its key {key!r})"

    def tell(self, name: str, waited: float, waiter: Waiter | None) -> None:
        """Log once, after a long wait, who holds the lock, as of the last look: somebody may have forgotten it."""
        self.tell_at = math.inf
        if waiter is not None and self._old is None:
            self._value = waiter.group.seen or self._value  # the oldest waiter looks for all
        holder = parse_holder(self._value)
        held: dict[str, Any] = {}
        if self._old is not None:
            held = {"owner": self._old}
        if holder is not None:
            held = {"owner": holder.described, "fence": holder.fence}
        log_event(WARNING, "still-waiting", **named(name), **held, waited=waited)

    def refusal(
        self, request: LockRequest, *, tries: int, waited: float, waits: bool, adopting: bool, own: str | None
    ) -> LockNotAcquired:
        """The error for a lock that was not acquired. ``waits``: whether the attempt was to wait for it.

        ``own``: the id by which whoever wants the lock has acquired it before.
        """
        noun, name = known_as(request.name)
        holder = parse_holder(self._value)
        owner = self._old if holder is None else holder.described
        within = f"within {waited:.3f} s ({tries} attempt{'s'[: tries > 1]})" if waits else "at once"
        outcome = "timeout" if waits and not adopting else "busy"
        if adopting:
            text = f"Could not adopt the lock {name!r}: {owner or 'somebody'} still uses it. Call detach() there first."
        elif holder is not None and holder.id == own:
            outcome = "own"
            text = f"Could not acquire the lock {name!r} {within}: this thread or task holds it already."
            if request.token is None:  # the lock of a job that is being queued cannot be acquired again
                text += " Pass reentrant=True to acquire it again."
        elif self.full:
            outcome = "full"
            text = f"Could not acquire the {noun} {name!r}: its queue is full (max_waiters={request.most})."
        elif noun == "semaphore":
            text = f"Could not acquire the semaphore {name!r} {within}: none of its {request.limit} permits is free."
        elif noun == "pool":
            text = f"Could not acquire a member of the pool {name!r} {within}: none is free."
        else:
            state = "held"
            if holder is not None and holder.suspension:
                outcome = state = "suspended"
            by = "elsewhere" if owner is None else f"by {owner if holder is None else holder.owner}"
            text = f"Could not acquire the lock {name!r} {within}: {state} {by}."
        return LockNotAcquired(
            text,
            name if noun == "pool" else request.name,
            outcome=outcome,
            attempts=tries,
            waited=waited,
            busy_for=self.busy_for,
            holder=owner,
        )
