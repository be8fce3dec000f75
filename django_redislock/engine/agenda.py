"""The watchdog's agenda: which leases to look at, and which releases to send, and when. Times are monotonic."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from ..base.times import monotonic
from ..store.calls import LockRequest, Renewed
from ..store.lock_store import Partition
from ..store.old_key import OldKey
from ..store.wire import Command
from .dispatch import Outgoing
from .lease import Lease

CONFIRM_AFTER = 0.1  # seconds that a lock is held before it counts as a long section
MANY = 1000  # entries, above which stale ones are dropped


class Pending(NamedTuple):
    """A release, or a withdrawal from a queue, that still has to be sent; or the same for the key of old code."""

    partition: Partition
    command: Callable[[], Command]
    until: float
    matters: bool  # whether to log a failure
    request: LockRequest | None = None  # whose answer says whether there is more to release

    def outgoing(self) -> Outgoing:
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


class Agenda:
    """Tasks by the monotonic time at which they are due. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._sweep_at = MANY

    def next_due(self) -> float:
        """When something is due; infinite: nothing is planned."""
        return self._entries[0][0] if self._entries else math.inf

    def plan(self, due: float, task: Task) -> None:
        """Plan a task. For a lease, this replaces what was planned before."""
        heapq.heappush(self._entries, (due, next(self._order), task))
        if isinstance(task, Lease):
            task.due = due  # last, so that an interruption in here leaves the lease with a valid entry
        if len(self._entries) > self._sweep_at:
            # stale entries would stay until they are due: for hours, with a TTL of a day
            entries = [entry for entry in self._entries if not _is_stale(entry)]
            heapq.heapify(entries)
            self._entries = entries
            self._sweep_at = max(MANY, 2 * len(self._entries))

    def take_due(self, now: float) -> list[Task]:
        """Take out the tasks that are due."""
        tasks: list[Task] = []
        while self._entries:
            entry = self._entries[0]
            stale = _is_stale(entry)
            if entry[0] > now and not stale:
                break
            heapq.heappop(self._entries)
            if not stale:
                tasks.append(entry[2])
        return tasks


def _is_stale(entry: tuple[float, int, Task]) -> bool:
    """Return whether the lease has ended, or was planned anew."""
    due, _, task = entry
    return isinstance(task, Lease) and not (task.watched and task.due == due)


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
