"""Processes that check members of one pool out and in again, as often as possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from django_redislock import LockPool

from .contenders import TTL, Entrant
from .figures import Figures, Section, percentile, violations
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

WARM_UP = 20  # check-outs

ROWS = (
    Row("per_second", "check-outs/s", "{:.0f}"),
    Row("round_trips", "round trips per check-out and -in", "{:.2f}"),
    Row("server_us", "server time for both, us", "{:.1f}"),
    Row("p50_ms", "a check-out, p50, ms", "{:.2f}"),
    Row("p99_ms", "a check-out, p99, ms", "{:.2f}"),
    Row("uses_min", "uses of a member: fewest", "{:d}"),
    Row("uses_median", "uses of a member: median", "{:g}"),
    Row("uses_max", "uses of a member: most", "{:d}"),
    Row("held_twice", "times that a member was held twice", "{:d}"),
)


class Desk(Entrant):
    """Where members of a pool are checked out and in."""

    key: ClassVar[str] = "LockPool"

    def __init__(self) -> None:
        self.pool = LockPool(f"bench-{self.key}")

    def fill(self, members: int) -> Any:
        return self.pool.assign(f"member-{number}" for number in range(members))

    def check_out(self) -> Any:
        return self.pool.acquire(ttl=TTL)

    def check_in(self, member: Any) -> Any:
        return member.release()


class AsyncDesk(Desk):
    """See Desk."""

    coroutines = True

    def fill(self, members: int) -> Awaitable[Any]:
        return self.pool.aassign(f"member-{number}" for number in range(members))

    def check_out(self) -> Awaitable[Any]:
        return self.pool.aacquire(ttl=TTL)

    def check_in(self, member: Any) -> Awaitable[Any]:
        return member.arelease()  # type: ignore[no-any-return]


KINDS = (Desk, AsyncDesk)


class Used(NamedTuple):
    turns: list[tuple[str, Section]]  # with the member's key
    troubles: list[str]


def use(worker: Worker, kind: type[Desk], members: int, hold: float, seconds: float) -> Routine[Used]:
    """Check out and in for ``seconds``. The first process fills the pool; the others wait for its members."""
    desk = kind()
    turns: list[tuple[str, Section]] = []

    def turn(hold: float) -> Routine[tuple[str, Section]]:
        asked = monotonic()
        member = yield (desk.check_out,)
        got = monotonic()
        if hold:
            yield worker.runner.sleep, hold
        section = Section(worker.number, asked, got, monotonic(), False)
        yield desk.check_in, member
        return member.key, section

    if worker.number == 0:
        yield desk.fill, members
    for _ in range(WARM_UP):
        yield from turn(0)
    yield worker.ready()
    end = monotonic() + seconds
    while monotonic() < end:
        turns.append((yield from turn(hold)))
    return Used(turns, worker.troubles.copy())


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Desk]],
    *,
    procs: int,
    members: int,
    hold_ms: float,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``seconds`` with fresh processes for each."""
    figures: dict[str, Figures] = {}
    for key, kind in kinds.items():
        tell(key)
        observer.flush()
        with start_workers(procs) as workers:
            answers = workers.call(
                use, kind, members, hold_ms / 1000, seconds, seconds=seconds, when_ready=observer.reset
            )
            statistics = observer.read()
        uses: dict[str, list[Section]] = defaultdict(list)
        for answer in answers:
            for member, section in answer.turns:
                uses[member].append(section)
        sections = [section for log in uses.values() for section in log]
        counts = [len(log) for log in uses.values()] + [0] * (members - len(uses))
        waits = [(section.got - section.asked) * 1000 for section in sections]
        began = min(section.asked for section in sections)
        figures[key] = {
            "check_outs": len(sections),
            "per_second": len(sections) / (max(section.leaving for section in sections) - began),
            "round_trips": statistics.requests / len(sections),
            "server_us": statistics.commands["evalsha"].us / len(sections),
            "p50_ms": percentile(waits, 50),
            "p99_ms": percentile(waits, 99),
            "uses_min": min(counts),
            "uses_median": median(counts),
            "uses_max": max(counts),
            "held_twice": sum(violations(sorted(log, key=lambda section: section.got)) for log in uses.values()),
            "troubles": dict(Counter(text for answer in answers for text in answer.troubles)),
        }
    return figures
