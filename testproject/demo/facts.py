"""The result of a sale, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf


def count_inversions(turns: Iterable[tuple[int, int]]) -> int:
    """How many were served while another one that had asked earlier was still waiting; turns are (asked, served)."""
    count, first_waiting = 0, inf
    for asked, _ in sorted(turns, key=lambda turn: turn[1], reverse=True):
        count += asked > first_waiting
        first_waiting = min(first_waiting, asked)
    return count


def percentile(sorted_values: list[float], percent: float) -> float | None:
    """The nearest-rank percentile; None if there are no values."""
    if not sorted_values:
        return None
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]


@dataclass
class Facts:
    """One line of the table."""

    title: str
    locked: bool
    ours: bool
    seats: int
    remaining: int  # seats, according to the shop
    requests: int  # to buy a seat
    sold: int  # orders in the database
    sold_out: int
    refused: int  # with 423
    charged_twice: int
    pay_refused: int  # with 423
    inversions: int | None = None  # None: nobody queued
    queued: int = 0  # of those who were served
    waits: list[float] = field(default_factory=list)  # seconds, sorted; of all that got the lock
    errors: list[str] = field(default_factory=list)
    listing: str = ""

    @property
    def oversold(self) -> int:
        return max(0, self.sold - self.seats)

    def problems(self) -> list[str]:
        """Why the demo has failed in this sale, if it has. Without a lock, overselling is expected."""
        found = []
        if self.locked:
            if self.oversold:
                found.append(f"oversold {self.oversold} seats")
            if self.remaining != self.seats - self.sold:
                found.append(
                    f"sold {self.sold} of {self.seats} seats, yet the shop counts {self.remaining} as left: "
                    f"two buyers were inside at once"
                )
            if self.charged_twice:
                found.append(f"charged {self.charged_twice} orders twice")
            if not self.errors and len(self.waits) != self.sold + self.sold_out:
                found.append(f"only {len(self.waits)} of {self.sold + self.sold_out} told when they asked for the lock")
        if self.ours and self.inversions:
            found.append(f"{self.inversions} buyers were served while one that had asked earlier still waited")
        if self.errors:
            found.append(f"{len(self.errors)} requests failed, the first with: {self.errors[0]}")
        return [f"{self.title}: {problem}." for problem in found]
