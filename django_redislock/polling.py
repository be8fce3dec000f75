"""Polling: when to look again where no message tells. The delays are those of redis-py's backoff classes."""

from __future__ import annotations

import copy
from typing import Any

from redis.backoff import AbstractBackoff, EqualJitterBackoff

from .texts import shown

POLLING: AbstractBackoff = EqualJitterBackoff(cap=0.5, base=0.02)  # where none was chosen
SHORTEST = 0.001  # seconds: a backoff of nothing would keep Redis busy with nobody else
LONGEST = 15.0  # a queue is forgotten when nobody has looked for 60 s, and a waiter counts as alive for four delays
PATIENCE = 1.0  # seconds that a waiter counts as alive at least: a short pause of its process must not cost its place
MOST_FAILURES = 64  # redis-py computes two to the power of them


class Pace:
    """The delays between the tries of one attempt. Some of redis-py's classes remember the last one: so it copies."""

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
        """The same within the bounds of a queue."""
        return min(max(self.next(), SHORTEST), LONGEST)


def as_polled(delay: float) -> str:
    """What tells the acquire script of a waiter that looks again after ``delay`` seconds: how long it counts as alive.

    Four delays, since an answer may come late; whoever has not looked for so long is dropped from the queue.
    """
    return f"p{round(1000 * max(4 * delay, PATIENCE))}"
