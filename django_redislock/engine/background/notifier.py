"""The notifier runs the site's own code (receivers, ``on_lost``, logging handlers) in threads of its own.

However slow that code is, it does not delay the threads that renew leases, watch the clock or read messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from logging import ERROR
from typing import Any

from ...base.log import log_event, logger
from ...base.threads import try_start

THREADS = 8  # at most; several, so that a receiver that hangs does not hold up the others

Job = Callable[[], object]


class Notifier:
    """Calls what it is given, in threads that end when there is nothing more to call."""

    def __init__(self) -> None:
        # where nothing may interrupt it, the watchdog appends to this directly, and calls wake() later
        self.jobs: deque[Job] = deque()
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may discover a loss
        self._threads: set[threading.Thread] = set()

    def call(self, job: Job) -> None:
        """Call ``job`` soon. What it raises is logged."""
        self.jobs.append(job)
        self.wake()

    def wake(self) -> None:
        """Start a thread if there are jobs, in case whoever added them was interrupted before it could."""
        if not self.jobs:
            return
        with self._mutex:
            # a thread whose start was interrupted may never run
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            if len(self._threads) >= THREADS:
                return
            thread = threading.Thread(target=self._run, name="redislock-notifier", daemon=True)
            self._threads.add(thread)
            if try_start(thread):
                return
        self._run()

    def log(self, level: int, event: str, **facts: Any) -> None:
        """Log ``event`` soon; see log_event()."""
        if logger.isEnabledFor(level):
            self.call(lambda: log_event(level, event, **facts))

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self.jobs:
                    self._threads.discard(threading.current_thread())
                    return
                job = self.jobs.popleft()
            try:
                job()
            except BaseException:
                log_event(ERROR, "notifier-failed", exc_info=True)
