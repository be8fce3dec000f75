"""The modes with their options, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rediscluster import private_masters
from redisserver import RedisServer, redis_server

from . import awake, contended, dogpile, drain, idle, load, pool, uncontended
from .contenders import KINDS, OTHERS, Entrant, able, installed
from .figures import Figures
from .machine import describe
from .report import Row, label
from .serverstats import Observer
from .workers import BenchError, Workers, unreached_by_interrupts


class Mode(NamedTuple):
    """``crowd``: many of a process wait at once. ``options``: the defaults, and those of coroutines where they differ.

    ``awake``: keep the CPUs awake meanwhile. ``others``: another checkout can be measured, too. ``cluster``:
    it can be measured on one.
    """

    measure: Callable[..., dict[str, Figures]]
    rows: Sequence[Row]
    crowd: bool
    options: Mapping[str, float]
    coroutine_options: Mapping[str, float] = {}
    kinds: tuple[type[Entrant], ...] = KINDS
    awake: bool = False
    others: bool = False
    cluster: bool = False


CLUSTER_OPTIONS = {"masters": 3}
MODES = {
    "uncontended": Mode(uncontended.measure, uncontended.ROWS, False, {"seconds": 10.0}, awake=True, cluster=True),
    "contended": Mode(
        contended.measure,
        contended.ROWS,
        False,
        {"procs": 8, "names": 1, "hold_ms": 0.0, "seconds": 10.0, "rounds": 3},
        others=True,
        cluster=True,
    ),
    "idle": Mode(idle.measure, idle.ROWS, True, {"procs": 4, "waiters": 20, "seconds": 10.0}, {"waiters": 1000}),
    "drain": Mode(drain.measure, drain.ROWS, True, {"waiters": 300, "seconds": 3.0, "rounds": 3}, {"waiters": 10_000}),
    "dogpile": Mode(
        dogpile.measure,
        dogpile.ROWS,
        True,
        {"procs": 4, "waiters": 50, "hold_ms": 100.0, "rounds": 3},
        {"waiters": 1000},
        dogpile.KINDS,
    ),
    "pool": Mode(
        pool.measure,
        pool.ROWS,
        False,
        {"procs": 50, "members": 1000, "hold_ms": 0.0, "seconds": 10.0},
        kinds=pool.KINDS,
    ),
    "load": Mode(
        load.measure,
        load.ROWS,
        False,
        {"locks": 10_000, "waiters": 100_000, "names": 1000, "seconds": 45.0},
        kinds=load.KINDS,
        cluster=True,
    ),
}
LEAST = {"seconds": 0.1, "hold_ms": 0}  # least values; 1 for all others
MOST = {
    "seconds": 3600,
    "hold_ms": 10_000,
    "procs": 256,
    "waiters": 5000,
    "rounds": 100,
    "members": 100_000,
    "locks": 1_000_000,
    "names": 10_000,
    "masters": 16,
}
MOST_OF = {"load": {"waiters": 1_000_000}}
MOST_COROUTINES = {**MOST, "waiters": 50_000}


def run(
    mode: str,
    options: Mapping[str, float | None],
    only: Sequence[str],
    tell: Callable[[str], None],
    *,
    coroutines: bool = False,
    cluster: bool = False,
    may_sleep: bool = False,
    other: Path | None = None,
    other_fair: bool = False,
) -> dict[str, Any]:
    """Measure on a private server, or on the masters of a private ``cluster``.

    ``options`` that are None take the mode's defaults; ``only`` empty: everybody. ``coroutines``: they use the locks,
    not threads. ``may_sleep``: the CPUs, in any mode. ``other``: a checkout of this
    package whose Lock, or (``other_fair``) FairLock, is one more contender. Raises BenchError for what cannot be run.
    """
    chosen = _options(mode, options, coroutines=coroutines, cluster=cluster)
    kinds, notes = _contenders(mode, only, coroutines=coroutines, cluster=cluster)
    if other is not None or other_fair:
        if cluster:
            raise BenchError("--other means nothing to a cluster.")
        kind = _other(mode, other, fair=other_fair, coroutines=coroutines)
        kinds[kind.key] = kind
        notes.append(f"{kind.key}: of {other}")
    stay_awake = MODES[mode].awake and awake.POSSIBLE and not may_sleep
    measured = {name: value for name, value in chosen.items() if name not in CLUSTER_OPTIONS}
    with (
        _servers(int(chosen.get("masters", 0))) as servers,
        Observer(*(server.client() for server in servers)) as observer,
    ):
        machine = describe(observer)
        if stay_awake:
            machine["CPUs"] += ", kept awake"

        def start_workers(size: int, *, elsewhere: bool = False, names: int = 1) -> Workers:
            # a database of its own, as the other version may write its keys differently
            url, path = (f"{servers[0].url}?db=1", str(other)) if elsewhere else (servers[0].url, None)
            return Workers(url, size, cluster=cluster, coroutines=coroutines, path=path, names=names)

        with awake.cpus_awake() if stay_awake else nullcontext():
            figures = MODES[mode].measure(start_workers, observer, kinds, tell=tell, **measured)
    return {
        "mode": mode,
        "asyncio": coroutines,
        "cluster": cluster,
        "options": chosen,
        "machine": machine,
        "contenders": figures,
        "notes": notes,
    }


@contextmanager
def _servers(masters: int) -> Iterator[Sequence[RedisServer]]:
    """One server, or a cluster of so many masters, for the duration of a block."""
    with ExitStack() as stack:
        with unreached_by_interrupts():
            if masters:
                servers: Sequence[RedisServer] = stack.enter_context(private_masters(masters, maxclients=10_000))
            else:
                servers = [stack.enter_context(redis_server(maxclients=10_000))]
        yield servers


def _options(mode: str, options: Mapping[str, float | None], *, coroutines: bool, cluster: bool) -> dict[str, float]:
    if mode not in MODES:
        raise BenchError(f"There is no mode {mode!r}. There are: {', '.join(MODES)}.")
    if cluster and not MODES[mode].cluster:
        raise BenchError(f"--cluster means nothing to {mode!r}.")
    chosen = {**MODES[mode].options, **(MODES[mode].coroutine_options if coroutines else {})}
    if cluster:
        chosen |= CLUSTER_OPTIONS
    most = {**(MOST_COROUTINES if coroutines else MOST), **MOST_OF.get(mode, {})}
    for name, value in options.items():
        flag = _flag(name)
        if value is None:
            continue
        if name not in chosen:
            raise BenchError(f"{flag} {value} means nothing to {mode!r}. It has: {', '.join(map(_flag, chosen))}.")
        least = LEAST.get(name, 1)
        if not least <= value <= most[name]:
            raise BenchError(f"{flag} must be from {least} to {most[name]}, not {value}.")
        chosen[name] = value
    return chosen


def _contenders(
    mode: str, only: Sequence[str], *, coroutines: bool, cluster: bool
) -> tuple[dict[str, type[Entrant]], list[str]]:
    kinds = able(MODES[mode].kinds, coroutines=coroutines, crowd=MODES[mode].crowd, cluster=cluster)
    if not kinds:
        raise BenchError(f"There is nothing to measure for {label(mode, coroutines=coroutines, cluster=cluster)!r}.")
    there = installed(MODES[mode].kinds)
    for key in only:
        if key not in kinds:
            what = label(mode, coroutines=coroutines, cluster=cluster)
            raise BenchError(f"There is no contender {key!r} for {what!r}. There are: {', '.join(kinds)}.")
    wanted = {key: kind for key, kind in kinds.items() if not only or key in only}
    missing = [key for key in wanted if key not in there]
    if missing and only:
        raise BenchError(f"Not installed: {', '.join(missing)}. There are: {', '.join(there)}.")
    notes = [f"{key}: not installed, left out" for key in missing]
    notes += [f"{key}: {kind.note}" for key, kind in wanted.items() if kind.note]
    return {key: kind for key, kind in wanted.items() if key not in missing}, notes


def _other(mode: str, path: Path | None, *, fair: bool, coroutines: bool) -> type[Entrant]:
    if not MODES[mode].others:
        raise BenchError(f"--other means nothing to {mode!r}.")
    if path is None or not (path / "django_redislock" / "__init__.py").is_file():
        raise BenchError(f"--other must be a folder with a django_redislock in it, not {path}.")
    kinds = able(OTHERS, coroutines=coroutines, crowd=False)
    return kinds["other FairLock" if fair else "other Lock"]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
