"""``on_lost="cancel"``: ends the task that holds a lost lock."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

Task = asyncio.Task[Any]


class Canceller:
    """Cancels a task the way ``asyncio.timeout`` does."""

    def __init__(self, task: Task) -> None:
        # weak: the watchdog must not keep a task alive that everybody else has forgotten
        self._task = weakref.ref(task)
        self._loop = task.get_loop()
        # before Python 3.11, tasks do not count their pending cancellations
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0
        self._sent = self._over = False

    def strike(self) -> None:
        """Cancel the task. May be called from any thread; a second call does nothing."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop has ended, and the task with it

    def _cancel(self) -> None:
        task = self._task()
        if not self._sent and not self._over and task is not None:
            self._sent = True
            task.cancel()

    def end(self) -> bool:
        """The lock was released: leave the task alone from now on, and take back a cancellation already sent.

        Returns whether one was sent, and it was the only one.
        """
        if self._over:
            return False
        self._over = True
        task: Any = self._task()
        others = self._sent and hasattr(task, "uncancel") and task.uncancel() > self._before
        return self._sent and not others

    def caused(self, error: BaseException | None) -> bool:
        """Whether ``error``, which has ended the block, is our cancellation, and nobody else cancelled the task."""
        # an inner block that shares the lease must not call end() while the lease is not lost
        return self._sent and self.end() and isinstance(error, asyncio.CancelledError)
