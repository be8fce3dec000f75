"""Computes figures from the log of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from statistics import median, quantiles
from typing import Any, NamedTuple

Figures = dict[str, Any]
"""One contender's figures by name; None where a figure does not apply."""


class Section(NamedTuple):
    """One acquisition. Times are of CLOCK_MONOTONIC, which all processes of a machine share."""

    who: int  # the number of the process
    name: int  # the number of the lock
    asked: float  # just before the lock object was made
    got: float
    leaving: float  # just before the release
    clash: bool = False  # another worker's mark was in the shared memory
    ticket: int | None = None  # ours only: the place in the queue, in the server's order
    fence: int | None = None


def percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def median_ratio(values: Sequence[float], base: Sequence[float] | None) -> float | None:
    """The median of the ratios of the rounds: a slow moment of the machine affects both sides of a ratio."""
    return median(one / other for one, other in zip(values, base, strict=True)) if base else None


def overtaking(asked: Sequence[float], tolerance: float = 0) -> int:
    """How many were served before another one that had asked earlier by more than ``tolerance``. In order of grant."""
    count, earliest = 0, inf
    for one in reversed(asked):
        count += one - earliest > tolerance
        earliest = min(earliest, one)
    return count


def by_name(sections: Sequence[Section]) -> list[list[Section]]:
    """The sections of each lock, in the order in which they got it."""
    found: dict[int, list[Section]] = defaultdict(list)
    for section in sorted(sections, key=lambda section: section.got):
        found[section.name].append(section)
    return list(found.values())


def violations(sections: Sequence[Section], limit: int = 1) -> int:
    """How many entered while so many others were inside, according to the clock or (if it was one) the mark."""
    count = 0
    for one in by_name(sections):
        latest = [-inf] * limit  # when they leave: as many may be inside
        for section in one:
            count += (section.clash and limit == 1) or section.got < latest[0]
            latest = sorted([*latest, section.leaving])[1:]
    return count


def handovers(sections: Sequence[Section]) -> list[float]:
    """Seconds from a release to the next entry, if that was by another process that had waited."""
    return [
        after.got - before.leaving
        for one in by_name(sections)
        for before, after in pairwise(one)
        if after.who != before.who and after.asked < before.leaving
    ]


def order(sections: Sequence[Section], offsets: Sequence[float]) -> Figures:
    """How many jumped the queue: by the time of the requests (for all locks), and exactly, in the server's order
    (ours).

    ``offsets``: of the server's clock; they tell by how much the time from reading a clock here to the server varies.
    """
    tolerance = (percentile(offsets, 99) or 0.0) - min(offsets)
    by_time = by_ticket = numbered = 0
    for one in by_name(sections):
        drawn = sorted((s.fence, s.ticket) for s in one if s.fence is not None and s.ticket is not None)
        # in the order of grants, which of those at the same time only a fence tells
        granted = sorted(one, key=lambda section: section.fence or section.got)
        by_time += overtaking([section.asked for section in granted], tolerance)
        by_ticket += overtaking([ticket for _, ticket in drawn])
        numbered += len(drawn)
    return {
        "inversions_percent": 100 * by_time / len(sections) if sections else None,
        "inversions_in_server_order": by_ticket if numbered else None,
        "numbered": numbered,
        "order_tolerance_ms": tolerance * 1000,
    }
