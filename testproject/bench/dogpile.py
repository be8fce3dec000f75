"""Many threads or coroutines of several processes want one value that is not in the cache and takes long to compute."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import monotonic
from typing import Any

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


Times = list[tuple[float, float]]
"""When each of a process asked and got it."""


async def ask(
    worker: Worker, kind: type[DjangoGet | PythonRedisLockGet | OurGet], waiters: int, hold: float
) -> tuple[Times, int]:
    """All want one value at once: return their times, and how many computed it.

    Before that each process has a pile of its own, so that connections are open.
    """
    getter = worker.one(kind)
    computed: list[int] = []
    times: Times = []

    async def compute() -> str:
        computed.append(1)
        await worker.sleep(hold)
        return "value"

    async def pile_up(key: str) -> None:
        async def want(number: int) -> None:
            asked = monotonic()
            await getter.get(key, compute if worker.loop else lambda: worker.run(compute()))
            times.append((asked, monotonic()))

        computed.clear()
        times.clear()
        await worker.block(worker.start(waiters, want).over.wait, LIMIT)

    await pile_up(f"warm-{worker.number}")
    await worker.ready()
    await pile_up("wanted")
    return times.copy(), len(computed)


def measure(
    bench: Bench, *, procs: int = 4, waiters: int = 50, hold_ms: float = 100.0, rounds: int = 3
) -> dict[str, Figures]:
    """Many of many processes want one value that is not in the cache, in ``rounds``."""
    asked = procs * waiters
    figures: dict[str, Figures] = {}
    for key, turns in bench.fresh(rounds, procs, ask, waiters, hold_ms / 1000, seconds=LIMIT).items():
        times = [[time for some, _ in turn.results for time in some] for turn in turns]
        got = min(map(len, times))
        spans = [max(end for _, end in one) - min(begin for begin, _ in one) for one in times if one]
        figures[key] = {
            "asked": asked,
            "got": got,
            "computed": max(sum(computed for _, computed in turn.results) for turn in turns),
            "seconds": median(spans) if got == asked else None,
            "round_trips": sum(turn.statistics.requests for turn in turns) / (asked * rounds),
        }
    return figures
