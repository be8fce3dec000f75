"""The objects with background threads, one set for each process, and how they are wired together."""

from __future__ import annotations

import atexit
import sys
import threading

from ..base.per_process import PerProcess
from ..store.place import Backend, Place
from .background.notifier import Notifier
from .messages.listener import Listener
from .messages.strays import Strays
from .messages.subscriber import Subscriber
from .renewal.watchdog import Watchdog


class Runtime:
    """One for each process: a forked child holds nothing, listens to nothing and renews nothing of its parent's."""

    def __init__(self) -> None:
        self.notifier: Notifier = Notifier()
        self.watchdog: Watchdog = Watchdog(self.notifier, lambda backend: self.listener(backend).start())
        self._strays = Strays(self.watchdog)
        self._listeners: dict[Backend, Listener] = {}
        self._subscribers: dict[Place, Subscriber] = {}
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may use one of our locks
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            # such a child ends without calling what was registered with atexit
            sys.modules["multiprocessing.util"].Finalize(None, _send_pending, exitpriority=0)

    def listener(self, backend: Backend) -> Listener:
        """The listener of this backend. It subscribes when somebody has to wait, or holds a lock for long."""
        found = self._listeners.get(backend)
        if found is None:
            with self._mutex:
                found = self._listeners.get(backend)
                if found is None:
                    want, strays = self._subscriber(backend.place).want, self._strays
                    made = Listener(backend, want, strays.take, strays.pass_on, self.watchdog.renew_all)
                    found = self._listeners.setdefault(backend, made)
                    backend.place.when_closed(lambda: self._listeners.pop(backend, None))
        return found

    def _subscriber(self, place: Place) -> Subscriber:
        found = self._subscribers.get(place)
        if found is None:
            found = self._subscribers.setdefault(place, Subscriber(place, self.notifier, self.listener))
            place.when_closed(lambda: self._subscribers.pop(place, None))
        return found

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
