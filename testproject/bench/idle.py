"""What waiting costs: processes full of threads or coroutines that wait while one holds the lock."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from .contenders import Contender
from .figures import Figures
from .report import Row
from .runners import Crowd, Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

SETTLE = 1.0  # seconds from the last request to the first count

ROWS = (
    Row("waiting", "waiting", "{:d}"),
    Row("requests_per_second_per_process", "commands/s per waiting process", "{:.2f}"),
    Row("connections", "connections in all, with the holder's", "{:d}"),
)


def hold(worker: Worker, kind: type[Contender], ttl: int) -> Routine[None]:
    """Take the lock and keep it."""
    held = threading.Event()

    def keep(number: int) -> Routine[None]:
        worker.kept.append((yield (worker.contender(kind, ttl).acquire,)))
        held.set()
        yield worker.runner.sleep, ttl  # a lock belongs to its thread or task, which must live on

    worker.runner.start(1, keep)
    yield worker.runner.run_blocking, held.wait
    yield worker.ready()


def wait(worker: Worker, kind: type[Contender], ttl: int, waiters: int) -> Routine[float]:
    """Start many waiters, and return when all have sent their request."""
    contender = worker.contender(kind, ttl)
    asked = Crowd(waiters)

    def ask(number: int) -> Routine[None]:
        asked.leave()
        try:
            yield (contender.acquire,)
        except Exception as error:
            worker.troubles.append(f"{type(error).__name__}: {error}")

    worker.kept.append(worker.runner.start(waiters, ask))
    yield worker.runner.run_blocking, asked.over.wait
    yield worker.ready()
    return worker.runner.each * waiters


def look(worker: Worker) -> Routine[tuple[int, list[str]]]:
    """How many are still waiting, and why others are not."""
    yield worker.ready()
    return sum(kept.alive for kept in worker.kept if isinstance(kept, Crowd)), worker.troubles


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Contender]],
    *,
    procs: int,
    waiters: int,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """``procs`` processes of ``waiters`` each, for ``seconds``, for one contender after the other."""
    ttl = round(3 * seconds) + 60  # the holder's first renewal, at a third of the TTL, comes after the counting
    figures: dict[str, Figures] = {}
    for key, kind in kinds.items():
        tell(key)
        observer.flush()
        with start_workers(1) as holder, start_workers(procs) as workers:
            holder.call(hold, kind, ttl)
            time.sleep(SETTLE + sum(workers.call(wait, kind, ttl, waiters)))
            observer.reset()
            start = time.monotonic()
            time.sleep(seconds)
            requests = observer.read().requests
            spent = time.monotonic() - start
            connections = observer.connections()
            answers = workers.call(look)
        figures[key] = {
            "waiting": sum(waiting for waiting, _ in answers),
            "requests_per_second_per_process": requests / spent / procs,
            "connections": connections,
            "troubles": dict(Counter(text for _, texts in answers for text in texts)),
        }
    return figures
