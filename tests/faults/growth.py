"""Measures whether anything grows in long-running processes: memory, threads, files; in clients and in the server."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import redis

Sample = dict[str, float]

# How much each may vary. Python gives back the memory of connections that were cut, a quarter of a megabyte each for a
# coroutine's, but malloc does not give all of it to the system: a process that has allocated 15 MB from it, no more and
# no less for ten minutes, kept 7 MB besides at first, and then 12 to 22 (some of that for threads of listeners that had
# not ended; without them, it grew by 3). What Python itself has allocated tells better whether something is kept: one
# block of each section would be 100,000 and more. Keys that end stand for a minute at most (gone:<token>, for requests
# with an unknown outcome); one for each section would be ten times as many.
BOUNDS: Sample = {
    "blocks of Python, 1000": 40,
    "own memory, MB": 5,
    "resident memory, MB": 5,
    "threads": 2,
    "open files": 5,
    "used_memory, MB": 1,
    "used_memory_rss, MB": 3,
    "keys that end": 10_000,
    "keys that do not": 0,
    "connections": 10,
    "cached scripts": 5,
}


class Growth(NamedTuple):
    """What a measure was early and late: the median of the second and of the last fifth of its samples. In the first,
    pools and caches fill, and a forked process makes pages its own as it touches them."""

    what: str
    early: float
    late: float

    @property
    def size(self) -> float:
        return self.late - self.early

    @property
    def leaks(self) -> bool:
        return self.size > BOUNDS[self.what]


def growth(what: str, values: Sequence[float]) -> Growth:
    fifth = len(values) // 5
    assert fifth, f"{len(values)} samples of {what} tell nothing"
    return Growth(what, median(values[fifth : 2 * fifth]), median(values[-fifth:]))


class Watch:
    """Samples of several processes of the same kind."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def note(self, who: str, sample: Sample) -> None:
        for what, value in sample.items():
            self._values[what][who].append(value)

    def growth(self) -> list[Growth]:
        """For each measure, the process in which it grew most."""
        return [
            max((growth(what, values) for values in of_each.values()), key=lambda one: one.size)
            for what, of_each in self._values.items()
        ]


@contextmanager
def watching(look: Callable[[Watch], None], every: float = 1.0) -> Iterator[Watch]:
    """Take samples every so many seconds, for the duration of a block."""
    watch, over = Watch(), threading.Event()

    def go_on() -> None:
        while not over.wait(every):
            look(watch)

    with ThreadPoolExecutor() as threads:
        looking = threads.submit(go_on)
        try:
            yield watch
        finally:
            over.set()
            looking.result()  # raises if a sample could not be taken


def of_process(pid: int) -> Sample:
    proc = Path(f"/proc/{pid}")
    sizes = re.findall(r"(\w+): +(\d+) kB", (proc / "smaps_rollup").read_text())
    memory = {name: int(size) / 1024 for name, size in sizes}
    return {
        # not what is private: pages of the launcher become that as others who share them end
        "own memory, MB": memory["Anonymous"],
        "resident memory, MB": memory["Rss"],
        "threads": len(list((proc / "task").iterdir())),
        "open files": len(list((proc / "fd").iterdir())),
    }


def of_server(client: redis.Redis) -> Sample:
    info = client.info()
    database = info.get("db0", {"keys": 0, "expires": 0})
    return {
        "used_memory, MB": info["used_memory"] / 2**20,
        "used_memory_rss, MB": info["used_memory_rss"] / 2**20,
        "keys that end": database["expires"],
        "keys that do not": database["keys"] - database["expires"],
        "connections": info["connected_clients"],
        "cached scripts": info["number_of_cached_scripts"],
    }
