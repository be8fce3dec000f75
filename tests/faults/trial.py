"""One trial: workers compete for locks while faults are injected; then their history is checked."""

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy

from .history import History, Trouble, Violation

TTL = 1.5  # seconds
LOOK_EVERY = 5.0  # seconds between the looks of a process that nobody tells anything
AFTER = 1.0  # seconds for which the trouble of a fault that is over goes on: retries, handoffs to those who stood still
NAMES = ["seat:1", "seat:2", "seat:3"]
HOLDS = [0.0] * 70 + [0.001] * 20 + [0.01] * 6 + [0.05] * 2 + [0.2]  # past 0.1 s a section counts as a long one
TIMEOUTS = [None] * 12 + [0, 0.01, 0.1, 5]
# of semaphores, one after the other: each section draws one of these, or all have the same for some time
LIMITS = [("at random", [1, 2, 3, 4]), ("at random", [2]), ("in turn", [4, 1, 3, 1])]
HOLDS_OF_SEMAPHORES = [0.0] * 30 + [0.001] * 30 + [0.01] * 30 + [0.05] * 9 + [0.2]  # so that many hold at once
INTERRUPTS = 3.0  # of each thread or task, in a second

# of a process that has imported everything, so that what it forks runs at once. Each line that it hears is the order
# for a child. It does not ask how they end, so the number of one that has ended is nobody else's while it lives
LAUNCHER = """
import json
from tests.faults import fencing, worker
say("ready")
while line := hear():
    child = os.fork()
    if not child:
        order = json.loads(line)
        (fencing if "desk" in order else worker).work(order)
    say("child", child)
"""


def alias(url: str | list[str]) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}


def start_launcher() -> Worker:
    launcher = Worker(LAUNCHER, fresh=True)
    launcher.expect("ready")
    return launcher


@dataclass(eq=False)
class Process:
    label: str
    pid: int
    log: Path
    spared: bool  # it is not to be killed
    old: str = ""  # the kind of old code that it runs
    _read: int = 0
    _acquired: int = 0

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def acquired(self) -> int:
        """How often, so far."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            self._read += len(data)
            self._acquired += data.count(b" got ")
        return self._acquired

    def lives(self) -> bool:
        """Whether it runs. When it has ended it stays a zombie, as its launcher does not wait for it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


class Crew:
    def __init__(self, launcher: Worker, server: RedisServer, seed: int = 0) -> None:
        self.launcher = launcher
        self.server = server
        self.random = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-faults-"))
        self.cache = getattr(server, "cache", None) or alias(server.url)
        self.processes: list[Process] = []

    def launch(self, label: str, order: dict[str, Any], *, spared: bool = False) -> Process:
        log = self.folder / f"{label}.log"
        self.launcher.tell(json.dumps({"cache": self.cache, "log": str(log), **order}))
        return Process(label, int(self.launcher.expect("child")[0]), log, spared)

    def end(self) -> None:
        """Let them end. One that does not has left its stacks beside its log."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        deadline = monotonic() + 2 * GENEROUS
        while (stuck := [one for one in self.processes if one.lives()]) and monotonic() < deadline:
            sleep(0.005)
        for process in stuck:
            process.signal(signal.SIGUSR1)
            sleep(1)
            print(f"{process.label} does not end:", Path(f"{process.log}.stacks").read_text(), sep="\n", flush=True)
        assert not stuck

    def close(self) -> None:
        for process in self.processes:
            if process.lives():
                process.signal(signal.SIGKILL)
        until(lambda: not any(process.lives() for process in self.processes))
        shutil.rmtree(self.folder, ignore_errors=True)


class Trial(Crew):
    """Workers against a server, through proxies of their own where something is done to their network."""

    def __init__(self, launcher: Worker, server: RedisServer, order: dict[str, Any]) -> None:
        super().__init__(launcher, server, order.get("seed", 0))
        self.order: dict[str, Any] = {
            "seed": 0, "names": getattr(server, "names", NAMES), "holds": HOLDS, "timeouts": TIMEOUTS, "ttl": TTL,
            "interrupts": INTERRUPTS, "mutant": None, "sweep": False, "settings": getattr(server, "settings", {}),
            "limits": None, "leaders": False, "old": "",
        }  # fmt: skip
        if order.get("limits"):
            self.order["holds"] = HOLDS_OF_SEMAPHORES
        if order.get("leaders"):
            self.order["timeouts"] = [None]  # they stand by
        self.order |= {key: value for key, value in order.items() if value is not None}
        if self.order["limits"]:
            self.order["names"] = [f"semaphore:{name}" for name in self.order["names"]]
        self.victims = random.Random(self.order["seed"])  # who strikes processes may do so in a thread of its own
        self.history = History(late=self.order["ttl"] + LOOK_EVERY - AFTER)
        self.history.counter = getattr(server, "counter", self.history.counter)
        self.proxies: dict[str, Proxy] = {}
        self.labels = (f"p{number}" for number in count(1))
        self.evicted = False  # single keys, maybe, and not what belongs to them
        self.moved(server)

    def add(self, *, proxied: bool = False, spared: bool = False, old: str = "") -> None:
        """One more worker, which may run old code of this kind; it has held its first lock when this returns."""
        label = next(self.labels)
        order = {**self.order, "seed": f"{self.order['seed']} {label}", "old": old}
        if proxied:
            self.proxies[label] = Proxy(self.server.port)
            order["cache"] = alias(self.proxies[label].url)
        process = self.launch(label, order, spared=spared)
        process.old = old
        until(process.acquired)
        self.processes.append(process)

    def any(self, *, killable: bool = False) -> Process:
        return self.victims.choice([process for process in self.processes if not (killable and process.spared)])

    def proxied(self) -> Process:
        """One behind a proxy; the next may just be about to start."""
        while not (known := [one for one in self.processes if one.label in self.proxies]):
            sleep(0.01)
        return self.random.choice(known)

    def kill(self, process: Process) -> None:
        """kill -9. What it held is nobody's until its lease has ended."""
        now = monotonic()
        process.signal(signal.SIGKILL)
        self.history.dead.add(process.label)
        self.history.troubles.append(Trouble(now, now + TTL + AFTER, process.label))
        self.processes.remove(process)

    def redis(self, *command: Any) -> Any:
        return self.client.execute_command(*command)

    def moved(self, server: RedisServer) -> None:
        self.server = server
        # a restart or CLIENT KILL may have closed its connection
        # (and on a busy machine a command may take longer than the five seconds that redis-py gives it)
        self.client = server.client(retry=Retry(NoBackoff(), 1), socket_timeout=GENEROUS)

    @contextmanager
    def trouble(self, process: Process | None = None, *, forgets: bool = False, after: float = AFTER) -> Iterator[None]:
        """What is done inside excuses what the checker would not forgive otherwise."""
        begin = monotonic()
        try:
            yield
        finally:
            now = monotonic()
            label = None if process is None else process.label
            self.history.troubles.append(Trouble(begin, now + after, label))
            if forgets:
                self.history.troubles.append(Trouble(begin, now, label, forgets=True))

    def obtained(self, times: int = 1) -> None:
        """Wait until every worker that lives has acquired locks again, so many times: the trouble is over."""
        wanted = {process: process.acquired() + times for process in self.processes}
        until(lambda: all(one.acquired() >= wanted.get(one, 0) for one in list(self.processes)))

    def finds(self, kinds: set[str], sections: int) -> bool:
        """Whether the history shows any of these before every worker has entered so many sections."""
        while True:
            enough = all(process.acquired() >= sections for process in self.processes)
            so_far = History(troubles=self.history.troubles, dead=self.history.dead, until=monotonic())
            so_far.read(self.folder)
            if any(violation.kind in kinds for violation in so_far.check()):
                return True
            if enough:
                return any(violation.kind in kinds for violation in self.finish())
            sleep(0.2)  # which leaves the machine to the workers

    def finish(self) -> list[Violation]:
        """Let the workers end, and return what was wrong."""
        self.end()
        self.history.read(self.folder)
        found = self.history.check()
        # where nothing went wrong, nobody has to clear up behind the others
        found += self.left("queue:") if not self.history.troubles else []
        # use each lock once more, as the next one would
        sweeper = self.launch("sweeper", {**self.order, "sweep": True})
        until(lambda: not sweeper.lives())
        assert " bye" in sweeper.log.read_text(), "some lock cannot be acquired any more"
        if "ALSO_LOCK" in self.order["settings"]:
            until(lambda: all(key.startswith(b"redislock") for key in self.client.scan_iter(count=1000)))
        return [*found, *self.left("")]

    def left(self, where: str) -> Iterator[Violation]:
        """What is in Redis though nobody uses a lock now; only what is called ``where...``."""
        clients = getattr(self.server, "masters", lambda: [self.client])()
        until(lambda: not any(client.pubsub_channels("redislock*") for client in clients))
        for client in clients:
            for key in client.scan_iter(f"redislock*:{where}*", count=1000):
                name = key.decode().partition(":")[2]
                try:
                    ends = client.pttl(key) != -1  # or has ended just now
                except redis.exceptions.MovedError:
                    continue  # of a slot that this node has no more, see migrate_keys()
                content = client.hkeys(key) if name.startswith("waiters:") else ""
                # a process that let a handoff run out is remembered for a minute
                suspects = content and {*content} <= {b"!", b"?"} and self.history.troubles
                # eviction takes the queue and leaves what is known of its waiters
                orphans = content and self.evicted
                if name != "fence" and not (ends and (suspects or orphans or name.startswith("gone:"))):
                    yield Violation("left", f"{name} ({'ends' if ends else 'stays'}) {content}")

    def close(self) -> None:
        super().close()
        self.client.close()
        for proxy in self.proxies.values():
            proxy.close()


@contextmanager
def trial(
    launcher: Worker, server: RedisServer, workers: int = 2, *, proxied: Any = (), spared: Any = (), **order: Any
) -> Iterator[Trial]:
    """A run with so many workers, some of them behind proxies or spared from ``kill -9``, for the time of a block."""
    run = Trial(launcher, server, order)
    try:
        for index in range(workers):
            run.add(proxied=index in proxied, spared=index in spared)
        yield run
    finally:
        run.close()


@contextmanager
def moving(launcher: Worker, server: RedisServer, kind: str, workers: int = 4, **order: Any) -> Iterator[Trial]:
    """Half of the workers run old code, the others ours, as during the days of a move (``ALSO_LOCK``)."""
    order = {"settings": {"ALSO_LOCK": kind}, "ttl": 8, **order}  # whole seconds, for python-redis-lock
    with trial(launcher, server, workers, **order) as run:
        for _ in range(workers):
            run.add(old=kind)
        yield run
