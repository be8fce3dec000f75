"""The watchdog's agenda: when to look at a lease, and what to ask then; releases to send. Times are monotonic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..base.times import monotonic
from ..store.calls import LockRequest, Renewed
from ..store.lock_store import Partition
from ..store.old_key import OldKey
from ..store.wire import Command
from .dispatch import Outgoing
from .lease import Lease

CONFIRM_AFTER = 0.1  # seconds that a lock is held before it counts as a long section


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A release, or a withdrawal from a queue, that still has to be sent; or the same for the key of old code."""

    partition: Partition
    command: Callable[[], Command]
    until: float
    matters: bool  # whether to log a failure
    due: float
    request: LockRequest | None = None  # whose answer says whether there is more to release

    def outgoing(self) -> Outgoing:
        self.due = math.inf  # until it is known that it has to be sent once more
        return Outgoing(self, self.command(), 0.0)


class Following(NamedTuple):
    """The key of old code, which is to end no sooner than our lease: Redis has answered that with its renewal."""

    lease: Lease
    old: OldKey
    answer: Renewed
    matters: bool = True

    @property
    def partition(self) -> Partition:
        return self.old.partition

    @property
    def ttl(self) -> float:
        return self.lease.ttl


Task = Lease | Pending


def next_check(lease: Lease) -> float:
    """When to look at a lease that was just granted, or was renewed, or did not need to be.

    So a loss that no message reports is noticed within a third of the TTL, as long as Redis answers.
    """
    now = monotonic()
    if not lease.seen:
        return now + min(CONFIRM_AFTER, max(0.0, lease.ends - now) / 3)
    # early enough for several tries, even if the holder has set an end that is near
    soonest = now + min(lease.ttl / 20, (lease.ends - now) / 3)
    due = lease.known + lease.ttl / 3  # whatever the end: it may be lost
    if lease.renewing:
        due = min(due, lease.ends + lease.spare - lease.ttl * 2 / 3)
    return min(max(due, soonest), lease.ends)


def call_for(lease: Lease, *, first: bool, urgent: bool) -> str:
    """What to ask of Redis now: "keep" to renew the lease, "confirm" whether it is held (in full), "" for nothing.

    ``first``: this is the first look; it asks nothing, as a rule. ``urgent``: Redis has to be asked in any case.
    """
    if lease.renewing and (urgent or lease.handed or not first or lease.ends - monotonic() < lease.ttl / 2):
        return "keep"
    return "confirm" if urgent or lease.handed or not first else ""
