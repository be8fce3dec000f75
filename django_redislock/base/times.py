"""Durations and deadlines. Python counts in seconds; milliseconds exist only where a script is called."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from .display import shown

Seconds = float | int | timedelta

LONGEST = 10 * 365 * 86400.0  # seconds
SHORTEST_TTL = 0.003  # seconds; a holder counts with 2 ms less, so that a shorter lease is over when it is granted

# The clock of time.monotonic(), under a name by which the tests of a site do not freeze it: freezegun replaces that
# function wherever a module has it, and some versions of time-machine replaced what it does.
monotonic: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))


def ttl_seconds(value: object, what: str) -> float:
    """Return the TTL ``value`` in seconds; see seconds()."""
    return seconds(value, what, least=SHORTEST_TTL)


def seconds(value: object, what: str, *, least: float = 0.001) -> float:
    """Return ``value`` (int, float, timedelta) in seconds, ``least`` or more; ``what`` names it in the error."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf
    else:
        raise TypeError(f"{what} must be seconds (int, float or timedelta), not {shown(value)}.")
    if not math.isfinite(number) or number < least:
        bound = f"at least {least:g}" if least else "0 or more"
        raise ValueError(f"{what} must be {bound} seconds and finite, not {shown(value)}.")
    if number > LONGEST:
        raise ValueError(f"{what} must be at most ten years, not {shown(value)}.")
    return number


def is_frozen() -> bool:
    """Return whether the tests of a site have frozen the clock that event loops use."""
    return abs(time.monotonic() - monotonic()) >= 1.0


class Alarm:
    """Calls ``callback`` in ``loop`` after so many seconds, unless it is cancelled: ``loop.call_later()``.

    Where the clock of the loop is frozen, so that its own alarms never go off, a thread waits for it.
    """

    __slots__ = ("_callback", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] = callback
        self._timer: asyncio.TimerHandle | threading.Timer
        if not is_frozen():
            self._timer = loop.call_later(max(seconds, 0.0), callback)
        else:
            self._timer = threading.Timer(seconds, self._ring, [loop])
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()
        self._callback = lambda: None  # the thread may have rung already

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(lambda: self._callback())


GRACE = 0.8  # seconds past a deadline in which an answer still counts


@dataclass(slots=True, eq=False)
class Deadline:
    """How long to wait: without end, not at all, or until a moment of the monotonic clock.

    ``at`` is that moment (infinite: no deadline). After it, nothing is tried again. ``waits`` tells "try once" from a
    deadline that has passed meanwhile.
    """

    at: float
    waits: bool = True

    @classmethod
    def after(cls, timeout: float | None) -> Deadline:
        """``timeout`` seconds from now; 0 tries once, None waits without end."""
        if timeout is None:
            return NEVER
        return cls(monotonic() + timeout, waits=timeout > 0)

    @property
    def endless(self) -> bool:
        return self.at == math.inf

    @property
    def passed(self) -> bool:
        return monotonic() >= self.at

    @property
    def answer_by(self) -> float | None:
        """When to stop waiting for an answer (monotonic), even if it has passed by now; None: never."""
        return None if self.at == math.inf else max(self.at, monotonic()) + GRACE

    def left(self) -> float:
        """Seconds, infinite without a deadline."""
        return max(0.0, self.at - monotonic())


NEVER = Deadline(math.inf)
