"""An outage, as background threads see it: when to try again, and when to log that it goes on."""

from __future__ import annotations

import math

from ...base.times import monotonic

FIRST_RETRY, LAST_RETRY = 0.05, 1.0  # seconds between two tries: each is twice the one before
LOG_EVERY = 60.0  # seconds between two lines in the log, at most


class Outage:
    """Logged at once, then whenever it has doubled in length, and at least once a minute.

    If nothing needs Redis any more, nobody tries again, so the end of the outage may go unnoticed.
    """

    __slots__ = ("_log_at", "_logged", "delay", "retry_at", "since")

    def __init__(self) -> None:
        self.since: float = monotonic()
        self.delay: float = 0.0  # seconds until the next try
        self.retry_at: float = math.inf  # monotonic
        self._logged = False
        self._log_at = self.since

    @property
    def lasted(self) -> float:
        """Seconds since the first failure."""
        return monotonic() - self.since

    def fail(self) -> float:
        """A try has failed; return the seconds to wait until the next one."""
        self.delay = min(self.delay * 2 or FIRST_RETRY, LAST_RETRY)
        self.retry_at = monotonic() + self.delay
        return self.delay

    def is_stale(self, timeout: float) -> bool:
        """Whether nobody is trying any more: the next try is overdue, even if it takes ``timeout`` seconds to fail."""
        return monotonic() > self.retry_at + timeout + LAST_RETRY

    def end_is_due(self) -> bool:
        """Whether to log that it is over: once, and only if its beginning was logged."""
        due, self._logged = self._logged, False
        return due

    def log_is_due(self) -> bool:
        """Whether to log it now."""
        now = monotonic()
        if now < self._log_at:
            return False
        self._log_at = now + min(max(now - self.since, LAST_RETRY), LOG_EVERY)
        self._logged = True
        return True
