"""When to try again if no message wakes. The delays are those of redis-py's backoff classes."""

from __future__ import annotations

import copy
from typing import Any

from redis.backoff import AbstractBackoff, EqualJitterBackoff

from .display import shown

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
        """Seconds until the next try."""
        self._failures = min(self._failures + 1, MOST_FAILURES)
        delay: Any = self._backoff.compute(self._failures)
        if not isinstance(delay, (int, float)) or delay != delay:
            raise ValueError(f"The delays of backoff must be seconds (int or float), not {shown(delay)}.")
        return delay

    def next_look(self) -> float:
        """Like next(), within the bounds for a waiter in a queue."""
        return min(max(self.next(), SHORTEST), LONGEST)


def alive_for(delay: float) -> float:
    """For how many seconds a waiter that looks again after ``delay`` counts as alive without another look.

    Four delays, since a reply may come late; whoever has not looked for that long is dropped from the queue.
    """
    return max(4 * delay, PATIENCE)
