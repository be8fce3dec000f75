"""The modes with their options, and how one is run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rediscluster import private_masters
from redisserver import redis_server

from . import contended, dogpile, drain, idle, load, pool, uncontended
from .contenders import Entrant, OtherLock
from .serverstats import Observer
from .workers import Bench, BenchError, unreached_by_interrupts


class Mode(NamedTuple):
    """``flags``: besides the options of its ``measure()``. ``waiters``: the default for coroutines, if it differs."""

    module: ModuleType
    flags: tuple[str, ...] = ("asyncio",)
    waiters: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The names and defaults of its options."""
        parameters = signature(self.module.measure).parameters.values()
        flags = {name: 3 if name == "masters" else None for name in self.flags}
        return {one.name: one.default for one in parameters if one.kind is Parameter.KEYWORD_ONLY} | flags


MODES = {
    "uncontended": Mode(uncontended, ("asyncio", "cluster", "masters")),
    "contended": Mode(contended, ("asyncio", "cluster", "masters", "other", "charts")),
    "idle": Mode(idle, waiters=1000),
    "drain": Mode(drain, waiters=10_000),
    "dogpile": Mode(dogpile, waiters=1000),
    "pool": Mode(pool),
    "load": Mode(load, ("cluster", "masters")),
}


def run(mode: str, given: Mapping[str, Any], only: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure on a private server, or on the masters of a private cluster.

    ``given``: options of the mode; None takes its default. ``only`` empty: everybody. Raises BenchError for what cannot
    be run.
    """
    module, flags, waiters = MODES[mode]
    coroutines, cluster, other = bool(given.get("asyncio")), bool(given.get("cluster")), given.get("other")
    chosen = MODES[mode].options
    if coroutines and waiters:
        chosen["waiters"] = waiters
    chosen = {name: default if given.get(name) is None else given[name] for name, default in chosen.items()}
    settings = {name: value for name, value in chosen.items() if name not in flags}
    kinds, notes = _contenders(module.KINDS, only, coroutines=coroutines, cluster=cluster)
    if other:
        if not (other / "django_redislock" / "__init__.py").is_file():
            raise BenchError(f"--other must be a folder with a django_redislock in it, not {other}.")
        kinds[OtherLock.key] = OtherLock
        notes.append(f"{OtherLock.key}: of {other}")
    with _servers(chosen["masters"] if cluster else 0) as urls, closing(Observer(urls)) as observer:
        machine = describe(observer)
        bench = Bench(kinds, observer, urls, tell, cluster=cluster, coroutines=coroutines, other=other)
        figures = module.measure(bench, **settings)
    for key in figures:
        figures[key]["troubles"] = bench.troubles[key]
    return {
        "mode": mode,
        "asyncio": coroutines,
        "cluster": cluster,
        "options": settings | ({"masters": chosen["masters"]} if cluster else {}),
        "machine": machine,
        "contenders": figures,
        "notes": notes,
    }


@contextmanager
def _servers(masters: int) -> Iterator[Sequence[str]]:
    """One server, or a cluster of so many masters, for the duration of a block."""
    with ExitStack() as stack:
        with unreached_by_interrupts():
            if masters:
                urls = [node.url for node in stack.enter_context(private_masters(masters, maxclients=10_000))]
            else:
                urls = [stack.enter_context(redis_server(maxclients=10_000)).url]
        yield urls


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
