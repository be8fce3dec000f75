"""Many threads or coroutines of several processes want one value that is not in the cache and takes long to compute."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from django.core.cache import cache

from django_redislock import alocked_get_or_set, locked_get_or_set

from .contenders import Entrant, done
from .figures import Figures
from .report import Row
from .worker import Worker
from .workers import Bench

LIMIT = 60.0  # seconds for all to get the value
TIMEOUT = 300  # seconds that the cache keeps it

ROWS = (
    Row("asked", "wanted the value", "{:d}"),
    Row("got", "of them got it (worst round)", "{:d}"),
    Row("computed", "computed it (worst round)", "{:d}"),
    Row("seconds", "until all had it, s", "{:.3f}"),
    Row("round_trips", "round trips for each", "{:.2f}"),
)

Compute = Callable[[], Any]


class DjangoGet(Entrant):
    """Django's own, without a lock. Its aget_or_set() awaits no default: for coroutines, this is what a site would
    write."""

    key = "get_or_set"
    coroutine_note = "aget(), the coroutine, aset(): Django's aget_or_set() takes no coroutine function"

    async def get(self, key: str, compute: Compute) -> Any:
        if not self.worker.loop:
            return cache.get_or_set(key, compute, TIMEOUT)
        value = await cache.aget(key)
        if value is None:
            value = await compute()
            await cache.aset(key, value, TIMEOUT)
        return value


class PythonRedisLockGet(Entrant):
    """That of python-redis-lock's cache backend."""

    key = "python-redis-lock"
    package = "redis_lock"
    in_coroutines = False

    def __init__(self, worker: Worker) -> None:
        # redis-py's own 5 seconds would end its BLPOP with an error
        options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}
        self.cache = import_module("redis_lock.django_cache").RedisCache(worker.url, {"OPTIONS": options})

    async def get(self, key: str, compute: Compute) -> Any:
        return self.cache.locked_get_or_set(key, compute, timeout=TIMEOUT, expire=30)


class OurGet(Entrant):
    """Ours."""

    key = "locked_get_or_set"

    async def get(self, key: str, compute: Compute) -> Any:
        function = alocked_get_or_set if self.worker.loop else locked_get_or_set
        return await done(function(key, compute, timeout=TIMEOUT))


KINDS = (DjangoGet, PythonRedisLockGet, OurGet)


class Asked(NamedTuple):
    """What became of those of one process."""

    times: list[tuple[float, float]]  # when each asked and got it
    computed: int


async def ask(worker: Worker, kind: type[DjangoGet | PythonRedisLockGet | OurGet], waiters: int, hold: float) -> Asked:
    """All want one value at once. Before that each process has a pile of its own, so that connections are open."""
    getter = worker.one(kind)
    computed: list[int] = []
    times: list[tuple[float, float]] = []

    def compute() -> str:
        computed.append(1)
        time.sleep(hold)
        return "value"

    async def acompute() -> str:
        computed.append(1)
        await asyncio.sleep(hold)
        return "value"

    async def pile_up(key: str) -> None:
        async def want(number: int) -> None:
            asked = monotonic()
            await getter.get(key, acompute if worker.loop else compute)
            times.append((asked, monotonic()))

        await worker.block(worker.start(waiters, want).over.wait, LIMIT)

    await pile_up(f"warm-{worker.number}")
    computed.clear()
    times.clear()
    await worker.ready()
    await pile_up("wanted")
    return Asked(times.copy(), len(computed))


def measure(
    bench: Bench, *, procs: int = 4, waiters: int = 50, hold_ms: float = 100.0, rounds: int = 3
) -> dict[str, Figures]:
    """``rounds`` with fresh processes for each way."""
    times: dict[str, list[list[tuple[float, float]]]] = defaultdict(list)  # of each round
    computed: dict[str, int] = defaultdict(int)
    requests: dict[str, int] = defaultdict(int)
    for key, kind in bench.turns(rounds):
        with bench.workers(procs) as workers:
            answers = bench.call(key, workers, ask, kind, waiters, hold_ms / 1000, seconds=LIMIT)
            requests[key] += bench.observer.read().requests
        times[key].append([one for answer in answers for one in answer.times])
        computed[key] = max(computed[key], sum(answer.computed for answer in answers))
    asked = procs * waiters
    figures: dict[str, Figures] = {}
    for key in bench.kinds:
        got = min(map(len, times[key]))
        spans = [max(end for _, end in one) - min(begin for begin, _ in one) for one in times[key] if one]
        figures[key] = {
            "asked": asked,
            "got": got,
            "computed": computed[key],
            "seconds": median(spans) if got == asked else None,
            "round_trips": requests[key] / (asked * rounds),
        }
    return figures
