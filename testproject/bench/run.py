"""The modes with their options, and a run of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from redisserver import RedisServer

from . import awake, contended, dogpile, drain, idle, pool, uncontended
from .contenders import KINDS, OTHERS, Entrant, able, installed
from .crew import BenchError, Crew, unreached_by_interrupts
from .figures import Figures
from .machine import describe
from .report import Row, label
from .serverstats import Observer


class Mode(NamedTuple):
    """``crowd``: many of a process wait at once. ``options``: their defaults, and where those of coroutines differ.

    ``awake``: the CPUs had better not sleep meanwhile. ``others``: another checkout can be measured, too.
    """

    measure: Callable[..., dict[str, Figures]]
    rows: Sequence[Row]
    crowd: bool
    options: Mapping[str, float]
    coroutine_options: Mapping[str, float] = {}
    kinds: tuple[type[Entrant], ...] = KINDS
    awake: bool = False
    others: bool = False


MODES = {
    "uncontended": Mode(uncontended.measure, uncontended.ROWS, False, {"seconds": 10.0}, awake=True),
    "contended": Mode(
        contended.measure,
        contended.ROWS,
        False,
        {"procs": 8, "hold_ms": 0.0, "seconds": 10.0, "rounds": 3},
        others=True,
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
}
LEAST = {"seconds": 0.1, "hold_ms": 0, "procs": 1, "waiters": 1, "rounds": 1, "members": 1}
MOST = {"seconds": 3600, "hold_ms": 10_000, "procs": 256, "waiters": 5000, "rounds": 100, "members": 100_000}
MOST_COROUTINES = {**MOST, "waiters": 50_000}


def run(
    mode: str,
    options: Mapping[str, float | None],
    only: Sequence[str],
    tell: Callable[[str], None],
    *,
    coroutines: bool = False,
    may_sleep: bool = False,
    other: Path | None = None,
    other_fair: bool = False,
) -> dict[str, Any]:
    """Measure on a private server. ``options`` that are None take the mode's defaults; ``only`` empty: everybody.

    ``coroutines``: they use the locks, not threads. ``may_sleep``: the CPUs, in any mode. ``other``: a checkout of this
    package whose Lock, or (``other_fair``) FairLock, is one more contender. Raises BenchError for what cannot be run.
    """
    chosen = _options(mode, options, coroutines=coroutines)
    kinds, notes = _contenders(mode, only, coroutines=coroutines)
    if other is not None or other_fair:
        kind = _other(mode, other, fair=other_fair, coroutines=coroutines)
        kinds[kind.key] = kind
        notes.append(f"{kind.key}: of {other}")
    stay_awake = MODES[mode].awake and awake.POSSIBLE and not may_sleep
    server = RedisServer(maxclients=10_000)
    try:
        with unreached_by_interrupts():
            server.start()
        with Observer(server.client()) as observer:
            machine = describe(observer)
            if stay_awake:
                machine["CPUs"] += ", kept awake"

            def hire(size: int, *, elsewhere: bool = False) -> Crew:
                # a database of its own: what the other one writes may mean something else
                url, path = (f"{server.url}?db=1", str(other)) if elsewhere else (server.url, None)
                return Crew(url, size, coroutines=coroutines, path=path)

            with awake.cpus_awake() if stay_awake else nullcontext():
                figures = MODES[mode].measure(hire, observer, kinds, tell=tell, **chosen)
    finally:
        server.close()
    return {
        "mode": mode,
        "asyncio": coroutines,
        "options": chosen,
        "machine": machine,
        "contenders": figures,
        "notes": notes,
    }


def _options(mode: str, options: Mapping[str, float | None], *, coroutines: bool) -> dict[str, float]:
    if mode not in MODES:
        raise BenchError(f"There is no mode {mode!r}. There are: {', '.join(MODES)}.")
    chosen = {**MODES[mode].options, **(MODES[mode].coroutine_options if coroutines else {})}
    most = MOST_COROUTINES if coroutines else MOST
    for name, value in options.items():
        flag = _flag(name)
        if value is None:
            continue
        if name not in chosen:
            raise BenchError(f"{flag} {value} means nothing to {mode!r}. It has: {', '.join(map(_flag, chosen))}.")
        if not LEAST[name] <= value <= most[name]:
            raise BenchError(f"{flag} must be from {LEAST[name]} to {most[name]}, not {value}.")
        chosen[name] = value
    return chosen


def _contenders(mode: str, only: Sequence[str], *, coroutines: bool) -> tuple[dict[str, type[Entrant]], list[str]]:
    kinds = able(MODES[mode].kinds, coroutines=coroutines, crowd=MODES[mode].crowd)
    there = installed(MODES[mode].kinds)
    for key in only:
        if key not in kinds:
            what = label(mode, coroutines=coroutines)
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
