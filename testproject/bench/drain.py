"""Many threads or coroutines of one process wait for a lock that this process holds; then it releases."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from statistics import median
from time import monotonic
from typing import NamedTuple

from .contenders import TTL, Contender
from .figures import Figures, Section, order, scatter, violations
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

SETTLE = 0.3  # seconds until all wait, in addition to the time for the requests
LIMIT = 20.0  # seconds for all to get it

ROWS = (
    Row("waiters", "waiting", "{:d}"),
    Row("got", "of them got it (worst round)", "{:d}"),
    Row("requests_per_second", "commands/s while all wait", "{:.2f}"),
    Row("seconds", "until all got it, s", "{:.3f}"),
    Row("per_second", "drained per second", "{:.0f}"),
    Row("release_ms", "the holder's own release, ms", "{:.2f}"),
    Row("release_failed", "rounds in which the holder could not release", "{:d}"),
    Row("connections", "connections", "{:d}"),
    Row("inversions_percent", "overtook somebody, by time of request, %", "{:.1f}"),
    Row("inversions_in_server_order", "overtook somebody, in server order", "{:d}"),
    Row("violations", "violations of exclusion", "{:d}"),
)


class Drained(NamedTuple):
    began: float
    release_ms: float
    released: bool
    sections: list[Section]
    troubles: list[str]


def drain(worker: Worker, kind: type[Contender], waiters: int, seconds: float) -> Routine[Drained]:
    """Hold the lock, let the others queue, release after ``seconds``, and wait until each has had the lock for a
    moment."""
    runner = worker.runner
    settle = SETTLE + waiters * runner.each
    # the holder's first renewal, at a third of the TTL, would be due after its release
    contender = worker.contender(kind, TTL + round(3 * (settle + seconds)))
    worker.note_tickets()
    held = yield (contender.acquire,)
    sections: list[Section] = []

    def enter(number: int) -> Routine[None]:
        try:
            sections.append((yield from worker.section(contender, number, 0)))
        except Exception as error:
            worker.troubles.append(_told(error))

    crowd = runner.start(waiters, enter)
    yield runner.sleep, settle
    yield worker.ready()
    released = True
    began = monotonic()
    try:
        yield contender.release, held
    except Exception as error:
        worker.troubles.append(f"the holder: {_told(error)}")
        released = False
    release_ms = (monotonic() - began) * 1000
    if released:  # otherwise the others wait for its TTL
        yield runner.run_blocking, crowd.over.wait, max(0.0, began + LIMIT - monotonic())
    return Drained(began, release_ms, released, sections.copy(), worker.troubles.copy())


def clocks(worker: Worker, waiters: int) -> Routine[list[float]]:
    """The server's clock minus ours, while many ask for it at once."""
    client = worker.runner.client(worker.url)
    offsets: list[float] = []

    def ask(number: int) -> Routine[None]:
        offsets.append((yield from worker.offset(client)))

    yield worker.ready()
    crowd = worker.runner.start(min(waiters, 90), ask)  # redis-py's pool ends at 100
    yield worker.runner.run_blocking, crowd.over.wait
    return offsets


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Contender]],
    *,
    waiters: int,
    seconds: float,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``rounds`` with a fresh process for each contender, whose commands are counted for ``seconds`` of each."""
    answers: dict[str, list[Drained]] = defaultdict(list)
    requests: dict[str, int] = defaultdict(int)
    connections: dict[str, int] = defaultdict(int)
    with start_workers(1) as workers:
        tolerance = scatter(workers.call(clocks, waiters)[0])
    for number in range(1, rounds + 1):
        for key, kind in kinds.items():
            tell(f"round {number} of {rounds}: {key}")
            observer.flush()

            def watch(key: str = key) -> None:
                observer.reset()
                time.sleep(seconds)
                requests[key] += observer.read().requests
                count(key)

            def count(key: str = key) -> None:
                connections[key] = max(connections[key], observer.connections())

            with start_workers(1) as workers:
                answers[key] += workers.call(drain, kind, waiters, seconds, seconds=LIMIT, when_ready=watch)
                count()
    return {
        key: {
            **_figures(answers[key], waiters, tolerance),
            "requests_per_second": requests[key] / (rounds * seconds),
            "connections": connections[key],
        }
        for key in kinds
    }


def _figures(answers: list[Drained], waiters: int, tolerance: float) -> Figures:
    every = sorted((section for answer in answers for section in answer.sections), key=lambda section: section.got)
    got = min(len(answer.sections) for answer in answers)
    seconds = None
    if got == waiters:
        seconds = median(max(section.got for section in answer.sections) - answer.began for answer in answers)
    return {
        "waiters": waiters,
        "got": got,
        "seconds": seconds,
        "per_second": waiters / seconds if seconds else None,
        "release_ms": median(answer.release_ms for answer in answers),
        "release_failed": sum(not answer.released for answer in answers),
        **order(every, tolerance),
        "order_tolerance_ms": tolerance * 1000,
        "violations": violations(every),
        "troubles": dict(Counter(text for answer in answers for text in answer.troubles)),
    }
