"""For how long the latest sections under a lock lasted in this process, for those who ask when to come again.

Views and jobs note it, by the template of the name.
"""

from __future__ import annotations

from collections import deque
from statistics import median

MOST_TEMPLATES, RECENT = 1000, 9
_lasted: dict[str, deque[float]] = {}  # by template: the seconds of the latest ones


def note_held(template: str, seconds: float) -> None:
    """Remember for how long a lock was held."""
    if len(_lasted) >= MOST_TEMPLATES:  # each step here is atomic, so that it needs no lock
        _lasted.clear()
    _lasted.setdefault(template, deque(maxlen=RECENT)).append(seconds)


def usually_held_for(template: str) -> float:
    """Seconds: the median of the latest ones; 1 where nothing is known."""
    return median(_lasted.get(template, [1.0]))
