"""What workers recorded, and what must be true of it. All times are of CLOCK_MONOTONIC, one clock for all processes.

A worker writes one line for each thing that happens to it: ``time event number ...``, where ``number`` tells its
critical sections from one another. What counts is what it believes: a hold begins when ``acquire()`` has returned True,
and lasts until the last moment at which the worker's lock told it that it was not lost.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from pathlib import Path
from sys import intern
from typing import NamedTuple

LEFT_FREE = 1.5  # seconds for which a lock may be free though somebody waits for it, when nothing is wrong anywhere
LEFT_FREE_IF_BUSY = 3.0  # the same on a busy machine
GRACE = 0.8  # seconds past its deadline in which a worker waits for an answer
LEFT_FOR = 5.0  # seconds after which everything that had to be released in the background is released


@dataclass(slots=True)
class Section:
    """One use of a lock by one thread or task, from the request to the end."""

    process: str
    number: int
    name: str
    asked: float
    timeout: float | None  # seconds; None: it waits without end
    token: str | None = None  # the token that was given
    limit: int = 0  # how many may hold it at once, as it has said; 0: it is a lock
    got: float = 0.0  # 0: never
    fence: int = 0  # -1: it has none, as it is one of old code
    # None: it never queued. 0: its request was repeated, and may have queued unseen; or it polled for a permit, and
    # while one was kept for it, others got the next ones
    ticket: int | None = None
    held: float = 0.0  # when it was last sure that it held the lock; 0: never
    left: float = 0.0  # seconds of lease that it had then
    told: float | None = None  # when it was told that the lock is lost
    finished: float | None = None
    # released, presumed (the release was repeated and found nothing: its first try may have succeeded), lost,
    # unavailable, timeout, refused, interrupted (an exception from outside, at any moment); anything else is an error
    outcome: str = ""

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


class Violation(NamedTuple):
    kind: str
    what: str


@dataclass
class History:
    sections: list[Section] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)  # killed processes
    failures: list[Violation] = field(default_factory=list)  # what the locks logged as errors
    counter: Callable[[str], object] = lambda name: None  # the counter that the fences of a lock come from
    until: float = 0.0  # when it was read, if workers went on
    # seconds without trouble within which a waiter must have got its lock, whatever went wrong before
    late: float = 5.5
    busy: bool = False  # others may take the processors for a while, so that Redis answers late
    # of a semaphore, by the second: how many could hold it, as whoever has asked until then has said
    _limits: dict[str, dict[int, int]] = field(default_factory=dict)
    # the sections with a token, by lock and token
    _bearers: dict[tuple[str, str | None], list[Section]] = field(default_factory=lambda: defaultdict(list))
    # when troubles begin, and until when any that have begun by then last, by process
    _known: dict[str | None, tuple[list[float], list[float]]] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """The logs in a folder, one file for each process, called like it."""
        for path in sorted(folder.glob("*.log")):
            complete, _, _ = path.read_text().rpartition("\n")  # the last line may be incomplete
            self.add(path.stem, complete.splitlines())

    def add(self, process: str, lines: Iterable[str]) -> None:
        found: dict[str, Section] = {}
        for line in lines:
            time, event, number, *words = f"{line} ".split(" ")
            now, words = float(time), words[:-1]
            if event == "failure":
                self.failures.append(Violation("error", f"{process}: {line}"))
            elif event == "stall":
                self.troubles.append(Trouble(float(number), now, process))
            elif event == "ask":
                name, timeout, token, limit = words
                seconds = None if timeout == "None" else float(timeout)
                found[number] = section = Section(process, int(number), intern(name), now, seconds, limit=int(limit))
                if token != "None":
                    section.token = intern(token)
                    self._bearers[section.name, section.token].append(section)
            elif number not in found:
                continue  # it was interrupted before it could ask
            elif event == "got":
                section = found[number]
                section.got, section.fence = now, int(words[0])
                section.ticket = None if words[1] == "None" else int(words[1])
            elif event == "holds":
                found[number].held, found[number].left = now, float(words[0])
            elif event == "told":
                found[number].told = now
            else:
                found[number].finished, found[number].outcome = now, intern(" ".join(words))
        self.sections += found.values()

    def check(self) -> list[Violation]:
        return self.failures + [violation for check in _CHECKS for violation in check(self)]

    @property
    def obtained(self) -> list[Section]:
        return [section for section in self.sections if section.got]

    @property
    def held(self) -> list[Section]:
        return [section for section in self.sections if section.held]

    def crowds(self) -> Iterator[tuple[list[tuple[Section, Section]], int, float]]:
        """When too many held a lock or semaphore at once: the last one paired with each of the others, the one with the
        lower fence first; how many could hold it; and for how long there were more."""
        for sections in by_name(self.held):
            active: list[Section] = []
            for section in sorted(sections, key=lambda one: one.got):
                active = [other for other in active if other.held > section.got]
                if active and len(active) >= (most := self.most(section)):
                    pairs = [sorted((other, section), key=lambda one: one.fence) for other in active]
                    ends = sorted(one.held for one in (*active, section))
                    yield [(first, second) for first, second in pairs], most, ends[-1 - most] - section.got
                active.append(section)

    def takeovers(self) -> int:
        """How often a lock went from one process to another."""
        return sum(
            before.process != after.process
            for sections in by_name(self.obtained)
            for before, after in pairwise(sorted(sections, key=lambda one: one.fence))
        )

    def longest_overlap(self) -> float:
        return max((over for _, _, over in self.crowds()), default=0.0)

    def most(self, section: Section) -> int:
        """How many could hold it at once when this section got it. The limit then was that of its own request, or of a
        later one, which may have arrived late."""
        if not section.limit:
            return 1
        if section.name not in self._limits:
            limits = self._limits[section.name] = dict[int, int]()
            for one in self.sections:
                if one.name == section.name:
                    end = one.finished or one.held or one.got or one.asked
                    for second in range(int(one.asked), int(end + LEFT_FOR) + 1):
                        limits[second] = max(one.limit, limits.get(second, 0))
        limits = self._limits[section.name]
        return max(limits.get(second, 0) for second in range(int(section.asked), int(section.got) + 1))

    def gaps(self) -> Iterator[tuple[float, float, str]]:
        """(begin, end, name): when nobody was sure to hold a lock, or not as many as could a semaphore whatever its
        limit was, although somebody who is alive, or got it later, waited for it."""
        for sections in by_name(self.sections):
            changes: list[tuple[float, int, int]] = []  # (when, holders, waiters)
            for section in sections:
                if section.got:
                    changes += [(section.got, 1, 0), (section.held or section.got, -1, 0)]
                end = section.got or (None if section.process in self.dead else section.finished or self.until)
                if end and section.timeout is None:
                    changes += [(section.asked, 0, 1), (end, 0, -1)]
            holders, waiters, most = 0, 0, min(section.limit for section in sections) or 1
            began: float | None = None
            for when, held, waited in sorted(changes):
                holders, waiters = holders + held, waiters + waited
                free = holders < most and waiters > 0
                if free and began is None:
                    began = when
                elif not free and began is not None:
                    yield began, when, sections[0].name
                    began = None
            if began is not None:
                yield began, max(changes)[0], sections[0].name

    def longest_gap(self) -> float:
        return max((end - begin for begin, end, _ in self.gaps()), default=0.0)

    def forgot(self, begin: float, end: float) -> bool:
        return any(one.forgets and one.begin <= end and begin <= one.end for one in self.troubles)

    def adopted(self, first: Section, second: Section) -> bool:
        """Whether the second may have adopted what the first left behind, or seemed to leave: a lock, or its turn."""
        same = first.name == second.name and first.token == second.token is not None
        left = first.outcome in ("interrupted", "unavailable", "refused", "presumed")
        return same and (left or self.troubled(first.asked, second.got or second.asked, first.process))

    def superseded(self, first: Section, second: Section) -> bool:
        """Whether the second may have got the lock while the first had it: Redis forgot the first, or the second or
        somebody who has come and gone since adopted what that one left."""
        return (
            self.forgot(first.asked, second.got)
            or self.adopted(first, second)
            or any(
                other is not first and self.adopted(first, other)
                for other in self._bearers.get((first.name, first.token), ())
                if other.asked < second.got and (other.finished is None or other.finished > first.asked)
            )
        )

    def adoptions(self) -> Iterator[tuple[Section, Section]]:
        for sections in self._bearers.values():
            former: list[Section] = []
            for section in sorted(sections, key=lambda one: one.asked):
                if section.got:
                    former = [one for one in former if (one.finished or inf) > section.asked - LEFT_FOR]
                    yield from ((one, section) for one in former if self.adopted(one, section))
                former.append(section)

    def troubled(self, begin: float, end: float, process: str | None = None) -> bool:
        """Whether something was wrong at that time: with this process, with all, or (None) with any."""
        if process not in self._known:
            times = sorted(one[:2] for one in self.troubles if process is None or one.process in (None, process))
            self._known[process] = [since for since, _ in times], [*accumulate((over for _, over in times), max)]
        begins, ends = self._known[process]
        later = bisect_right(begins, end)
        return later > 0 and ends[later - 1] >= begin


def by_name(sections: Iterable[Section]) -> Iterable[list[Section]]:
    names: dict[str, list[Section]] = defaultdict(list)
    for section in sections:
        names[section.name].append(section)
    return names.values()


def _overlaps(history: History) -> Iterator[Violation]:
    """No more hold at once than may, unless the later ones superseded others; then those were told."""
    for pairs, most, seconds in history.crowds():
        hold = [pair for pair in pairs if not _replaced(history, *pair)]
        if len(hold) >= most:
            yield Violation("overlap", f"{hold}, of whom {most} may hold it, for {seconds * 1000:.3f} ms")


def _replaced(history: History, first: Section, second: Section) -> bool:
    told = first.warned or first.process in history.dead
    return told and history.superseded(first, second) and first.fence != second.fence


def _fences(history: History) -> Iterator[Violation]:
    """Fences grow strictly in the order of holding, and none is used twice."""
    fences: dict[tuple[object, int], Section] = {}
    for section in history.obtained:
        if section.fence < 0:
            continue
        other = fences.setdefault((history.counter(section.name), section.fence), section)
        if other is not section:
            yield Violation("fence", f"{other} and {section} have the same")
    for sections in by_name(one for one in history.held if one.fence >= 0):
        for before, after in pairwise(sorted(sections, key=lambda one: one.got)):
            # the later one may have been superseded before it knew of its grant. Who gets permits of a semaphore at
            # once may learn of it in any order
            at_once = after.limit and after.asked < before.got
            if after.fence < before.fence and not at_once and not history.superseded(after, before):
                yield Violation("fence", f"{before}, and then {after}")


def _order(history: History) -> Iterator[Violation]:
    """Whoever asked first got the lock first, except those that adopted a lock that somebody had left behind."""
    adopters = {id(second) for _, second in history.adoptions()}
    known = [one for one in history.obtained if one.ticket != 0 and id(one) not in adopters]
    for sections in by_name(known):
        last, latest = None, 0
        for section in sorted(sections, key=lambda one: one.fence):
            # the order in which requests reached Redis: tickets and fences are drawn from one counter
            place = section.ticket or section.fence
            if place >= latest:
                last, latest = section, place
            elif not history.troubled(section.asked, section.got, section.process):
                yield Violation("order", f"{section} was overtaken by {last}")


def _ends(history: History) -> Iterator[Violation]:
    """Every section ends as it should: it got the lock, or gave up in time, or had a reason to fail."""
    for one in history.sections:
        wrong, end = one.outcome, one.finished or one.asked
        if wrong == "":
            wrong = "" if one.process in history.dead else "forgotten"
        elif wrong == "timeout":
            wrong = "" if one.timeout is not None and end >= one.asked + one.timeout else "early"
        elif wrong in ("refused", "unavailable", "presumed"):
            since = one.held if one.held and wrong == "presumed" else one.asked
            waits = inf if one.timeout is None else one.timeout
            late = history.busy and wrong == "refused" and end >= one.asked + waits + GRACE
            wrong = "" if late or history.troubled(since, end, one.process) else wrong
        else:
            wrong = "" if wrong in ("released", "lost", "interrupted") else "error"
        if wrong:
            yield Violation(wrong, str(one))


def _lost_early(history: History) -> Iterator[Violation]:
    """Nobody loses a lock within its lease, unless Redis forgot it, or the holder seemed dead to one with its token."""
    adopted = {id(first) for first, _ in history.adoptions()}
    for section in history.held:  # who was never sure of its lock learned of the grant at the end of its lease
        lost = section.told or (section.finished if section.outcome == "lost" else None)
        if lost is None or lost >= section.held + section.left or id(section) in adopted:
            continue
        if not history.forgot(section.asked, lost):
            yield Violation("lost_early", str(section))


def _left_free(history: History) -> Iterator[Violation]:
    """No lock stays free while somebody waits for it, if nothing is wrong anywhere; nor for long once that is over."""
    for begin, end, name in history.gaps():
        most = LEFT_FREE_IF_BUSY if history.busy else LEFT_FREE
        for seconds, since in ((most, begin), (history.late, end - history.late)):
            if end - begin > seconds and not history.troubled(since, end):
                yield Violation("left_free", f"nobody held {name} for {end - begin:.3f} s")
                break


_CHECKS = (_overlaps, _fences, _order, _ends, _lost_early, _left_free)
