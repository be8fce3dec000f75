"""The herald tells the site's own code what was lost, in threads of its own: it holds up nobody, however slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

THREADS = 8  # at most; one that hangs in a receiver does not silence the others


class Herald:
    """Calls ``tell(news)`` for everything that is brought, in threads that end when there is nothing to tell."""

    def __init__(self, tell: Callable[[Any], object]) -> None:
        self._tell = tell
        self._news: deque[Any] = deque()
        self._mutex = threading.RLock()  # the garbage collection may find out a loss, under us
        self._away = 0  # threads

    def bring(self, news: Any) -> None:
        with self._mutex:
            self._news.append(news)
            if self._away == THREADS:
                return
            self._away += 1
        thread = threading.Thread(target=self._run, name="redislock-lost", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads: better late than never
            self._run()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._news:
                    self._away -= 1
                    return
                news = self._news.popleft()
            self._tell(news)
