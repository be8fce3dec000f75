"""The background threads of this process, and how they know each other."""

from __future__ import annotations

import atexit
import threading

from ..per_process import PerProcess
from ..store.backend import Backend
from .listener import Listener
from .notifier import Notifier
from .watchdog import Watchdog


class Runtime:
    """One for each process: a forked child holds nothing, listens to nothing and renews nothing of its parent's."""

    def __init__(self) -> None:
        self.notifier: Notifier = Notifier()
        self.watchdog: Watchdog = Watchdog(self.notifier, lambda backend: self.listener(backend).start())
        self._listeners: dict[Backend, Listener] = {}
        self._mutex = threading.RLock()  # a finalizer may use a lock of ours while this is held

    def listener(self, backend: Backend) -> Listener:
        """That of this backend. Its thread starts when somebody has to wait, or holds for long."""
        found = self._listeners.get(backend)
        if found is None:
            with self._mutex:
                found = self._listeners.get(backend)
                if found is None:
                    made = Listener(backend, self.notifier, self.watchdog.on_stray, self.watchdog.renew_all)
                    found = self._listeners.setdefault(backend, made)
                    backend.on_close.append(lambda: self._listeners.pop(backend, None))
        return found

    def leave_parent(self) -> None:
        for listener in self._listeners.values():
            listener.leave_parent()


_runtime = PerProcess(Runtime, Runtime.leave_parent)


def runtime() -> Runtime:
    """That of this process."""
    return _runtime.get()


@atexit.register
def _send_pending() -> None:
    known = _runtime.peek()
    if known is not None:
        known.watchdog.send_pending()
