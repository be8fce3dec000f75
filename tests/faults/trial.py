"""One trial: workers compete for locks while faults are injected; then their history is checked."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from redisserver import RedisServer
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy

from . import worker
from .growth import Sample, Watch, of_process, of_server
from .history import History, Trouble, Violation

TTL = 1.5  # seconds
LOOK_EVERY = 5.0  # seconds between the looks of a process that nobody tells anything
AFTER = 1.0  # seconds for which the trouble of a fault that is over goes on: retries, handoffs to those who stood still
NAMES = ["seat:1", "seat:2", "seat:3"]
HOLDS = [0.0] * 70 + [0.001] * 20 + [0.01] * 6 + [0.05] * 2 + [0.2]  # past 0.1 s a section counts as a long one
TIMEOUTS = [None] * 12 + [0, 0.01, 0.1, 5]
INTERRUPTS = 3.0  # of each thread or task, in a second
PATIENCE = 60.0  # seconds that nothing should take


def eventually(condition: Callable[[], Any]) -> None:
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline, f"still not so after {PATIENCE} s"
        sleep(0.005)


def alias(url: str | list[str]) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}


class Process:
    """A worker, as the trial knows it."""

    def __init__(self, label: str, pid: int, log: Path, *, spared: bool = False) -> None:
        self.label = label
        self.pid = pid
        self.log = log
        self.spared = spared
        self._read = self._acquired = 0

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def said(self, event: str) -> bool:
        return self.log.exists() and f" {event}" in self.log.read_text()

    def acquired(self) -> int:
        """How often it has acquired a lock so far."""
        if not self.log.exists():
            return 0
        with self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        self._acquired += data.count(b" got ")
        return self._acquired

    def blocks(self) -> Sample:
        """What its Python has allocated, as it has said last."""
        file = Path(f"{self.log}.blocks")
        return {"blocks of Python, 1000": int(file.read_text()) / 1000}

    def show_stacks(self, trouble: str) -> None:
        """Print where its threads are."""
        self.signal(signal.SIGUSR1)
        file = Path(f"{self.log}.stacks")
        eventually(lambda: "most recent call first" in file.read_text())
        print(f"{self.label} {trouble}:", file.read_text(), sep="\n", flush=True)

    def lives(self) -> bool:
        """Whether it runs. When it has ended it stays a zombie, as its launcher does not wait for it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def has_ended(self) -> bool:
        return not self.lives()


class Launcher:
    """Forks workers from a process that has imported everything, so that a new one runs at once.

    ``module``: the one whose ``work()`` they do.
    """

    def __init__(self, module: str = worker.__name__) -> None:
        self._worker = Worker(worker.LAUNCHER, module=module)
        self._worker.expect("ready")

    def launch(self, order: dict[str, Any]) -> int:
        self._worker.tell(json.dumps(order))
        return int(self._worker.expect("child")[0])

    def close(self) -> None:
        self._worker.kill()


class Trial:
    """Workers against a server, through proxies of their own where something is done to their network."""

    def __init__(
        self,
        launcher: Launcher,
        server: RedisServer,
        *,
        seed: int = 0,
        names: Sequence[str] | None = None,
        holds: Sequence[float] | None = None,
        timeouts: Sequence[float | None] = TIMEOUTS,
        threads: int = 2,
        tasks: int = 3,
        ttl: float | None = None,
        mutant: str | None = None,
        leak: int = 0,
        interrupts: float = INTERRUPTS,
    ) -> None:
        self.launcher = launcher
        self.server = server
        self.random = random.Random(seed)
        self.victims = random.Random(seed)  # who strikes processes may do so in a thread of its own
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-faults-"))
        self.history = History(late=(ttl or TTL) + LOOK_EVERY - AFTER)
        self.history.counter = getattr(server, "counter", self.history.counter)
        self.processes: list[Process] = []
        self.proxies: dict[str, Proxy] = {}
        self.cache = getattr(server, "cache", None) or alias(server.url)
        self.order: dict[str, Any] = {
            "seed": seed, "names": list(names or getattr(server, "names", NAMES)), "holds": list(holds or HOLDS),
            "timeouts": list(timeouts), "ttl": ttl or TTL,
            "threads": threads, "tasks": tasks, "mutant": mutant, "leak": leak, "interrupts": interrupts,
            "sweep": False, "settings": getattr(server, "settings", {}),
        }  # fmt: skip
        self._all: list[Process] = []
        self.evicted = False  # single keys, maybe, and not what belongs to them
        self.moved(server)

    # -- workers ----------------------------------------------------------------------------------------------------

    def add(self, *, proxied: bool = False, spared: bool = False) -> Process:
        """One more worker; it has held its first lock when this returns.

        ``spared``: not to be killed.
        """
        label = f"p{len(self._all) + 1}"
        cache = self.cache
        if proxied:
            self.proxies[label] = Proxy(self.server.port)
            cache = alias(self.proxies[label].url)
        log = self.folder / f"{label}.log"
        seed = f"{self.order['seed']} {label}"
        pid = self.launcher.launch({**self.order, "log": str(log), "cache": cache, "seed": seed})
        process = Process(label, pid, log, spared=spared)
        self.processes.append(process)
        self._all.append(process)
        try:
            self.until(lambda: process.said("got"))
        except AssertionError:
            process.show_stacks("has got no lock")
            raise
        return process

    def any(self, *, killable: bool = False) -> Process:
        return self.victims.choice([process for process in self.processes if not (killable and process.spared)])

    def proxied(self) -> Process:
        """One behind a proxy, which has held its first lock: else a new one might never come so far."""
        known: list[Process] = []

        def look() -> list[Process]:
            known[:] = [one for one in self.processes if one.label in self.proxies and one.said("got")]
            return known

        self.until(look)  # the next may just be about to start
        return self.random.choice(known)

    def kill(self, process: Process) -> None:
        """kill -9. What it held is nobody's until its lease has ended."""
        now = monotonic()
        process.signal(signal.SIGKILL)
        self.history.dead.add(process.label)
        self.history.troubles.append(Trouble(now, now + TTL + AFTER, process.label))
        self.processes.remove(process)

    def redis(self, *command: Any) -> Any:
        """Tell the server something, from outside."""
        return self.client.execute_command(*command)

    def moved(self, server: RedisServer) -> None:
        """This is the server now."""
        self.server = server
        # a restart or CLIENT KILL may have closed its connection
        self.client = server.client(retry=Retry(NoBackoff(), 1))

    # -- time -------------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any]) -> None:
        eventually(condition)

    def last(self, seconds: float) -> None:
        """Let a fault go on for so long."""
        sleep(seconds)

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
        self.until(lambda: all(one.acquired() >= wanted.get(one, 0) for one in list(self.processes)))

    def entered(self, times: int) -> None:
        """Wait for so many sections more, of all workers together."""
        so_far = self._entered()
        self.until(lambda: self._entered() >= so_far + times)

    def _entered(self) -> int:
        return sum(process.acquired() for process in list(self._all))

    def enough(self, times: int) -> bool:
        """Whether every worker has acquired so many locks in all."""
        return all(process.acquired() >= times for process in self.processes)

    def shows(self, kinds: set[str]) -> bool:
        """Whether the history shows any of these already."""
        so_far = History()
        so_far.read(self.folder)
        return any(violation.kind in kinds for violation in so_far.check())

    # -- growth -----------------------------------------------------------------------------------------------------

    def look_at_spared(self, watch: Watch) -> None:
        for process in self.processes:
            if process.spared:
                watch.note(process.label, process.blocks() | of_process(process.pid))

    def look_at_server(self, watch: Watch) -> None:
        with suppress(RedisError):  # the server is the one in trouble now
            watch.note("server", of_server(self.client))

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Violation]:
        """Let the workers end, and return what was wrong."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        deadline = monotonic() + PATIENCE
        for process in self.processes:
            while process.lives() and monotonic() < deadline:
                sleep(0.005)
        stuck = [process for process in self.processes if process.lives()]
        for process in stuck:
            process.show_stacks("does not end")
        self.history.read(self.folder)
        found = self.history.check()
        if not stuck:
            # where nothing went wrong, nobody has to clear up behind the others
            found += self.left("queue:") if not self.history.troubles else []
            self.sweep()
            found += self.left("")
        return found

    def sweep(self) -> None:
        """Use each lock once more, as the next one would."""
        log = self.folder / "sweeper.txt"
        pid = self.launcher.launch({**self.order, "log": str(log), "cache": self.cache, "sweep": True})
        sweeper = Process("sweeper", pid, log)
        self.until(lambda: not sweeper.lives())
        assert sweeper.said("bye"), "some lock cannot be acquired any more"

    def left(self, where: str) -> Iterator[Violation]:
        """What is in Redis though nobody uses a lock now; only what is called ``where...``."""
        for client in getattr(self.server, "masters", lambda: [self.client])():
            yield from self._left_at(client, where)

    def _left_at(self, client: Redis, where: str) -> Iterator[Violation]:
        self.until(lambda: not client.pubsub_channels("redislock*"))
        for key in client.scan_iter(f"redislock*:{where}*", count=1000):
            name = key.decode().partition(":")[2]
            ends = client.pttl(key) != -1  # or has ended just now
            content: Any = client.hkeys(key) if name.startswith("waiters:") else ""
            # a process that let a handoff run out is remembered for a minute
            suspects = content and {*content} <= {b"!", b"?"} and self.history.troubles
            # eviction takes the queue and leaves what is known of its waiters
            orphans = content and self.evicted
            if name != "fence" and not (ends and (suspects or orphans or name.startswith("gone:"))):
                yield Violation("left", f"{name} ({'ends' if ends else 'stays'}) {content}")

    def close(self) -> None:
        for process in self.processes:
            if process.lives():
                process.signal(signal.SIGKILL)
        self.until(lambda: not any(process.lives() for process in self.processes))
        self.client.close()
        for proxy in self.proxies.values():
            proxy.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def trial(
    launcher: Launcher,
    server: RedisServer,
    *,
    workers: int = 2,
    proxied: Sequence[int] = (),
    spared: Sequence[int] = (),
    **options: Any,
) -> Iterator[Trial]:
    """A run with so many workers, some of them behind proxies or spared, for the time of a block."""
    with ExitStack() as stack:
        run = Trial(launcher, server, **options)
        stack.callback(run.close)
        for index in range(workers):
            run.add(proxied=index in proxied, spared=index in spared)
        yield run
