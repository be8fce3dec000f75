"""Strays: messages for no waiter of this process. They concern a lock that it holds, or a waiter that has left."""

from __future__ import annotations

from ...base.times import monotonic
from ...store.calls import WITHDRAWAL, LockRequest
from ...store.keys import make_keys
from ...store.lock_store import Partition
from ..leases.loss import TOLD
from ..renewal.watchdog import Watchdog

MOST_STRAYS = 100  # that are answered in a second: anybody may have sent them


class Strays:
    """Acts on strays: a lease is lost, or a grant is passed on."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._count = 0  # up to this time (monotonic):
        self._count_until = 0.0

    def take(self, partition: Partition, kind: str, id: str, name: str) -> None:
        """A message for an id with which nobody here waits."""
        if self._watchdog.holds(id):
            if kind in TOLD:
                self._watchdog.lose_by_id(id, TOLD[kind])
        elif kind in "gw" and self._may_answer():  # it has left in the meantime
            self.pass_on(partition, id, name)

    def pass_on(self, partition: Partition, id: str, name: str) -> None:
        """Nobody waits with this id any more: what it was granted, or may yet be, goes to the next waiter."""
        left = LockRequest(partition, make_keys(partition.prefix, name), name, id)
        self._watchdog.release_later(left, unknown=False, how=WITHDRAWAL)

    def _may_answer(self) -> bool:
        now = monotonic()
        if now >= self._count_until:
            self._count, self._count_until = 0, now + 1.0
        self._count += 1
        return self._count <= MOST_STRAYS
