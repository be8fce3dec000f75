"""The modes with their options, and a run of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redisserver import RedisServer

from . import contended, drain, idle, uncontended
from .contenders import CONTENDERS, installed
from .crew import BenchError, unreached_by_interrupts
from .figures import Figures
from .machine import describe
from .report import Row
from .serverstats import Observer


class Mode(NamedTuple):
    """``threaded``: many threads of a process wait at once. ``options``: their defaults."""

    measure: Callable[..., dict[str, Figures]]
    rows: Sequence[Row]
    threaded: bool
    options: Mapping[str, float]


MODES = {
    "uncontended": Mode(uncontended.measure, uncontended.ROWS, False, {"seconds": 10.0}),
    "contended": Mode(
        contended.measure, contended.ROWS, False, {"procs": 8, "hold_ms": 0.0, "seconds": 10.0, "rounds": 3}
    ),
    "idle": Mode(idle.measure, idle.ROWS, True, {"procs": 4, "waiters": 20, "seconds": 10.0}),
    "drain": Mode(drain.measure, drain.ROWS, True, {"waiters": 300, "rounds": 3}),
}
LEAST = {"seconds": 0.1, "hold_ms": 0, "procs": 1, "waiters": 1, "rounds": 1}
MOST = {"seconds": 3600, "hold_ms": 10_000, "procs": 256, "waiters": 5000, "rounds": 100}


def run(
    mode: str, options: Mapping[str, float | None], only: Sequence[str], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure on a private server. ``options`` that are None take the mode's defaults; ``only`` empty: everybody.

    Raises BenchError for what cannot be run.
    """
    chosen = _options(mode, options)
    keys, notes = _contenders(mode, only)
    server = RedisServer(maxclients=10_000)
    try:
        with unreached_by_interrupts():
            server.start()
        with Observer(server.client()) as observer:
            machine = describe(observer)
            figures = MODES[mode].measure(server, observer, keys, tell=tell, **chosen)
    finally:
        server.close()
    return {"mode": mode, "options": chosen, "machine": machine, "contenders": figures, "notes": notes}


def _options(mode: str, options: Mapping[str, float | None]) -> dict[str, float]:
    if mode not in MODES:
        raise BenchError(f"There is no mode {mode!r}. There are: {', '.join(MODES)}.")
    chosen = dict(MODES[mode].options)
    for name, value in options.items():
        flag = _flag(name)
        if value is None:
            continue
        if name not in chosen:
            raise BenchError(f"{flag} {value} means nothing to {mode!r}. It has: {', '.join(map(_flag, chosen))}.")
        if not LEAST[name] <= value <= MOST[name]:
            raise BenchError(f"{flag} must be from {LEAST[name]} to {MOST[name]}, not {value}.")
        chosen[name] = value
    return chosen


def _contenders(mode: str, only: Sequence[str]) -> tuple[list[str], list[str]]:
    able = [key for key, kind in CONTENDERS.items() if kind.threads or not MODES[mode].threaded]
    for key in only:
        if key not in able:
            raise BenchError(f"There is no contender {key!r} for {mode!r}. There are: {', '.join(able)}.")
    wanted = [key for key in able if not only or key in only]
    missing = [key for key in wanted if key not in installed()]
    if missing and only:
        raise BenchError(f"Not installed: {', '.join(missing)}. There are: {', '.join(installed())}.")
    return [key for key in wanted if key not in missing], [f"{key}: not installed, left out" for key in missing]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
