"""Processes that all acquire one lock, or one of several, again and again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from statistics import median
from time import monotonic, process_time
from typing import NamedTuple

from .contenders import TTL, Contender
from .figures import (
    Figures,
    Section,
    by_name,
    handovers,
    jain,
    kept,
    median_ratio,
    order,
    percentile,
    scatter,
    shares,
    violations,
)
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

WARM_UP = 0.2  # seconds for each name: connections, scripts, listeners
LONGEST_WARM_UP = 15.0
CALIBRATION = 0.3  # seconds

ROWS = (
    Row("sections_per_second", "sections/s", "{:.0f}"),
    Row("x_python_redis_lock", "sections/s / python-redis-lock", "{:.2f}"),
    Row("round_trips", "round trips per section", "{:.2f}"),
    Row("server_us", "server time per section, us", "{:.1f}"),
    Row("busiest_percent", "of that, at the busiest node, %", "{:.1f}"),
    Row("server_cpu_us", "server CPU per section, us", "{:.1f}"),
    Row("cpu_us", "client CPU per section, us", "{:.1f}"),
    Row("handover_p50_ms", "hand-over p50, ms", "{:.2f}"),
    Row("handover_p99_ms", "hand-over p99, ms", "{:.2f}"),
    Row("wait_p50_ms", "wait p50, ms", "{:.2f}"),
    Row("wait_p99_ms", "wait p99, ms", "{:.2f}"),
    Row("wait_max_ms", "longest wait, ms", "{:.1f}"),
    Row("jain", "fairness between processes (Jain)", "{:.3f}"),
    Row("min_by_max", "fewest / most sections of a process", "{:.2f}"),
    Row("kept_percent", "same process again, %", "{:.1f}"),
    Row("inversions_percent", "overtook somebody, by time of request, %", "{:.2f}"),
    Row("overtaken_percent", "were overtaken, by time of request, %", "{:.2f}"),
    Row("inversions_in_server_order_percent", "overtook somebody, in server order, %", "{:.2f}"),
    Row("inversions_in_server_order", "the same, number of sections", "{:d}"),
    Row("violations", "violations of exclusion", "{:d}"),
)


class Competed(NamedTuple):
    log: list[Section]
    cpu: float  # CPU seconds of all threads of the process
    troubles: list[str]


def compete(worker: Worker, kind: type[Contender], names: int, hold: float, seconds: float) -> Routine[Competed]:
    """Enter as often as possible for ``seconds``, each time under a random one of so many names."""
    contenders = [worker.contender(kind, TTL, name) for name in range(names)]
    again = kind in worker.kept
    worker.kept.append(kind)
    dice = random.Random(worker.number)
    worker.note_tickets()
    end = monotonic() + min(WARM_UP * (1 if again else names), LONGEST_WARM_UP, seconds * names)
    while monotonic() < end:
        name = dice.randrange(names)
        yield from worker.section(contenders[name], worker.number, 0, name)
    yield worker.ready()
    log: list[Section] = []
    cpu, end = process_time(), monotonic() + seconds
    while monotonic() < end:
        name = dice.randrange(names)
        log.append((yield from worker.section(contenders[name], worker.number, hold, name)))
    competed = Competed(log, process_time() - cpu, worker.troubles.copy())
    worker.troubles.clear()
    return competed


def clocks(worker: Worker, seconds: float) -> Routine[list[float]]:
    """The server's clock minus ours, while all workers ask for it."""
    client = worker.runner.client(worker.url)
    yield (client.ping,)
    yield worker.ready()
    offsets: list[float] = []
    end = monotonic() + seconds
    while monotonic() < end:
        offsets.append((yield from worker.offset(client)))
    return offsets


def measure(
    start_workers: Callable[..., Workers],
    observer: Observer,
    kinds: Mapping[str, type[Contender]],
    *,
    procs: int,
    names: int,
    hold_ms: float,
    seconds: float,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``rounds`` of ``seconds / rounds`` for each contender."""
    sections: dict[str, list[list[Section]]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    requests: dict[str, int] = defaultdict(int)
    server_us: dict[str, float] = defaultdict(float)
    server_cpu: dict[str, float] = defaultdict(float)
    busiest: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    troubles: dict[str, Counter[str]] = defaultdict(Counter)
    scatters: list[float] = []
    span = seconds / rounds
    with ExitStack() as stack:
        places = {kind.elsewhere for kind in kinds.values()}
        groups = {place: stack.enter_context(start_workers(procs, elsewhere=place, names=names)) for place in places}
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}: the clocks")
            offsets = next(iter(groups.values())).call(clocks, min(CALIBRATION, span))
            scatters.append(scatter([offset for answer in offsets for offset in answer]))
            for key, kind in kinds.items():
                tell(f"round {number} of {rounds}: {key}")
                answers = groups[kind.elsewhere].call(
                    compete, kind, names, hold_ms / 1000, span, seconds=span, when_ready=observer.reset
                )
                statistics = observer.read()
                log = sorted((one for answer in answers for one in answer.log), key=lambda section: section.got)
                sections[key].append(log)
                # not those that were still waiting at the end, as nobody competes with them any more
                end = min(section.asked for section in log) + span
                speeds[key].append(sum(section.got <= end for section in log) / span)
                requests[key] += statistics.requests
                server_us[key] += statistics.server_us(kind)
                server_cpu[key] += statistics.cpu
                busiest[key] += statistics.busiest(kind)
                for answer in answers:
                    cpu[key] += answer.cpu
                    troubles[key].update(answer.troubles)
    tolerance = median(scatters)
    figures: dict[str, Figures] = {}
    for key in kinds:
        every = [section for log in sections[key] for section in log]
        waits = [(section.got - section.asked) * 1000 for section in every]
        each = [one for log in sections[key] for one in by_name(log)]
        gaps = [gap * 1000 for one in each for gap in handovers(one)]
        part = shares(every, procs)
        figures[key] = {
            "sections": len(every),
            "sections_per_second": median(speeds[key]),
            "x_python_redis_lock": median_ratio(speeds[key], speeds.get("python-redis-lock")),
            "round_trips": requests[key] / len(every),
            "server_us": server_us[key] / len(every),
            "busiest_percent": 100 * busiest[key] / server_us[key],
            "server_cpu_us": server_cpu[key] / len(every) * 1e6,
            "cpu_us": cpu[key] / len(every) * 1e6,
            "handover_p50_ms": percentile(gaps, 50),
            "handover_p99_ms": percentile(gaps, 99),
            "wait_p50_ms": percentile(waits, 50),
            "wait_p99_ms": percentile(waits, 99),
            "wait_max_ms": max(waits),
            "jain": jain(part),
            "min_by_max": min(part) / max(part),
            "sections_per_process": part,
            "kept_percent": 100 * median(kept(one) or 0.0 for one in each),
            **order(every, tolerance),
            "order_tolerance_ms": tolerance * 1000,
            "violations": sum(map(violations, each)),
            "troubles": dict(troubles[key]),
        }
    return figures
