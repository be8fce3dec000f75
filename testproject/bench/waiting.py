"""Many threads or coroutines that wait for a lock: what waiting costs, and what happens when the lock is released."""

from __future__ import annotations

from statistics import median
from time import monotonic
from typing import NamedTuple

from .contenders import Contender, CrowdedRedisPy, OurLock, PythonRedisLock
from .figures import Figures, Section, order, violations
from .report import Row
from .worker import Worker, clocks
from .workers import Bench, Workers

IDLE_SETTLE = 1.0  # seconds until all wait, in addition to the time for the requests
SETTLE = 0.3  # the same where they are all of one process
LIMIT = 20.0  # seconds for all to get it

KINDS = (CrowdedRedisPy, PythonRedisLock, OurLock)
IDLE_ROWS = (
    Row("waiting", "waiting", "{:d}"),
    Row("requests_per_second_per_process", "commands/s per waiting process", "{:.2f}"),
    Row("connections", "connections in all, with the holder's", "{:d}"),
)
DRAIN_ROWS = (
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


async def wait(worker: Worker, kind: type[Contender], waiters: int, seconds: float) -> int:
    """Have many wait, in one process one more than that: whoever gets the lock keeps it. How many wait or hold it?"""
    contender = worker.one(kind)
    ttl = round(3 * seconds) + 60  # the holder's first renewal, at a third of the TTL, comes after the counting

    async def ask(number: int) -> None:
        worker.kept.append(await contender.acquire(contender.name(0), ttl))
        await worker.sleep(ttl)  # a lock belongs to its thread or task, which must live on

    crowd = worker.start(waiters + (worker.number == 0), ask)
    await worker.sleep(IDLE_SETTLE + worker.seconds_for(waiters))
    await worker.ready()
    await worker.sleep(seconds)
    return crowd.alive


def measure_idle(bench: Bench, *, procs: int = 4, waiters: int = 20, seconds: float = 10.0) -> dict[str, Figures]:
    """What waiting costs: ``procs`` processes of ``waiters`` each, for ``seconds``."""
    return {
        key: {
            "waiting": sum(turn.results) - 1,
            "requests_per_second_per_process": turn.statistics.requests / seconds / procs,
            "connections": turn.connections,
        }
        for key, [turn] in bench.fresh(1, procs, wait, waiters, seconds, seconds=seconds).items()
    }


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


def measure_drain(bench: Bench, *, waiters: int = 300, rounds: int = 3) -> dict[str, Figures]:
    """Many of one process get the lock one after the other, in ``rounds``."""
    with Workers(bench, 1) as workers:
        [offsets] = workers.call("", clocks, min(waiters, 90), 0.0).results  # redis-py's pool ends at 100
    figures: dict[str, Figures] = {}
    for key, turns in bench.fresh(rounds, 1, drain, waiters, seconds=LIMIT).items():
        drained: list[Drained] = [turn.results[0] for turn in turns]
        got = min(len(one.sections) for one in drained)
        seconds = median(one.seconds for one in drained) if got == waiters else None
        # each round had a lock of its own
        sections = [section._replace(name=n) for n, one in enumerate(drained) for section in one.sections]
        figures[key] = {
            "got": got,
            "seconds": seconds,
            "per_second": waiters / seconds if seconds else None,
            "release_ms": median(one.release_ms for one in drained),
            "release_failed": sum(one.failed for one in drained),
            "connections": max(turn.connections for turn in turns),
            **order(sections, offsets),
            "violations": violations(sections),
        }
    return figures
