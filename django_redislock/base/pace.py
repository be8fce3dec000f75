"""When to try again: a waiter that polls, whoever was turned away, and a background thread during an outage.

The delays are those of redis-py's backoff classes.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import Any

from redis.backoff import AbstractBackoff, EqualJitterBackoff

from .display import shown
from .times import monotonic

POLLING: AbstractBackoff = EqualJitterBackoff(cap=0.5, base=0.02)  # the default
SHORTEST = 0.001  # seconds: without a delay, Redis would have no time for others
LONGEST = 15.0  # a queue is forgotten when nobody has looked for 60 s, and a waiter counts as alive for four delays
PATIENCE = 1.0  # seconds that a waiter counts as alive at least: a short pause of its process must not cost its place
MOST_FAILURES = 64  # redis-py computes two to the power of them


class Pace:
    """The delays between the tries of one attempt. It copies: some of redis-py's classes remember the last one."""

    __slots__ = ("_backoff", "_failures")

    def __init__(self, backoff: AbstractBackoff) -> None:
        self._backoff = copy.copy(backoff)
        self._backoff.reset()
        self._failures = 0

    def next(self) -> float:
        """Seconds until the next try, within the bounds for a waiter in a queue."""
        self._failures = min(self._failures + 1, MOST_FAILURES)
        delay: Any = self._backoff.compute(self._failures)
        if not isinstance(delay, (int, float)) or delay != delay:
            raise ValueError(f"The delays of backoff must be seconds (int or float), not {shown(delay)}.")
        return min(max(delay, SHORTEST), LONGEST)


def alive_for(delay: float) -> float:
    """For how many seconds a waiter that looks again after ``delay`` counts as alive without another look.

    Four delays, since a reply may come late; whoever has not looked for that long is dropped from the queue.
    """
    return max(4 * delay, PATIENCE)


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
        """Return whether nobody tries any more: the next try is overdue, even if it takes ``timeout`` s to fail."""
        return monotonic() > self.retry_at + timeout + LAST_RETRY

    def end_is_due(self) -> bool:
        """Return whether to log that it is over: once, and only if its beginning was logged."""
        due, self._logged = self._logged, False
        return due

    def log_is_due(self) -> bool:
        """Return whether to log it now."""
        now = monotonic()
        if now < self._log_at:
            return False
        self._log_at = now + min(max(now - self.since, LAST_RETRY), LOG_EVERY)
        self._logged = True
        return True


MOST_TEMPLATES, RECENT = 1000, 9
_lasted: dict[str, deque[float]] = {}  # by the template of a lock's name: for how many seconds it was held, the latest


def note_held(template: str, seconds: float) -> None:
    """Remember for how long a lock was held in this process."""
    if len(_lasted) >= MOST_TEMPLATES:  # each step here is atomic, so that it needs no lock
        _lasted.clear()
    _lasted.setdefault(template, deque(maxlen=RECENT)).append(seconds)


def usually_held_for(template: str) -> float:
    """Seconds: the median of the latest ones; 1 where nothing is known."""
    from statistics import median  # with all that it imports: only who was turned away needs it

    return median(_lasted.get(template, [1.0]))
