"""Processes that all acquire one lock, or one of several, again and again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from time import monotonic

from .contenders import (
    Contender,
    Floor,
    OurLock,
    OurPool,
    OurSemaphore,
    OurSemaphore5,
    PyRedisSemaphore,
    PythonRedisLock,
    RedisPy,
    ZsetSemaphore,
)
from .figures import Figures, Section, handovers, median_ratio, order, percentile, violations
from .report import Row
from .uncontended import measure as measure_alone
from .worker import Worker, clocks
from .workers import Bench, Turn, Workers

WARM_UP = 0.2  # seconds, after some names were locked once: connections, scripts, listeners
TOUCHED = 64  # names
CALIBRATION = 0.3  # seconds

KINDS = (Floor, RedisPy, PythonRedisLock, OurLock)
POOL_KINDS = (OurPool,)
SEMAPHORE_KINDS = (OurLock, OurSemaphore, OurSemaphore5, ZsetSemaphore, PyRedisSemaphore)
ROWS = (
    Row("sections_per_second", "sections/s", "{:.0f}"),
    Row("x_python_redis_lock", "sections/s / python-redis-lock", "{:.2f}"),
    Row("round_trips", "round trips per section", "{:.2f}"),
    Row("busiest_percent", "server time at the busiest node, %", "{:.1f}"),
    Row("server_cpu_us", "server CPU per section, us", "{:.1f}"),
    Row("handover_p50_ms", "hand-over p50, ms", "{:.2f}"),
    Row("handover_p99_ms", "hand-over p99, ms", "{:.2f}"),
    Row("wait_p99_ms", "wait p99, ms", "{:.2f}"),
    Row("wait_max_ms", "longest wait, ms", "{:.1f}"),
    Row("inversions_percent", "overtook somebody, by time of request, %", "{:.2f}"),
    Row("inversions_in_server_order", "the same in server order, number of sections", "{:d}"),
    Row("violations", "violations of exclusion", "{:d}"),
)
POOL_ROWS = (
    Row("sections_per_second", "check-outs/s", "{:.0f}"),
    Row("round_trips", "round trips per check-out and -in", "{:.2f}"),
    Row("uses_min", "uses of a member: fewest", "{:d}"),
    Row("uses_max", "uses of a member: most", "{:d}"),
    Row("violations", "times that a member was held twice", "{:d}"),
)
SEMAPHORE_ROWS = (
    Row("x_lock", "uncontended pair: time / Lock", "{:.2f}"),
    Row("sections_per_second", "contended: permits/s", "{:.0f}"),
    Row("round_trips", "round trips per section", "{:.2f}"),
    Row("server_us", "server time per section, us", "{:.1f}"),
    Row("wait_p99_ms", "wait p99, ms", "{:.2f}"),
    Row("wait_max_ms", "longest wait, ms", "{:.1f}"),
    Row("inversions_percent", "overtook somebody, by time of request, %", "{:.2f}"),
    Row("inversions_in_server_order", "the same in server order, number of sections", "{:d}"),
    Row("violations", "held by more than the limit", "{:d}"),
)


async def compete(worker: Worker, kind: type[Contender], names: int, hold: float, seconds: float) -> list[Section]:
    """Enter as often as possible for ``seconds``, each time under a random one of so many names."""
    contender = worker.one(kind)
    dice = random.Random(worker.number)
    await contender.prepare(names)
    for name in dice.sample(range(names), min(names, TOUCHED)):
        await worker.section(contender, name)
    end = monotonic() + WARM_UP
    while monotonic() < end:
        await worker.section(contender, dice.randrange(names))
    await worker.ready()
    log: list[Section] = []
    end = monotonic() + seconds
    while monotonic() < end:
        log.append(await worker.section(contender, dice.randrange(names), hold))
    return log


def measure(
    bench: Bench, *, procs: int = 8, names: int = 1, hold_ms: float = 0.0, seconds: float = 10.0, rounds: int = 3
) -> dict[str, Figures]:
    """Many processes on one lock, or on several, in ``rounds`` of ``seconds / rounds`` for each contender."""
    turns: dict[str, list[Turn]] = defaultdict(list)
    span = seconds / rounds
    with ExitStack() as stack:
        places = {kind.elsewhere for kind in bench.kinds.values()}
        groups = {place: stack.enter_context(Workers(bench, procs, names=names, elsewhere=place)) for place in places}
        bench.tell("the clocks")
        offsets = [one for result in groups[False].call("", clocks, 1, CALIBRATION).results for one in result]
        for key, kind in bench.turns(rounds):
            group = groups[kind.elsewhere]
            turns[key].append(group.call(key, compete, kind, names, hold_ms / 1000, span, seconds=span))
    logs = {key: [[one for log in turn.results for one in log] for turn in found] for key, found in turns.items()}
    speeds = {key: [_speed(log, span) for log in found] for key, found in logs.items()}
    figures: dict[str, Figures] = {}
    for key, kind in bench.kinds.items():
        log = [section for one in logs[key] for section in one]
        counts = [turn.statistics for turn in turns[key]]
        waits = [(section.got - section.asked) * 1000 for section in log]
        gaps = [gap * 1000 for gap in handovers(log)]
        of_nodes = [sum(each) for each in zip(*(one.server_us(kind) for one in counts), strict=True)]
        uses = Counter(dict.fromkeys(range(names), 0))
        uses.update(section.name for section in log)
        figures[key] = {
            "sections": len(log),
            "sections_per_second": median(speeds[key]),
            "x_python_redis_lock": median_ratio(speeds[key], speeds.get("python-redis-lock")),
            "round_trips": sum(one.requests for one in counts) / len(log),
            "busiest_percent": 100 * max(of_nodes) / sum(of_nodes),
            "server_us": sum(of_nodes) / len(log),
            "server_cpu_us": sum(one.cpu for one in counts) / len(log) * 1e6,
            "handover_p50_ms": percentile(gaps, 50),
            "handover_p99_ms": percentile(gaps, 99),
            "wait_p99_ms": percentile(waits, 99),
            "wait_max_ms": max(waits),
            "uses_min": min(uses.values()),
            "uses_max": max(uses.values()),
            **order(log, offsets),
            "violations": violations(log, kind.limit),
        }
    return figures


def measure_pool(
    bench: Bench, *, procs: int = 50, members: int = 1000, hold_ms: float = 0.0, seconds: float = 10.0
) -> dict[str, Figures]:
    """Many processes check the members of a pool out and in: a section is what is done with a member."""
    return measure(bench, procs=procs, names=members, hold_ms=hold_ms, seconds=seconds, rounds=1)


def measure_semaphore(
    bench: Bench, *, procs: int = 8, hold_ms: float = 0.0, seconds: float = 10.0, rounds: int = 3
) -> dict[str, Figures]:
    """Many processes on one semaphore with 1 or 5 permits, beside Lock; and one process alone, for as long."""
    alone = measure_alone(bench, seconds=seconds)
    found = measure(bench, procs=procs, hold_ms=hold_ms, seconds=seconds, rounds=rounds)
    return {key: {**figures, "x_lock": alone[key]["x_lock"]} for key, figures in found.items()}


def _speed(log: Sequence[Section], span: float) -> float:
    """Sections a second, without those still waiting at the end, as nobody competes with them any more."""
    end = min(section.asked for section in log) + span
    return sum(section.got <= end for section in log) / span
