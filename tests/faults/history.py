"""What workers recorded, and what must be true of it. All times are of CLOCK_MONOTONIC, one clock for all processes.

A worker writes one line for each thing that happens to it: ``time event number ...``, where ``number`` tells its
critical sections from one another. What counts is what it believes: a hold begins when ``acquire()`` has returned True,
and lasts until the last moment at which the worker's lock told it that it was not lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from sys import intern
from typing import NamedTuple

LEFT_FREE = 1.5  # seconds for which a lock may be free though somebody waits for it, when nothing is wrong anywhere
LEFT_FOR = 5.0  # seconds after which everything that had to be released in the background is released


@dataclass(slots=True)
class Section:
    """One use of a lock by one thread or task, from the request to the end."""

    process: str
    number: int
    name: str
    asked: float
    timeout: float | None  # seconds; None: it waits without end
    token: str = "None"  # the token that was given; "None": no token
    got: float | None = None
    fence: int = 0
    ticket: int | None = None  # None: it never queued; 0: its request was repeated, and may have queued unseen
    held: float | None = None  # when it was last sure that it held the lock
    left: float = 0.0  # seconds of lease that it had then
    told: float | None = None  # when it was told that the lock is lost
    finished: float | None = None
    # released, presumed (the release was repeated and found nothing: its first try may have succeeded), lost,
    # unavailable, timeout, refused, interrupted (an exception from outside, at any moment); anything else is an error
    outcome: str = ""

    def __str__(self) -> str:
        return (
            f"{self.process}/{self.number} {self.name} token={self.token} asked={self.asked:.3f} "
            f"timeout={self.timeout} got={self.got} fence={self.fence} ticket={self.ticket} "
            f"{self.finished} {self.outcome}"
        )

    @property
    def place(self) -> int:
        """Its place in the order in which requests reached Redis: tickets and fences are drawn from one counter."""
        return self.fence if self.ticket is None else self.ticket

    @property
    def warned(self) -> bool:
        """Whether the holder was told before it considered its work done, or could not know."""
        return self.told is not None or self.outcome in ("lost", "unavailable", "presumed", "interrupted", "")


class Trouble(NamedTuple):
    """A fault of one process or (None) of all; ``forgets``: Redis may have lost what it acknowledged."""

    begin: float
    end: float
    process: str | None = None
    forgets: bool = False

    def meets(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end


class Violation(NamedTuple):
    """``kind``: overlap, fence, order, forgotten, lost_early, refused, early, presumed, left_free, error, or left (keys
    that are left in Redis)."""

    kind: str
    what: str


@dataclass
class History:
    """All that happened in one run."""

    sections: list[Section] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)  # killed processes
    failures: list[Violation] = field(default_factory=list)  # what the locks logged as errors
    counter: Callable[[str], object] = lambda name: None  # the counter that the fences of a lock come from
    # seconds without trouble within which a waiter must have got its lock, whatever went wrong before
    late: float = 5.5
    # the sections with a token, by lock and token, as a search through all sections would take too long
    _bearers: dict[tuple[str, str], list[Section]] = field(default_factory=lambda: defaultdict(list), repr=False)
    # by process and number of troubles so far, see _periods()
    _known_periods: dict[tuple[str | None, int], list[tuple[float, float]]] = field(default_factory=dict, repr=False)

    def read(self, folder: Path) -> None:
        """The logs in a folder, one file for each process, called like it."""
        for path in sorted(folder.glob("*.log")):
            with path.open() as lines:
                # the last line may be incomplete while its process lives
                self.add(path.stem, (line.rstrip("\n") for line in lines if line.endswith("\n")))

    def add(self, process: str, lines: Iterable[str]) -> None:
        found: dict[int, Section] = {}
        for line in lines:
            time, event, *words = line.split(" ")
            if event == "bye":
                continue
            now = float(time)
            if event == "failure":
                self.failures.append(Violation("error", f"{process}: {' '.join(words)}"))
                continue
            if event == "stall":
                self.troubles.append(Trouble(float(words[0]), now, process))
                continue
            number = int(words[0])
            if event == "ask":
                timeout = None if words[2] == "None" else float(words[2])
                found[number] = Section(process, number, intern(words[1]), now, timeout, intern(words[3]))
                continue
            section = found.get(number)
            if section is None:
                continue  # it was interrupted before it could ask
            if event == "got":
                section.got, section.fence = now, int(words[1])
                section.ticket = None if words[2] == "None" else int(words[2])
            elif event == "holds":
                section.held, section.left = now, float(words[1])
            elif event == "told":
                section.told = now
            else:
                section.finished, section.outcome = now, intern(" ".join(words[1:]))
        self.sections += found.values()
        for section in found.values():
            if section.token != "None":
                self._bearers[section.name, section.token].append(section)

    def check(self) -> list[Violation]:
        """Everything that must not have happened."""
        return self.failures + [violation for check in _CHECKS for violation in check(self)]

    # -- figures ----------------------------------------------------------------------------------------------------

    def count(self, *outcomes: str) -> int:
        return sum(section.outcome in outcomes for section in self.sections)

    @property
    def obtained(self) -> list[Section]:
        return [section for section in self.sections if section.got is not None]

    def by_name(self, sections: Iterable[Section]) -> Iterable[list[Section]]:
        names: dict[str, list[Section]] = defaultdict(list)
        for section in sections:
            names[section.name].append(section)
        return names.values()

    def longest_overlap(self) -> float:
        """The longest time in seconds for which two believed at once that they held a lock."""
        return max((over for _, _, over in self.overlaps()), default=0.0)

    def overlaps(self) -> Iterator[tuple[Section, Section, float]]:
        """Pairs that held a lock at once, the one with the lower fence first, and for how long."""
        sure = [section for section in self.sections if section.held is not None]
        for sections in self.by_name(sure):
            active: list[Section] = []
            for section in sorted(sections, key=_got):
                active = [other for other in active if _held(other) > _got(section)]
                for other in active:
                    first, second = sorted((other, section), key=lambda one: one.fence)
                    yield first, second, min(_held(first), _held(second)) - _got(section)
                active.append(section)

    def gaps(self) -> Iterator[tuple[float, float, str]]:
        """(begin, end, name): when nobody was sure to hold a lock although somebody who is alive, or got it later,
        waited for it."""
        for sections in self.by_name(self.sections):
            changes: list[tuple[float, int, int]] = []  # (when, holders, waiters)
            for section in sections:
                lives = section.process not in self.dead
                if section.got is not None:
                    changes += [(section.got, 1, 0), (section.held or section.got, -1, 0)]
                end = section.got or section.finished
                if end is not None and (lives or section.got) and section.timeout is None:
                    changes += [(section.asked, 0, 1), (end, 0, -1)]
            changes.sort()
            holders = waiters = 0
            began: float | None = None
            for when, held, waited in changes:
                holders, waiters = holders + held, waiters + waited
                free = holders == 0 and waiters > 0
                if free and began is None:
                    began = when
                elif not free and began is not None:
                    yield began, when, sections[0].name
                    began = None

    def longest_gap(self) -> float:
        """The longest time in seconds for which nobody held a lock though somebody waited for it."""
        return max((end - begin for begin, end, _ in self.gaps()), default=0.0)

    # -- excuses ----------------------------------------------------------------------------------------------------

    def forgot(self, begin: float, end: float) -> bool:
        return any(trouble.forgets and trouble.meets(begin, end) for trouble in self.troubles)

    def adopted(self, first: Section, second: Section) -> bool:
        """Whether the second may have adopted what the first left behind, or seemed to leave: a lock, or its turn."""
        same = first.name == second.name and first.token == second.token != "None"
        left = first.outcome in ("interrupted", "unavailable", "refused", "presumed")
        came = second.asked if second.got is None else second.got
        return same and (left or self.troubled(first.asked, came, first.process))

    def adopted_between(self, first: Section, second: Section) -> bool:
        """Whether somebody may have adopted what the first left, and released it before the second came."""
        return any(
            other is not first and self.adopted(first, other)
            for other in self._bearers.get((first.name, first.token), ())
            if other.asked < _got(second) and (other.finished is None or other.finished > first.asked)
        )

    def adoptions(self) -> Iterator[tuple[Section, Section]]:
        """All pairs (first, second) that may be an adoption."""
        with_token = (section for section in self.sections if section.token != "None")
        for sections in self.by_name(with_token):
            earlier: dict[str, list[Section]] = defaultdict(list)
            for section in sorted(sections, key=lambda one: one.asked):
                former = earlier[section.token]
                if section.got is not None:
                    former[:] = [one for one in former if (one.finished or section.asked) > section.asked - LEFT_FOR]
                    yield from ((one, section) for one in former if self.adopted(one, section))
                former.append(section)

    def quiet(self, begin: float, end: float) -> float:
        """For how many seconds of that time nothing was wrong anywhere."""
        wrong = (min(end, over) - max(begin, since) for since, over in self._periods(None))
        return end - begin - sum(seconds for seconds in wrong if seconds > 0)

    def troubled(self, begin: float, end: float, process: str | None = None) -> bool:
        """Whether something was wrong at that time: with this process, with all, or (None) with any."""
        periods = self._periods(process)
        later = bisect_right(periods, (end, inf))
        return later > 0 and periods[later - 1][1] >= begin

    def _periods(self, process: str | None) -> list[tuple[float, float]]:
        """Begin and end of each period in which something was wrong, in order and without overlaps."""
        key = process, len(self.troubles)
        if key not in self._known_periods:
            periods: list[tuple[float, float]] = []
            for trouble in sorted(self.troubles, key=lambda one: one.begin):
                if process is None or trouble.process in (None, process):
                    if periods and trouble.begin <= periods[-1][1]:
                        periods[-1] = periods[-1][0], max(periods[-1][1], trouble.end)
                    else:
                        periods.append((trouble.begin, trouble.end))
            self._known_periods[key] = periods
        return self._known_periods[key]


def _got(section: Section) -> float:
    assert section.got is not None
    return section.got


def _held(section: Section) -> float:
    assert section.held is not None
    return section.held


def _overlaps(history: History) -> Iterator[Violation]:
    """No two hold at once, unless Redis forgot the first, or it seemed dead to one with its token; then it was told."""
    for first, second, seconds in history.overlaps():
        forgotten = (
            history.forgot(first.asked, _got(second))
            or history.adopted(first, second)
            or history.adopted_between(first, second)
        )
        told = first.warned or first.process in history.dead
        if not (forgotten and told) or first.fence == second.fence:
            yield Violation("overlap", f"{first} and {second} for {seconds * 1000:.3f} ms")


def _fences(history: History) -> Iterator[Violation]:
    """Fences grow strictly in the order of holding, and none is used twice."""
    fences: dict[tuple[object, int], Section] = {}
    for section in history.obtained:
        other = fences.setdefault((history.counter(section.name), section.fence), section)
        if other is not section:
            yield Violation("fence", f"{other} and {section} have the same")
    for sections in history.by_name(section for section in history.sections if section.held is not None):
        for before, after in pairwise(sorted(sections, key=_got)):
            # granted before Redis forgot it, or before another bearer of its token came, and known to its holder later
            late = (
                history.forgot(after.asked, _got(after))
                or history.adopted(after, before)
                or history.adopted_between(after, before)
            )
            if after.fence == before.fence or (after.fence < before.fence and not late):
                yield Violation("fence", f"{before}, and then {after}")


def _order(history: History) -> Iterator[Violation]:
    """Whoever asked first got the lock first, except those that adopted a lock that somebody had left behind."""
    adopters = {id(second) for _, second in history.adoptions()}
    for sections in history.by_name(section for section in history.obtained if id(section) not in adopters):
        last: Section | None = None
        known = [section for section in sections if section.ticket != 0]
        for section in sorted(known, key=lambda one: one.fence):
            if last is not None and section.place < last.place:
                if not history.troubled(section.asked, _got(section), section.process):
                    yield Violation("order", f"{section} was overtaken by {last}")
            else:
                last = section


def _ends(history: History) -> Iterator[Violation]:
    """Every section ends as it should: it got the lock, or gave up in time, or had a reason to fail."""
    for section in history.sections:
        if section.outcome == "" and section.process not in history.dead:
            yield Violation("forgotten", f"{section} asked at {section.asked}")
        elif section.outcome == "timeout":
            if section.timeout is None or (section.finished or 0.0) < section.asked + section.timeout:
                yield Violation("early", str(section))
        elif section.outcome in ("refused", "unavailable"):
            if not history.troubled(section.asked, section.finished or section.asked, section.process):
                yield Violation("refused", str(section))
        elif section.outcome == "presumed":
            if not history.troubled(section.held or section.asked, section.finished or section.asked, section.process):
                yield Violation("presumed", str(section))
        elif section.outcome not in ("", "released", "lost", "interrupted"):
            yield Violation("error", str(section))


def _lost_early(history: History) -> Iterator[Violation]:
    """Nobody loses a lock within its lease, unless Redis forgot it, or the holder seemed dead to one with its token."""
    adopted = {id(first) for first, _ in history.adoptions()}
    for section in history.obtained:
        if id(section) in adopted:
            continue
        lost = section.told or (section.finished if section.outcome == "lost" else None)
        # a holder that was never sure of its lock learned of the grant at the end of its lease
        if lost is None or section.held is None or lost >= section.held + section.left:
            continue
        if not history.forgot(section.asked, lost):
            yield Violation(
                "lost_early", f"{section}, {section.held + section.left - lost:.3f} s before its lease ended"
            )


def _left_free(history: History) -> Iterator[Violation]:
    """No lock stays free while somebody waits for it, if nothing is wrong anywhere; nor for long once that is over."""
    for begin, end, name in history.gaps():
        long = end - begin > LEFT_FREE and not history.troubled(begin, end)
        if long or (end - begin > history.late and history.quiet(begin, end) > history.late):
            yield Violation("left_free", f"nobody held {name} for {end - begin:.3f} s")


_CHECKS = (_overlaps, _fences, _order, _ends, _lost_early, _left_free)
