"""What waiting costs: processes full of threads or coroutines that wait while one holds the lock."""

from __future__ import annotations

import time
from threading import Event

from .contenders import Contender, CrowdedRedisPy, OurLock, PythonRedisLock
from .figures import Figures
from .report import Row
from .worker import Crowd, Worker
from .workers import Bench

SETTLE = 1.0  # seconds from the last request to the first count

KINDS = (CrowdedRedisPy, PythonRedisLock, OurLock)
ROWS = (
    Row("waiting", "waiting", "{:d}"),
    Row("requests_per_second_per_process", "commands/s per waiting process", "{:.2f}"),
    Row("connections", "connections in all, with the holder's", "{:d}"),
)


async def hold(worker: Worker, kind: type[Contender], ttl: int) -> None:
    """Take the lock and keep it."""
    contender, held = worker.one(kind), Event()

    async def keep(number: int) -> None:
        worker.kept.append(await contender.acquire(contender.name(0), ttl))
        held.set()
        await worker.sleep(ttl)  # a lock belongs to its thread or task, which must live on

    worker.start(1, keep)
    await worker.block(held.wait)
    await worker.ready()


async def wait(worker: Worker, kind: type[Contender], ttl: int, waiters: int) -> float:
    """Start many waiters, and return when all have asked: how many seconds their requests take."""
    contender, asked = worker.one(kind), Crowd(waiters)

    async def ask(number: int) -> None:
        asked.leave()
        await contender.acquire(contender.name(0), ttl)

    worker.kept.append(worker.start(waiters, ask))
    await worker.block(asked.over.wait)
    await worker.ready()
    return worker.seconds_for(waiters)


async def look(worker: Worker) -> int:
    """How many are still waiting."""
    await worker.ready()
    return sum(crowd.alive for crowd in worker.kept)


def measure(bench: Bench, *, procs: int = 4, waiters: int = 20, seconds: float = 10.0) -> dict[str, Figures]:
    """``procs`` processes of ``waiters`` each, for ``seconds``, for one contender after the other."""
    ttl = round(3 * seconds) + 60  # the holder's first renewal, at a third of the TTL, comes after the counting
    figures: dict[str, Figures] = {}
    for key, kind in bench.turns():
        with bench.workers(1) as holder, bench.workers(procs) as workers:
            bench.call(key, holder, hold, kind, ttl)
            time.sleep(SETTLE + sum(bench.call(key, workers, wait, kind, ttl, waiters)))
            bench.observer.reset()
            start = time.monotonic()
            time.sleep(seconds)
            requests, spent = bench.observer.read().requests, time.monotonic() - start
            figures[key] = {
                "requests_per_second_per_process": requests / spent / procs,
                "connections": bench.observer.connections(),
                "waiting": sum(bench.call(key, workers, look)),
            }
    return figures
