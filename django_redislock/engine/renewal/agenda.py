"""The watchdog's agenda: which leases to look at, and which releases to send, and when."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

from ...store.calls import WITHDRAWAL, LockRequest, release_command
from ...store.lock_store import Partition
from ..leases.lease import Lease
from .sender import Parcel

MANY = 1000  # entries, above which stale ones are dropped


class PendingRelease(NamedTuple):
    """A release, or a withdrawal from a queue, that still has to be sent."""

    request: LockRequest
    unknown: bool  # an acquire of this attempt may still arrive
    until: float
    how: str  # WITHDRAWAL: the attempt was given up, and there may be nothing to release

    @property
    def partition(self) -> Partition:
        return self.request.partition

    @property
    def matters(self) -> bool:
        """Whether to log a failure: a withdrawal concerns nothing that was held, and its caller has had an error."""
        return self.how != WITHDRAWAL

    def parcel(self) -> Parcel:
        return Parcel(self, release_command(self.request, unknown=self.unknown, how=self.how), 0.0)


Task = Lease | PendingRelease


class Agenda:
    """Tasks by the monotonic time at which they are due. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._sweep_at = MANY

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_due(self) -> float | None:
        return self._entries[0][0] if self._entries else None

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
    """Whether the lease has ended, or was planned anew."""
    due, _, task = entry
    return isinstance(task, Lease) and not (task.watched and task.due == due)
