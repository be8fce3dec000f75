"""Durations and deadlines. Python counts in seconds; milliseconds exist only where a script is called."""

from __future__ import annotations

import math
from datetime import timedelta
from time import monotonic

from .display import shown

Seconds = float | int | timedelta

LONGEST = 10 * 365 * 86400.0  # seconds


def seconds(value: object, what: str, *, positive: bool = True) -> float:
    """Return ``value`` (int, float, timedelta) in seconds; ``what`` names it in the error."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf
    else:
        raise TypeError(f"{what} must be seconds (int, float or timedelta), not {shown(value)}.")
    if not math.isfinite(number) or number < 0 or (positive and number < 0.001):
        least = "at least 0.001" if positive else "0 or more"
        raise ValueError(f"{what} must be {least} seconds and finite, not {shown(value)}.")
    if number > LONGEST:
        raise ValueError(f"{what} must be at most ten years, not {shown(value)}.")
    return number


class Deadline:
    """How long to wait: without end, not at all, or until a moment of the monotonic clock.

    ``at`` is that moment (infinite: no deadline). ``waits`` tells "try once" from a deadline that has passed meanwhile.
    """

    __slots__ = ("at", "waits")

    def __init__(self, at: float, *, waits: bool = True) -> None:
        self.at: float = at
        self.waits: bool = waits

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

    def left(self) -> float:
        """Seconds, infinite without a deadline."""
        return max(0.0, self.at - monotonic())


NEVER = Deadline(math.inf)
