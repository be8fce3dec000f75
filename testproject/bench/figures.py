"""Computes figures from the log of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, NamedTuple

Figures = dict[str, Any]
"""One contender's figures by name; None where a figure does not apply."""


class Section(NamedTuple):
    """One acquisition. Times are of CLOCK_MONOTONIC, which all processes of a machine share."""

    who: int
    asked: float  # just before the lock object was made
    got: float
    leaving: float  # just before the release
    clash: bool  # another worker's mark was in the shared memory
    ticket: int | None = None  # ours only: the place in the queue, in the server's order
    fence: int | None = None
    name: int = 0  # the number of the lock's name


def percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def jain(shares: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 if all have the same, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def median_ratio(values: Sequence[float], base: Sequence[float] | None) -> float | None:
    """The median of the ratios of the rounds: a slow moment of the machine affects both sides of a ratio."""
    return median(one / other for one, other in zip(values, base, strict=True)) if base else None


def overtaken(asked: Sequence[float], tolerance: float = 0) -> int:
    """How many were served after another one that had asked later by more than ``tolerance``. In order of grant."""
    latest, count = float("-inf"), 0
    for one in asked:
        if latest - one > tolerance:
            count += 1
        latest = max(latest, one)
    return count


def overtaking(asked: Sequence[float], tolerance: float = 0) -> int:
    """How many were served before another one that had asked earlier by more than ``tolerance``. In order of grant."""
    return overtaken([-one for one in reversed(asked)], tolerance)


def violations(sections: Sequence[Section]) -> int:
    """How many entered while another one was inside, according to the clock or the mark. Sorted by ``got``."""
    count, left = 0, float("-inf")
    for section in sections:
        if section.clash or section.got < left:
            count += 1
        left = max(left, section.leaving)
    return count


def handovers(sections: Sequence[Section]) -> list[float]:
    """Seconds from a release to the next entry, if that was by another process that had waited. Sorted by ``got``."""
    return [
        after.got - before.leaving
        for before, after in pairwise(sections)
        if after.who != before.who and after.asked < before.leaving
    ]


def kept(sections: Sequence[Section]) -> float | None:
    """The share of sections of the same process as the one before: high if a process hogs the lock. Sorted by
    ``got``."""
    same = [after.who == before.who for before, after in pairwise(sections)]
    return sum(same) / len(same) if same else None


def by_name(sections: Sequence[Section]) -> list[list[Section]]:
    """The sections of each lock, in the same order."""
    found: dict[int, list[Section]] = defaultdict(list)
    for section in sections:
        found[section.name].append(section)
    return list(found.values())


def order(sections: Sequence[Section], tolerance: float) -> Figures:
    """How many jumped the queue: by the time of the requests (for all locks), and exactly, in the server's order
    (ours).

    If a process hogs the lock, many overtake and few are overtaken; a lock that keeps the order has none of either.
    """
    before = after = inversions = numbered = 0
    for one in by_name(sections):
        asked = [section.asked for section in sorted(one, key=lambda section: section.got)]
        drawn = sorted((s.fence, s.ticket) for s in one if s.fence is not None and s.ticket is not None)
        before += overtaking(asked, tolerance)
        after += overtaken(asked, tolerance)
        inversions += overtaking([ticket for _, ticket in drawn])
        numbered += len(drawn)
    return {
        "inversions_percent": _percent(before, len(sections)),
        "overtaken_percent": _percent(after, len(sections)),
        "inversions_in_server_order_percent": _percent(inversions, numbered),
        "inversions_in_server_order": inversions if numbered else None,
        "numbered": numbered,
    }


def shares(sections: Sequence[Section], processes: int) -> list[int]:
    """How many sections each process had."""
    counts: Mapping[int, int] = Counter(section.who for section in sections)
    return [counts.get(who, 0) for who in range(processes)]


def scatter(offsets: Sequence[float]) -> float:
    """By how many seconds the time from reading a clock here to the server may vary: p99 minus the minimum."""
    return (percentile(offsets, 99) or 0.0) - min(offsets, default=0.0)


def _percent(count: int, of: int) -> float | None:
    return 100 * count / of if of else None
