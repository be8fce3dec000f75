"""A time in which Redis cannot be reached in the background: when to try again, and when to say that it goes on."""

from __future__ import annotations

from time import monotonic

FIRST_RETRY, LAST_RETRY = 0.05, 1.0  # seconds between two tries: each is twice the one before
LAST_SAYING = 60.0  # seconds between two lines in the log, at most


class Outage:
    """It is said at once, then each time it has become twice as long; later, every minute."""

    __slots__ = ("_says_at", "delay", "said", "since")

    def __init__(self) -> None:
        self.since: float = monotonic()
        self._says_at = self.since
        self.delay: float = 0.0  # seconds until the next try
        self.said: bool = False

    @property
    def lasted(self) -> float:
        """Seconds since the first failure."""
        return monotonic() - self.since

    def fail(self) -> float:
        """One more try has failed; answers the seconds to wait until the next."""
        self.delay = min(self.delay * 2 or FIRST_RETRY, LAST_RETRY)
        return self.delay

    def says(self) -> bool:
        """Whether it is time to say so."""
        now = monotonic()
        if now < self._says_at:
            return False
        self._says_at = now + min(max(now - self.since, LAST_RETRY), LAST_SAYING)
        self.said = True
        return True
