"""Many threads or coroutines of several processes want one value that is not in the cache and takes long to compute."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from statistics import median
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from django.core.cache import cache

from django_redislock import alocked_get_or_set, locked_get_or_set

from .contenders import Entrant
from .figures import Figures, percentile
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

LIMIT = 60.0  # seconds for all to get the value
TIMEOUT = 300  # seconds that the cache keeps it

ROWS = (
    Row("asked", "wanted the value", "{:d}"),
    Row("got", "of them got it (worst round)", "{:d}"),
    Row("computed", "computed it (worst round)", "{:d}"),
    Row("seconds", "until all had it, s", "{:.3f}"),
    Row("beyond_ms", "of that beyond the computing, ms", "{:.1f}"),
    Row("p50_ms", "one's wait beyond it, p50, ms", "{:.1f}"),
    Row("p99_ms", "one's wait beyond it, p99, ms", "{:.1f}"),
    Row("round_trips", "round trips for each", "{:.2f}"),
    Row("connections", "connections", "{:d}"),
)

Compute = Callable[[], Any]


class Getter(Entrant):
    """One way to have a cached value or compute it, on django-redis."""

    key: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def get(self, key: str, compute: Compute) -> Any: ...


class DjangoGet(Getter):
    """Django's own, without a lock."""

    key = "get_or_set"

    def get(self, key: str, compute: Compute) -> Any:
        return cache.get_or_set(key, compute, TIMEOUT)


class PythonRedisLockGet(Getter):
    """That of python-redis-lock's cache backend."""

    key = "python-redis-lock"
    package = "redis_lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # redis-py's own 5 seconds would end its BLPOP with an error
        options = {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}
        self.cache = import_module("redis_lock.django_cache").RedisCache(url, {"OPTIONS": options})

    def get(self, key: str, compute: Compute) -> Any:
        return self.cache.locked_get_or_set(key, compute, timeout=TIMEOUT, expire=30)


class OurGet(Getter):
    """Ours."""

    key = "locked_get_or_set"

    def get(self, key: str, compute: Compute) -> Any:
        return locked_get_or_set(key, compute, timeout=TIMEOUT)


class AsyncDjangoGet(DjangoGet):
    """See DjangoGet. It awaits no default, so this is what a site would write."""

    coroutines = True
    note = "aget(), the coroutine, aset(): Django's aget_or_set() takes no coroutine function"

    async def get(self, key: str, compute: Compute) -> Any:
        value = await cache.aget(key)
        if value is None:
            value = await compute()
            await cache.aset(key, value, TIMEOUT)
        return value


class OurAsyncGet(OurGet):
    """See OurGet."""

    coroutines = True

    def get(self, key: str, compute: Compute) -> Awaitable[Any]:
        return alocked_get_or_set(key, compute, timeout=TIMEOUT)


KINDS = (DjangoGet, PythonRedisLockGet, OurGet, AsyncDjangoGet, OurAsyncGet)


class Asked(NamedTuple):
    """What became of those of one process."""

    times: list[tuple[float, float]]  # when each asked and got it
    computed: int
    troubles: list[str]


def ask(worker: Worker, kind: type[Getter], waiters: int, hold: float) -> Routine[Asked]:
    """All want one value at once. Before that each process has a pile of its own, so that connections are open."""
    getter = kind(worker.url)
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

    def pile_up(key: str) -> Routine[None]:
        def want(number: int) -> Routine[None]:
            asked = monotonic()
            try:
                yield getter.get, key, acompute if kind.coroutines else compute
            except Exception as error:
                worker.troubles.append(f"{type(error).__name__}: {error}")
            else:
                times.append((asked, monotonic()))

        crowd = worker.runner.start(waiters, want)
        yield worker.runner.run_blocking, crowd.over.wait, LIMIT

    yield from pile_up(f"warm-{worker.number}")
    computed.clear()
    times.clear()
    yield worker.ready()
    yield from pile_up("wanted")
    return Asked(times.copy(), len(computed), worker.troubles.copy())


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Getter]],
    *,
    procs: int,
    waiters: int,
    hold_ms: float,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``rounds`` with fresh processes for each way."""
    answers: dict[str, list[list[Asked]]] = defaultdict(list)
    requests: Counter[str] = Counter()
    commands: dict[str, Counter[str]] = defaultdict(Counter)
    connections: dict[str, int] = defaultdict(int)
    for number in range(1, rounds + 1):
        for key, kind in kinds.items():
            tell(f"round {number} of {rounds}: {key}")
            observer.flush()
            with start_workers(procs) as workers:
                answers[key].append(
                    workers.call(ask, kind, waiters, hold_ms / 1000, seconds=LIMIT, when_ready=observer.reset)
                )
                statistics = observer.read()
                requests[key] += statistics.requests
                commands[key].update({name: command.calls for name, command in statistics.commands.items()})
                connections[key] = max(connections[key], observer.connections())
    asked = procs * waiters
    return {
        key: {
            **_figures(answers[key], asked, hold_ms),
            "round_trips": requests[key] / (asked * rounds),
            "commands": dict(commands[key]),
            "connections": connections[key],
        }
        for key in kinds
    }


def _figures(answers: list[list[Asked]], asked: int, hold_ms: float) -> Figures:
    """One list for each round, with one answer for each process."""
    times = [[time for process in each for time in process.times] for each in answers]
    got = min(map(len, times))
    waits = [(end - begin) * 1000 - hold_ms for each in times for begin, end in each]
    seconds = None
    if got == asked:
        seconds = median(max(end for _, end in each) - min(begin for begin, _ in each) for each in times)
    return {
        "asked": asked,
        "got": got,
        "computed": max(sum(process.computed for process in each) for each in answers),
        "seconds": seconds,
        "beyond_ms": None if seconds is None else seconds * 1000 - hold_ms,
        "p50_ms": percentile(waits, 50),
        "p99_ms": percentile(waits, 99),
        "troubles": dict(Counter(text for each in answers for process in each for text in process.troubles)),
    }
