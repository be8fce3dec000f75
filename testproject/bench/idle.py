"""Processes full of threads that wait while one holds: what waiting costs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from redisserver import RedisServer

from .crew import Crew
from .figures import Figures
from .report import Row
from .serverstats import Observer
from .worker import Worker

SETTLE = 1.0  # seconds from the last thread's request to the first count

ROWS = (
    Row("waiting", "waiting threads", "{:d}"),
    Row("requests_per_second_per_process", "commands/s per waiting process", "{:.2f}"),
    Row("connections", "connections in all, with the holder's", "{:d}"),
)


def hold(worker: Worker, key: str, ttl: int) -> None:
    """Take the lock and keep it."""
    worker.kept.append(worker.contender(key, ttl).acquire())
    worker.ready()


def wait(worker: Worker, key: str, ttl: int, waiters: int) -> None:
    """Start threads that wait, and return when all have asked."""
    contender = worker.contender(key, ttl)
    asked = threading.Semaphore(0)

    def ask() -> None:
        asked.release()
        try:
            contender.acquire()
        except Exception as error:
            worker.troubles.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(waiters)]
    worker.kept.append(threads)
    for thread in threads:
        thread.start()
    for _ in threads:
        asked.acquire()
    worker.ready()


def look(worker: Worker) -> tuple[int, list[str]]:
    """How many threads still wait, and why others do not."""
    worker.ready()
    threads = [thread for kept in worker.kept if isinstance(kept, list) for thread in kept]
    return sum(thread.is_alive() for thread in threads), worker.troubles


def measure(
    server: RedisServer,
    observer: Observer,
    keys: list[str],
    *,
    procs: int,
    waiters: int,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``procs`` processes of ``waiters`` threads each, for ``seconds``, for one contender after the other."""
    ttl = round(3 * seconds) + 60  # the holder's first renewal, at a third, comes when we have finished counting
    figures: dict[str, Figures] = {}
    for key in keys:
        tell(key)
        observer.flush()
        with Crew(server.url, 1) as holder, Crew(server.url, procs) as crew:
            holder.call(hold, key, ttl)
            crew.call(wait, key, ttl, waiters)
            time.sleep(SETTLE)
            observer.reset()
            start = time.monotonic()
            time.sleep(seconds)
            requests = observer.read().requests
            spent = time.monotonic() - start
            connections = observer.connections()
            answers = crew.call(look)
        figures[key] = {
            "waiting": sum(waiting for waiting, _ in answers),
            "requests_per_second_per_process": requests / spent / procs,
            "connections": connections,
            "troubles": dict(Counter(text for _, texts in answers for text in texts)),
        }
    return figures
