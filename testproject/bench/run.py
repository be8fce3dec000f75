"""The modes with their options, and how one is run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from rediscluster import private_masters
from redisserver import redis_server

from . import contended, dogpile, load, uncontended, waiting
from .contenders import Entrant, OtherLock
from .figures import Figures
from .report import Row
from .serverstats import Observer
from .workers import Bench, BenchError

MASTERS = 3  # of a cluster


class Mode(NamedTuple):
    """``flags``: besides the options of ``measure``. ``waiters``: the default for coroutines, if it differs."""

    measure: Callable[..., dict[str, Figures]]
    kinds: Sequence[type[Entrant]]
    rows: Sequence[Row]
    flags: Sequence[str] = ("asyncio",)
    waiters: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Those of ``measure``, with their defaults."""
        parameters = signature(self.measure).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is Parameter.KEYWORD_ONLY}


MODES = {
    "uncontended": Mode(uncontended.measure, uncontended.KINDS, uncontended.ROWS, ("asyncio", "cluster", "masters")),
    "contended": Mode(
        contended.measure, contended.KINDS, contended.ROWS, ("asyncio", "cluster", "masters", "other", "charts")
    ),
    "idle": Mode(waiting.measure_idle, waiting.KINDS, waiting.IDLE_ROWS, waiters=1000),
    "drain": Mode(waiting.measure_drain, waiting.KINDS, waiting.DRAIN_ROWS, waiters=10_000),
    "dogpile": Mode(dogpile.measure, dogpile.KINDS, dogpile.ROWS, waiters=1000),
    "pool": Mode(contended.measure_pool, contended.POOL_KINDS, contended.POOL_ROWS),
    "semaphore": Mode(contended.measure_semaphore, contended.SEMAPHORE_KINDS, contended.SEMAPHORE_ROWS),
    "load": Mode(load.measure, load.KINDS, load.ROWS, ("cluster", "masters")),
}


def run(key: str, given: Mapping[str, Any], only: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure on a private server, or on the masters of a private cluster.

    ``given``: options of the mode; None takes its default. ``only`` empty: everybody. Raises BenchError for what cannot
    be run.
    """
    mode = MODES[key]
    coroutines, cluster, other = bool(given.get("asyncio")), bool(given.get("cluster")), given.get("other")
    options = mode.options
    if coroutines and mode.waiters:
        options["waiters"] = mode.waiters
    options |= {name: given[name] for name in options if given.get(name) is not None}
    kinds, notes = _contenders(mode.kinds, only, coroutines=coroutines, cluster=cluster)
    if other:
        if not (other / "django_redislock" / "__init__.py").is_file():
            raise BenchError(f"--other must be a folder with a django_redislock in it, not {other}.")
        kinds[OtherLock.key] = OtherLock
        notes.append(f"{OtherLock.key}: of {other}")
    with ExitStack() as stack:
        if cluster:
            masters = given.get("masters") or MASTERS
            urls = [node.url for node in stack.enter_context(private_masters(masters, maxclients=10_000))]
        else:
            urls = [stack.enter_context(redis_server(maxclients=10_000)).url]
        bench = Bench(kinds, urls, tell, cluster, coroutines, other)
        stack.callback(bench.observer.close)
        machine = describe(bench.observer)
        figures = mode.measure(bench, **options)
    return {
        "mode": key,
        "asyncio": coroutines,
        "cluster": cluster,
        "options": {**options, "masters": len(urls)} if cluster else options,
        "machine": machine,
        "contenders": {name: {**found, "troubles": bench.troubles[name]} for name, found in figures.items()},
        "notes": notes,
    }


def _contenders(
    kinds: Sequence[type[Entrant]], only: Sequence[str], *, coroutines: bool, cluster: bool
) -> tuple[dict[str, type[Entrant]], list[str]]:
    """Those that are wanted, by key; and what is to be said about them."""
    able = [kind for kind in kinds if (kind.in_coroutines or not coroutines) and (kind.on_cluster or not cluster)]
    there = {kind.key: kind for kind in able if kind.is_installed()}
    for key in only:
        if key not in there:
            raise BenchError(f"There is no contender {key!r} here. There are: {', '.join(there)}.")
    wanted = {key: kind for key, kind in there.items() if not only or key in only}
    notes = [f"{kind.key}: not installed, left out" for kind in able if kind.key not in there]
    notes += [f"{key}: {kind.coroutine_note}" for key, kind in wanted.items() if coroutines and kind.coroutine_note]
    return wanted, notes


def describe(observer: Observer) -> dict[str, str]:
    """Machine and versions, by label."""
    found = {
        "CPUs": f"{os.cpu_count()} x {_cpu()}",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": observer.version(),
    }
    for package in ("Django", "redis", "hiredis", "django-redis", "python-redis-lock"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
