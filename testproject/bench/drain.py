"""Many threads or coroutines of one process wait for a lock that this process holds; then it releases."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from time import monotonic
from typing import NamedTuple

from .contenders import Contender, CrowdedRedisPy, OurLock, PythonRedisLock
from .figures import Figures, Section, order, violations
from .report import Row
from .worker import Worker, clocks
from .workers import Bench

SETTLE = 0.3  # seconds until all wait, in addition to the time for the requests
LIMIT = 20.0  # seconds for all to get it

KINDS = (CrowdedRedisPy, PythonRedisLock, OurLock)
ROWS = (
    Row("waiters", "waiting", "{:d}"),
    Row("got", "of them got it (worst round)", "{:d}"),
    Row("seconds", "until all got it, s", "{:.3f}"),
    Row("per_second", "drained per second", "{:.0f}"),
    Row("release_ms", "the holder's own release, ms", "{:.2f}"),
    Row("release_failed", "rounds in which the holder could not release", "{:d}"),
    Row("connections", "connections", "{:d}"),
    Row("inversions_percent", "overtook somebody, by time of request, %", "{:.1f}"),
    Row("inversions_in_server_order", "overtook somebody, in server order", "{:d}"),
    Row("violations", "violations of exclusion", "{:d}"),
)


class Drained(NamedTuple):
    seconds: float  # until the last one got it
    release_ms: float
    failed: bool
    sections: list[Section]


async def drain(worker: Worker, kind: type[Contender], waiters: int) -> Drained:
    """Hold the lock, let the others queue, release, and wait until each has had the lock for a moment."""
    contender = worker.one(kind)
    held = await contender.acquire(contender.name(0))
    sections: list[Section] = []

    async def enter(number: int) -> None:
        sections.append(await worker.section(contender))

    crowd = worker.start(waiters, enter)
    await worker.sleep(SETTLE + worker.seconds_for(waiters))
    await worker.ready()
    began, failed = monotonic(), False
    try:
        await contender.release(held)
    except Exception as error:
        worker.troubles.append(f"the holder: {type(error).__name__}: {error}")
        failed = True
    release_ms = (monotonic() - began) * 1000
    if not failed:  # otherwise the others wait for its TTL
        await worker.block(crowd.over.wait, max(0.0, began + LIMIT - monotonic()))
    last = max((section.got for section in sections), default=began)
    return Drained(last - began, release_ms, failed, sections.copy())


def measure(bench: Bench, *, waiters: int = 300, rounds: int = 3) -> dict[str, Figures]:
    """``rounds`` with a fresh process for each contender."""
    answers: dict[str, list[Drained]] = defaultdict(list)
    connections: dict[str, int] = defaultdict(int)
    with bench.workers(1) as workers:
        [offsets] = workers.call(clocks, min(waiters, 90), 0.0)  # redis-py's pool ends at 100
    for key, kind in bench.turns(rounds):
        with bench.workers(1) as workers:
            answers[key] += bench.call(key, workers, drain, kind, waiters, seconds=LIMIT)
            connections[key] = max(connections[key], bench.observer.connections())
    figures: dict[str, Figures] = {}
    for key, drained in answers.items():
        got = min(len(one.sections) for one in drained)
        seconds = median(one.seconds for one in drained) if got == waiters else None
        # each round had a lock of its own
        sections = [section._replace(name=n) for n, one in enumerate(drained) for section in one.sections]
        figures[key] = {
            "waiters": waiters,
            "got": got,
            "seconds": seconds,
            "per_second": waiters / seconds if seconds else None,
            "release_ms": median(one.release_ms for one in drained),
            "release_failed": sum(one.failed for one in drained),
            "connections": connections[key],
            **order(sections, offsets.result),
            "violations": violations(sections),
        }
    return figures
