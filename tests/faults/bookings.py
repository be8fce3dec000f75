"""What bookers recorded of their transactions, and what must be true of that if the lock is fenced.

A booker writes one line for each thing that happens: ``time event number ...``, where ``number`` tells its sections
from one another, and the time is that of CLOCK_MONOTONIC, one clock for all processes. Each COMMIT that the database
has answered adds one to a balance, so the value that it wrote is its place in the order of commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from sys import intern

from .history import Violation


@dataclass(slots=True)
class Booking:
    """One section under the lock of an account, from the moment when its holder believed that it had the lock."""

    process: str
    number: int
    name: str
    asked: float
    entered: float
    claimed: float | None = None  # when claim() had returned
    fence: int = 0
    sent: float | None = None  # just before its COMMIT
    committed: float | None = None  # when the database had answered that
    wrote: int = 0
    error: str = ""  # the class of the exception that was raised, instead of the commit or after it


@dataclass
class Bookings:
    """All that happened in one run."""

    all: list[Booking] = field(default_factory=list)
    failures: list[Violation] = field(default_factory=list)  # what the locks logged as errors

    def read(self, folder: Path) -> None:
        """Read the logs in a folder: one file for each process, with its name."""
        for path in sorted(folder.glob("*.log")):
            found: dict[int, Booking] = {}
            for line in path.read_text().splitlines():
                time, event, *words = line.split(" ")
                if event == "failure":
                    self.failures.append(Violation("error", f"{path.stem}: {' '.join(words)}"))
                    continue
                number, now = int(words[0]), float(time)
                if event == "entered":
                    found[number] = Booking(path.stem, number, intern(words[1]), float(words[2]), now)
                elif event == "claimed":
                    found[number].claimed, found[number].fence = now, int(words[1])
                elif event == "committed":
                    one = found[number]
                    one.committed, one.wrote, one.sent = now, int(words[1]), float(words[2])
                elif number in found:  # otherwise it never had the lock
                    found[number].error = intern(words[1])
            self.all += found.values()

    @property
    def committed(self) -> list[Booking]:
        return [one for one in self.all if one.committed is not None]

    @property
    def refused(self) -> int:
        """Sections that raised an error instead of committing: nothing of them is in the database."""
        return len(self.all) - len(self.committed)

    @property
    def told(self) -> int:
        """Sections that raised an error after the commit, too late to undo anything."""
        return sum(bool(one.error) for one in self.committed)

    def longest_wait(self) -> float:
        return max((one.entered - one.asked for one in self.all), default=0.0)

    def lost(self, balances: Mapping[str, int]) -> int:
        """Commits that the final balances do not show."""
        return len(self.committed) - sum(balances.values())

    def check(self, balances: Mapping[str, int], fences: Mapping[str, int]) -> list[Violation]:
        """Everything that must not have happened. ``fences``: the final contents of the table of fences."""
        found = [*self.failures]
        by_name: dict[str, list[Booking]] = defaultdict(list)
        for one in self.committed:
            by_name[one.name].append(one)
        for name, bookings in by_name.items():
            bookings.sort(key=lambda one: one.wrote)
            found += [*_lost(bookings, balances[name]), *_unclaimed(bookings), *_order(bookings), *_overlaps(bookings)]
            found += _row(name, bookings, fences)
        return found


def _lost(bookings: list[Booking], balance: int) -> Iterator[Violation]:
    """Every commit has written a different value, and the last one is the balance."""
    for wrote, times in Counter(one.wrote for one in bookings).items():
        if times > 1:
            yield Violation("lost", f"{times} commits of {bookings[0].name} wrote {wrote}")
    if balance != bookings[-1].wrote:
        yield Violation("lost", f"{bookings[0].name} has {balance}, and {bookings[-1]} wrote more")


def _unclaimed(bookings: list[Booking]) -> Iterator[Violation]:
    """Nobody has committed without a claim."""
    for one in bookings:
        if one.claimed is None:
            yield Violation("unclaimed", str(one))


def _order(bookings: list[Booking]) -> Iterator[Violation]:
    """Commits come in the order of their fences, no two of which are the same."""
    for before, after in pairwise(bookings):
        if after.fence <= before.fence:
            yield Violation("order", f"{before}, and then {after}")


def _overlaps(bookings: list[Booking]) -> Iterator[Violation]:
    """From a claim until its COMMIT is sent, nobody else's claim succeeds."""
    times = sorted((one.claimed, one.sent) for one in bookings if one.claimed is not None and one.sent is not None)
    for (_, sent), (claimed, _) in pairwise(times):
        if claimed < sent:
            yield Violation("overlap", f"{bookings[0].name} was claimed at {claimed}, {sent - claimed:.6f} s too early")


def _row(name: str, bookings: list[Booking], fences: Mapping[str, int]) -> Iterator[Violation]:
    """The row in the table of fences is that of the highest fence that was committed."""
    highest, there = max(one.fence for one in bookings), fences.get(name)
    if there != highest:
        yield Violation("row", f"the fence of {name} is {there} in the table, and {highest} was committed")
