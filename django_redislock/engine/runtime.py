"""The objects with background threads, one set for each process, and how they are wired together."""

from __future__ import annotations

import atexit
import sys
import threading
from typing import Any

from ..base.processes import PerProcess
from ..base.times import monotonic
from ..store.lock_store import LockStore, Partition
from .announcements import Notifier
from .listener import Listener
from .subscriber import Subscriber
from .watchdog import Watchdog

LAST_CALLS = 5.0  # seconds that the end of the process waits for what is being called


class Runtime:
    """One for each process: a forked child holds nothing, listens to nothing and renews nothing of its parent's."""

    def __init__(self) -> None:
        self.notifier: Notifier = Notifier()
        self.watchdog: Watchdog = Watchdog(self.notifier, lambda partition: self.listener(partition).start())
        self._listeners: dict[Partition, Listener] = {}
        self._subscribers: dict[LockStore, Subscriber] = {}
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may use one of our locks
        self._ends_at = 0.0  # monotonic; see finish()
        # children of multiprocessing and billiard end without calling what was registered with atexit, and those of
        # Celery's pool call only the receivers of its signal. None: not imported, or being imported by another thread
        finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        if finalize is not None:  # pragma: no branch (the tests have imported it)
            finalize(None, _send_pending, exitpriority=0)
        shutdown = getattr(sys.modules.get("celery.signals"), "worker_process_shutdown", None)
        if shutdown is not None:  # pragma: no branch (and this)
            shutdown.connect(_send_pending)

    def listener(self, partition: Partition) -> Listener:
        """The listener of this partition. It subscribes when somebody has to wait, or holds a lock for long."""
        found = self._listeners.get(partition)
        if found is None:
            with self._mutex:
                found = self._listeners.get(partition)
                if found is None:
                    made = Listener(partition, self._subscriber(partition.store).want, self.watchdog)
                    found = self._listeners.setdefault(partition, made)
                    partition.store.when_closed(lambda: self._listeners.pop(partition, None))
        return found

    def _subscriber(self, store: LockStore) -> Subscriber:
        found = self._subscribers.get(store)
        if found is None:
            found = self._subscribers.setdefault(store, Subscriber(store, self.notifier, self.listener))
            store.when_closed(lambda: self._subscribers.pop(store, None))
        return found

    def finish(self) -> None:
        """Before the process ends, and its threads with it: give the site's code LAST_CALLS seconds, once."""
        self._ends_at = self._ends_at or monotonic() + LAST_CALLS
        for notifier in (self.watchdog.alarms, self.notifier):
            notifier.finish(self._ends_at)

    def leave_parent(self) -> None:
        for subscriber in self._subscribers.values():
            subscriber.leave_parent()


_runtime = PerProcess(Runtime, Runtime.leave_parent)


def runtime() -> Runtime:
    """The runtime of this process."""
    return _runtime.get()


@atexit.register
def _send_pending(**facts: Any) -> None:
    known = _runtime.peek()
    if known is not None:
        for listener in list(known._listeners.values()):
            listener.leave_queues()
        known.watchdog.send_pending()
        known.finish()
