"""Old code and ours compete for the same locks, as during the days of a move (``ALSO_LOCK``); processes are killed.

Each process writes down when it is inside, by the clock of the machine.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import redis
import redis_lock
from django.core.cache import caches
from django.test import override_settings

from django_redislock import Lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.processes import Worker

TTL = 8  # seconds, whole ones for python-redis-lock
HOLDS = [0.0] * 90 + [0.001] * 8 + [0.01, 0.2]

OLD: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "redis-py": lambda client, name, **options: client.lock(name, **options),
    "django-redis": lambda client, name, **options: caches["default"].lock(name, **options),  # type: ignore[attr-defined]
    "python-redis-lock": lambda client, name, timeout, sleep: redis_lock.Lock(client, name, expire=timeout),
}
CODE = """
from tests.faults.moving import compete
say("ready")
compete(kind, ours, path, names, on)
"""


def compete(kind: str, ours: bool, path: str, names: Sequence[str], on: bool = True) -> None:
    """Use the locks until SIGTERM. ``on``: with the setting."""
    over = False

    def stop(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, stop)
    client, draw = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"]), random.Random(os.getpid())
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(event: str, name: str) -> None:
        os.write(log, f"{time.monotonic():.6f} {event} {os.getpid()} {int(ours)} {name}\n".encode())

    with override_settings(REDISLOCK={"ALSO_LOCK": kind if on else None, "TTL": TTL}):
        while not over:
            name = draw.choice(names)
            try:
                with Lock(name) if ours else OLD[kind](client, name, timeout=TTL, sleep=0.01):
                    note("in", name)
                    time.sleep(draw.choice(HOLDS))
                    note("out", name)
            except (redis.exceptions.LockError, redis_lock.NotAcquired):
                note("lost", name)


class Told(NamedTuple):
    sections: dict[bool, int]  # that have ended, of ours and of old code
    lost: int
    overlaps: list[str]


def read(path: Path) -> Told:
    inside: dict[str, set[str]] = defaultdict(set)
    sections, lost, overlaps = Counter[bool](), 0, list[str]()
    lines = [line.split() for line in path.read_text().splitlines()]
    for at, event, pid, ours, name in sorted(lines, key=lambda line: float(line[0])):
        if event == "dead":
            for holders in inside.values():
                holders.discard(pid)
        elif event == "in":
            if inside[name]:
                overlaps.append(f"{at}: {pid} (ours: {ours}) entered {name}, where {inside[name]} were")
            inside[name].add(pid)
        elif event == "out":
            inside[name].discard(pid)
            sections[ours == "1"] += 1
        else:
            lost += 1
    return Told(sections, lost, overlaps)


class Move:
    """Half of the processes run old code, the others ours."""

    def __init__(self, kind: str, server: RedisServer, path: Path, names: Sequence[str], seed: int = 0) -> None:
        os.environ["REDISLOCK_TEST_URL"] = server.url
        self.kind, self.server, self.path, self.names = kind, server, path, list(names)
        self.draw = random.Random(seed)
        self.workers: list[tuple[bool, Worker]] = []
        self.kills = self._read = self._ended = 0
        path.touch()

    def add(self, *, ours: bool, on: bool = True) -> None:
        worker = Worker(CODE, kind=self.kind, ours=ours, path=str(self.path), names=self.names, on=on)
        self.workers.append((ours, worker))

    def ready(self) -> None:
        for _, worker in self.workers:
            worker.expect("ready", 2 * GENEROUS)

    def kill(self) -> None:
        """kill -9 of any, and start another one like it."""
        one = self.draw.choice(self.workers)
        self.workers.remove(one)
        ours, worker = one
        worker.kill()
        with self.path.open("a") as log:
            log.write(f"{time.monotonic():.6f} dead {worker.pid} {int(ours)} -\n")
        self.kills += 1
        self.add(ours=ours)
        self.workers[-1][1].expect("ready", 2 * GENEROUS)

    def sections(self) -> int:
        """How many have ended so far."""
        with self.path.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        self._read += len(data)
        self._ended += data.count(b" out ")
        return self._ended

    def end(self) -> list[str]:
        """Let them end; return the keys that are left when all leases are over."""
        for _, worker in self.workers:
            worker.signal(signal.SIGTERM)
        for _, worker in self.workers:
            worker.process.wait(2 * GENEROUS)
        with self.server.client() as client:

            def left() -> list[str]:
                keys = [key.decode() for key in client.scan_iter(count=1000)]
                return [key for key in keys if not key.endswith("}:fence") and "}:gone:" not in key]

            deadline = time.monotonic() + 3 * TTL
            while left() and time.monotonic() < deadline:
                time.sleep(0.05)
            return left()

    def close(self) -> None:
        for _, worker in self.workers:
            worker.kill()
