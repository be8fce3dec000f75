"""Many threads of one process wait for one lock that this process holds; then it releases."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import NamedTuple

from redisserver import RedisServer

from .contenders import TTL
from .crew import Crew
from .figures import Figures, Section, order, scatter, violations
from .report import Row
from .serverstats import Observer
from .worker import Worker

LIMIT = 20.0  # seconds for all to get it

ROWS = (
    Row("waiters", "waiting threads", "{:d}"),
    Row("got", "of them got it (worst round)", "{:d}"),
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


def drain(worker: Worker, key: str, waiters: int) -> Drained:
    """Hold, let the threads queue, release, and wait until all have had the lock for a moment."""
    contender = worker.contender(key, TTL)
    worker.note_tickets()
    held = contender.acquire()
    sections: list[Section] = []

    def enter(number: int) -> None:
        try:
            sections.append(worker.section(contender, number, 0))
        except Exception as error:
            worker.troubles.append(_told(error))

    threads = _start(waiters, enter)
    time.sleep(0.3 + waiters * 0.003)  # until they wait: no contender but ours could tell
    worker.ready()
    released = True
    began = monotonic()
    try:
        held.release()
    except Exception as error:
        worker.troubles.append(f"the holder: {_told(error)}")
        released = False
    release_ms = (monotonic() - began) * 1000
    for thread in threads:
        # who could not release has the others wait for its TTL
        thread.join(max(0.0, began + LIMIT - monotonic()) if released else 0.0)
    return Drained(began, release_ms, released, sections.copy(), worker.troubles.copy())


def clocks(worker: Worker, waiters: int) -> list[float]:
    """The server's clock minus ours at the sending, when as many threads ask for it at once."""
    client = worker.contender("floor", TTL).client
    offsets: list[float] = []

    def ask(number: int) -> None:
        asked = monotonic()
        seconds, us = client.time()
        offsets.append(seconds + us / 1e6 - asked)

    worker.ready()
    for thread in _start(min(waiters, 90), ask):  # redis-py's pool ends at 100
        thread.join()
    return offsets


def _start(number: int, target: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, args=(i,), daemon=True) for i in range(number)]
    for thread in threads:
        thread.start()
    return threads


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def measure(
    server: RedisServer,
    observer: Observer,
    keys: list[str],
    *,
    waiters: int,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``rounds`` with a fresh process for each contender."""
    answers: dict[str, list[Drained]] = defaultdict(list)
    connections: dict[str, int] = defaultdict(int)
    with Crew(server.url, 1) as crew:
        tolerance = scatter(crew.call(clocks, waiters)[0])
    for number in range(1, rounds + 1):
        for key in keys:
            tell(f"round {number} of {rounds}: {key}")
            observer.flush()

            def count(key: str = key) -> None:
                connections[key] = max(connections[key], observer.connections())

            with Crew(server.url, 1) as crew:
                answers[key] += crew.call(drain, key, waiters, seconds=LIMIT, when_ready=count)
                count()
    return {key: _figures(answers[key], waiters, connections[key], tolerance) for key in keys}


def _figures(answers: list[Drained], waiters: int, connections: int, tolerance: float) -> Figures:
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
        "connections": connections,
        **order(every, tolerance),
        "order_tolerance_ms": tolerance * 1000,
        "violations": violations(every),
        "troubles": dict(Counter(text for answer in answers for text in answer.troubles)),
    }
