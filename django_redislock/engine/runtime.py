"""The objects with background threads, one set for each process, and how they are wired together.

Also what becomes of strays: messages for no waiter of this process. They concern a lock that it holds, or a waiter that
has left.
"""

from __future__ import annotations

import atexit
import sys
import threading

from ..base.processes import PerProcess
from ..store.calls import WITHDRAWAL, LockRequest
from ..store.lock_store import LockStore, Partition
from ..store.records import make_keys
from .announcements import TOLD, Notifier
from .listener import Listener
from .subscriber import Subscriber
from .watchdog import Watchdog


class Runtime:
    """One for each process: a forked child holds nothing, listens to nothing and renews nothing of its parent's."""

    def __init__(self) -> None:
        self.notifier: Notifier = Notifier()
        self.watchdog: Watchdog = Watchdog(self.notifier, lambda partition: self.listener(partition).start())
        self._listeners: dict[Partition, Listener] = {}
        self._subscribers: dict[LockStore, Subscriber] = {}
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may use one of our locks
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            # such a child ends without calling what was registered with atexit
            sys.modules["multiprocessing.util"].Finalize(None, _send_pending, exitpriority=0)

    def listener(self, partition: Partition) -> Listener:
        """The listener of this partition. It subscribes when somebody has to wait, or holds a lock for long."""
        found = self._listeners.get(partition)
        if found is None:
            with self._mutex:
                found = self._listeners.get(partition)
                if found is None:
                    want = self._subscriber(partition.store).want
                    made = Listener(partition, want, self._take_stray, self._pass_on, self.watchdog.renew_all)
                    found = self._listeners.setdefault(partition, made)
                    partition.store.when_closed(lambda: self._listeners.pop(partition, None))
        return found

    def _subscriber(self, store: LockStore) -> Subscriber:
        found = self._subscribers.get(store)
        if found is None:
            found = self._subscribers.setdefault(store, Subscriber(store, self.notifier, self.listener))
            store.when_closed(lambda: self._subscribers.pop(store, None))
        return found

    def _take_stray(self, partition: Partition, kind: str, id: str, name: str) -> None:
        """A message for an id with which nobody here waits."""
        lease = self.watchdog.lease_of(id)
        if lease is not None:
            if kind in TOLD:
                self.watchdog.lose(lease, TOLD[kind])
        elif kind in "gw":  # it has left in the meantime
            self._pass_on(partition, id, name)

    def _pass_on(self, partition: Partition, id: str, name: str) -> None:
        """Nobody waits with this id any more: what it was granted, or may yet be, goes to the next waiter."""
        left = LockRequest(partition, make_keys(partition.prefix, name), name, id)
        self.watchdog.release_later(left, unknown=False, how=WITHDRAWAL)

    def leave_parent(self) -> None:
        for subscriber in self._subscribers.values():
            subscriber.leave_parent()


_runtime = PerProcess(Runtime, Runtime.leave_parent)


def runtime() -> Runtime:
    """The runtime of this process."""
    return _runtime.get()


@atexit.register
def _send_pending() -> None:
    known = _runtime.peek()
    if known is not None:
        known.watchdog.send_pending()
