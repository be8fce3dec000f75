"""Processes that all acquire one lock, or one of several, again and again."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import ExitStack
from statistics import median
from time import monotonic

from .contenders import Contender, Floor, OurLock, PythonRedisLock, RedisPy
from .figures import Figures, Section, handovers, median_ratio, order, percentile, violations
from .report import Row
from .serverstats import Statistics
from .worker import Worker, clocks
from .workers import Bench

WARM_UP = 0.2  # seconds, after each name was locked once: connections, scripts, listeners
CALIBRATION = 0.3  # seconds

KINDS = (Floor, RedisPy, PythonRedisLock, OurLock)
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


async def compete(worker: Worker, kind: type[Contender], names: int, hold: float, seconds: float) -> list[Section]:
    """Enter as often as possible for ``seconds``, each time under a random one of so many names."""
    contender = worker.one(kind)
    dice = random.Random(worker.number)
    for name in dice.sample(range(names), names):
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
    """``rounds`` of ``seconds / rounds`` for each contender."""
    sections: dict[str, list[Section]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, list[Statistics]] = defaultdict(list)
    span = seconds / rounds
    with ExitStack() as stack:
        places = {kind.elsewhere for kind in bench.kinds.values()}
        groups = {place: stack.enter_context(bench.workers(procs, names=names, elsewhere=place)) for place in places}
        bench.tell("the clocks")
        offsets = [one for answer in groups[False].call(clocks, 1, CALIBRATION) for one in answer.result]
        for key, kind in bench.turns(rounds):
            group = groups[kind.elsewhere]
            logs = bench.call(key, group, compete, kind, names, hold_ms / 1000, span, seconds=span)
            counts[key].append(bench.observer.read())
            log = [section for one in logs for section in one]
            sections[key] += log
            # not those that were still waiting at the end, as nobody competes with them any more
            end = min(section.asked for section in log) + span
            speeds[key].append(sum(section.got <= end for section in log) / span)
    figures: dict[str, Figures] = {}
    for key, kind in bench.kinds.items():
        log, number = sections[key], len(sections[key])
        waits = [(section.got - section.asked) * 1000 for section in log]
        gaps = [gap * 1000 for gap in handovers(log)]
        of_nodes = [sum(each) for each in zip(*(one.server_us(kind) for one in counts[key]), strict=True)]
        figures[key] = {
            "sections": number,
            "sections_per_second": median(speeds[key]),
            "x_python_redis_lock": median_ratio(speeds[key], speeds.get("python-redis-lock")),
            "round_trips": sum(one.requests for one in counts[key]) / number,
            "busiest_percent": 100 * max(of_nodes) / sum(of_nodes),
            "server_cpu_us": sum(one.cpu for one in counts[key]) / number * 1e6,
            "handover_p50_ms": percentile(gaps, 50),
            "handover_p99_ms": percentile(gaps, 99),
            "wait_p99_ms": percentile(waits, 99),
            "wait_max_ms": max(waits),
            **order(log, offsets),
            "violations": violations(log),
        }
    return figures
