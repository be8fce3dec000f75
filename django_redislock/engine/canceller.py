"""``on_lost="cancel"``: ends the task that holds a lost lock."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

Task = asyncio.Task[Any]


class Canceller:
    """Cancels a task the way ``asyncio.timeout`` does."""

    def __init__(self, task: Task) -> None:
        # weakly: what the watchdog keeps must not keep a task alive that everybody else has forgotten
        self._task = weakref.ref(task)
        self._loop = task.get_loop()
        # before Python 3.11, tasks do not count their cancellations
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0
        self._sent = self._over = False

    def strike(self) -> None:
        """Called from any thread; the second time does nothing."""
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
        """The lock is released: the task is left alone from now on, and a cancellation that was sent is taken back.

        Returns whether one was, and nobody else wants the end of the task.
        """
        if self._over:
            return False
        self._over = True
        task: Any = self._task()
        others = self._sent and hasattr(task, "uncancel") and task.uncancel() > self._before
        return self._sent and not others

    def caused(self, error: BaseException | None) -> bool:
        """The block has ended with ``error``: is that our cancellation, and nobody else's besides?"""
        # a block within another one that holds the same lease ends nothing, as long as that is not lost
        return self._sent and self.end() and isinstance(error, asyncio.CancelledError)
