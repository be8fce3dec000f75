"""Measures whether a database loses updates under a lock, with a fence and without, whatever happens to Redis.

Bookers, each in a process of its own, add one to a balance under a lock: they read, wait a moment, and write. One of
them is made to halt between two statements. Then something happens to it or to Redis, so that another one gets the same
lock. In the end the balance is compared with what the bookers have committed.
"""

import mmap
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import redis_lock
from django.core.cache import cache
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.test import override_settings
from django_redis import get_redis_connection
from redis import RedisError

from django_redislock import force_release, locked_atomic
from redisserver import RedisServer, redis_server
from tests import inside
from tests.helpers.actors import until
from tests.helpers.databases import (
    LEVELS,
    Account,
    at_level,
    configure,
    mariadb_server,
    one_database,
    postgres_server,
    sqlite_file,
    with_fences,
)
from tests.helpers.processes import Worker

from .faults import Clock, server_with_clock
from .on_several import OnSentinels, on_sentinels, replace_master
from .trial import Crew
from .worker import be_worker, stopping

BOOKERS = 4
STUCK = 0.4  # seconds: a booker that has not committed for so long is waiting for the database
HOUR = 3600
REST = 30  # undisturbed sections between two faults
TTL = 1  # seconds: python-redis-lock takes whole ones
NAME = "account"
TOLD = (RedisError, DatabaseError, redis_lock.NotAcquired)  # LockLost and the other errors of locks are RedisErrors


PLACES = CLAIM, WRITE, COMMIT = 1, 2, 3  # where a booker may halt: just before that step
# what lies where on a desk: the place where a booker is to halt, or 0 (only the trial writes it), whether it halts, and
# how often it has entered and committed
HALT, HALTED, ENTERED, COMMITTED, SIZE = range(5)


def desk_in(path: Path) -> memoryview:
    with path.open("a+b") as file:
        file.truncate(8 * SIZE)
        return memoryview(mmap.mmap(file.fileno(), 8 * SIZE)).cast("q")


def other(lock: Any) -> AbstractContextManager[object]:
    """The lock of another library, around a transaction."""
    stack = ExitStack()
    stack.enter_context(lock)
    stack.enter_context(transaction.atomic())
    return stack


WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "fenced": lambda: locked_atomic(NAME, fenced=True, ttl=TTL),
    "unfenced": lambda: locked_atomic(NAME, fenced=False, ttl=TTL),
    "python-redis-lock": lambda: other(redis_lock.Lock(get_redis_connection(), NAME, expire=TTL, auto_renewal=True)),
    "cache.lock": lambda: other(getattr(cache, "lock")(NAME, timeout=TTL, sleep=0.01)),  # noqa: B009
}


# Django's default levels
DEFAULTS = [level for level in LEVELS if level == "sqlite" or level.endswith("read committed")]
ROWS = [(level, way) for level in LEVELS for way in WAYS if level in DEFAULTS or way in ("fenced", "unfenced")]


class Booker:
    def __init__(self, order: dict[str, Any]) -> None:
        self.log = be_worker(order)
        self.desk = desk_in(Path(order["desk"]))
        self.way = WAYS[order["way"]]
        self.launcher = os.getppid()
        self.within = False  # it believes that it has the lock
        self.wrote = self.fence = 0
        self.before_writing: Callable[[], object] = lambda: None
        inside.on_claim(self.enter, lambda fence: setattr(self, "fence", fence))
        connection = connections[DEFAULT_DB_ALIAS]
        self._commit = connection.commit
        setattr(connection, "commit", self.commit)  # noqa: B010

    def book(self) -> None:
        self.within = False
        row = Account(DEFAULT_DB_ALIAS)
        try:
            with self.way():
                self.enter()
                balance = row.balance
                self.before_writing()
                self.stand(WRITE)
                self.wrote = row.balance = balance + 1
        except TOLD:
            sleep(0.01)  # while Redis is away

    def enter(self) -> None:
        """This is called before the claim, or, without a claim, when the block begins."""
        if not self.within:
            self.within = True
            self.desk[ENTERED] += 1
            self.stand(CLAIM)

    def commit(self) -> None:
        """Replaces the connection's method, and calls it: the last moment before COMMIT is sent."""
        self.stand(COMMIT)
        self._commit()
        self.log.note("committed", self.wrote, self.fence)
        self.desk[COMMITTED] += 1

    def stand(self, place: int) -> None:
        if self.desk[HALT] == place:
            self.desk[HALTED] = True
            while self.desk[HALT]:
                if os.getppid() != self.launcher:
                    os._exit(1)  # the tests were killed
                sleep(0.001)
            self.desk[HALTED] = False


# put into the fencing, each of them must be found
BUGS: dict[str, Callable[[Booker], None]] = {
    "claim nothing": lambda booker: inside.claim_nothing(),
    "claim after the first read": lambda booker: setattr(booker, "before_writing", inside.put_claims_off()),
}


def work(order: dict[str, Any]) -> None:
    threading.excepthook = lambda _: None  # python-redis-lock's renewal ends with a traceback when the lock is lost
    del connections[DEFAULT_DB_ALIAS]  # the launcher's connection
    configure(DEFAULT_DB_ALIAS, order["database"])
    with override_settings(CACHES={"default": order["cache"]}):
        booker = Booker(order)
        if order.get("mutant"):
            BUGS[order["mutant"]](booker)
        while not stopping.is_set():
            booker.book()
    connections.close_all()
    sys.exit()


class Bookers(Crew):
    def __init__(self, launcher: Worker, server: RedisServer, seed: int, order: dict[str, Any]) -> None:
        super().__init__(launcher, server, seed)
        self.desks: list[memoryview] = []
        self.flush()
        for number in range(BOOKERS):
            file = self.folder / f"{number}.desk"
            self.desks.append(desk_in(file))
            self.processes.append(self.launch(f"b{number}", {**order, "desk": str(file)}))

    def flush(self) -> None:
        server = self.server.group.master_server() if isinstance(self.server, OnSentinels) else self.server
        with server.client() as client:
            client.flushall()

    def release(self) -> None:
        """Force-release the lock, like an operator who believes that its holder is dead."""
        with override_settings(CACHES={"default": self.cache}):
            force_release(NAME)
        with self.server.client() as client:
            for key in client.scan_iter(f"*{NAME}", count=1000):  # locks of the other libraries
                if not key.startswith(b"redislock"):
                    client.delete(key)

    def total(self, what: int, *, but: int | None = None) -> int:
        return sum(desk[what] for number, desk in enumerate(self.desks) if number != but)

    def more(self, sections: int) -> None:
        wanted = self.total(ENTERED) + sections
        until(lambda: self.total(ENTERED) >= wanted)

    @contextmanager
    def halted(self, place: int) -> Iterator[int]:
        """Halt a booker at this place, at least until the end of the block; see also :meth:`overtaken`."""
        one = self.random.randrange(BOOKERS)
        desk = self.desks[one]
        desk[HALT] = place
        try:
            until(lambda: desk[HALTED])
            self.before = [self.total(what, but=one) for what in (ENTERED, COMMITTED)]
            yield one
        finally:
            desk[HALT] = 0
        until(lambda: not desk[HALTED])

    def overtaken(self, one: int) -> None:
        """Until another has got the same lock, and has committed or seems to wait for the database."""
        until(lambda: self.total(ENTERED, but=one) > self.before[0])
        end = monotonic() + STUCK
        while self.total(COMMITTED, but=one) == self.before[1] and monotonic() < end:
            sleep(0.001)
        self.desks[one][HALT] = 0


Strikes = Sequence[Callable[[Bookers, int], None]]


def meddle(act: Callable[[Bookers, int], None], run: Bookers, place: int) -> None:
    with run.halted(place) as one:
        act(run, one)
        run.overtaken(one)
        run.processes[one].signal(signal.SIGCONT)


pause = partial(meddle, lambda run, one: run.processes[one].signal(signal.SIGSTOP))  # for longer than the TTL
flush = partial(meddle, lambda run, one: run.flush())
release = partial(meddle, lambda run, one: run.release())


def set_clock_back(run: Bookers, place: int) -> None:
    """By an hour, so that new fences would be lower than old ones; in half of the cases, Redis also forgets its last
    fence. The clock is put right when the halted booker has continued."""
    assert isinstance(run.server, Clock)
    run.server.set(-HOUR)
    run.random.choice([flush, release])(run, place)
    run.server.set(0)


def fail_over(run: Bookers, place: int) -> None:
    """To a replica that has not received the grant."""
    assert isinstance(run.server, OnSentinels)
    group = run.server.group
    with ExitStack() as stack:
        held: list[int] = []

        def halt() -> None:
            run.more(2 * BOOKERS)  # locks that are granted while the replica receives nothing
            held.append(stack.enter_context(run.halted(place)))

        old = replace_master(group, halt)
        run.overtaken(held[0])
    old.start()
    group.wait_until_ok()


# kinds of Redis, and the faults that hit them and their clients
STAGES: dict[Callable[[], AbstractContextManager[RedisServer]], Strikes] = {
    on_sentinels: [fail_over],
    server_with_clock: [set_clock_back],
    redis_server: [pause, flush, release],  # the last one runs until there are enough sections
}


def book(
    launcher: Worker, server: RedisServer, strikes: Strikes, *, seed: int = 0, sections: float = 0, **order: Any
) -> Counter[str]:
    """Inject each fault at each place at least once, in random order, then more until there are so many sections."""
    with (
        one_database(DEFAULT_DB_ALIAS, order["database"]) as account,
        with_fences(DEFAULT_DB_ALIAS),
        closing(Bookers(launcher, server, seed, order)) as run,
    ):
        found = Counter[str]()
        while not found or run.total(ENTERED) < sections:
            for strike, place in run.random.sample(pairs := [*product(strikes, PLACES)], len(pairs)):
                run.more(REST)
                strike(run, place)
                found["faults"] += 1
        run.end()
        found["sections"], committed = run.total(ENTERED), run.total(COMMITTED)
        found["lost"], found["refused"] = committed - account.balance, found["sections"] - committed
        found["wrong"] = len(wrong(run.folder, account.balance)) if order["way"] == "fenced" else 0
        return found


def wrong(folder: Path, balance: int) -> list[str]:
    """What must not have happened under a fenced lock. Each COMMIT adds one, so the value that it wrote is its place in
    the order of commits; no two write the same, and their fences are in the same order."""
    lines = [line.split() for log in sorted(folder.glob("*.log")) for line in log.read_text().splitlines()]
    found = [" ".join(words) for _, event, *words in lines if event == "failure"]
    commits = sorted([*map(int, words)] for _, event, *words in lines if event == "committed")
    fences = [fence for _, fence in commits]
    if [wrote for wrote, _ in commits] != [*range(1, balance + 1)] or fences != sorted({*fences}):
        found.append(f"{balance} in the end: {commits}")
    print("".join(f"{one}\n" for one in found), end="")
    return found


@contextmanager
def sqlite_folder() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="redislock-sqlite-") as folder:
        yield sqlite_file(Path(folder))


DATABASES: dict[str, Callable[[], AbstractContextManager[dict[str, Any]]]] = {
    "sqlite": sqlite_folder,
    "postgres": postgres_server,
    "mariadb": mariadb_server,
}


def compare(launcher: Worker, sections: int, seed: int, only: str) -> Iterator[tuple[str, str, Counter[str]]]:
    """(Database, kind of lock, figures), with so many sections in all; ``only``: of databases that begin like this."""
    rows = [(level, way) for level, way in ROWS if level.startswith(only)]
    kinds = {level.partition(" ")[0] for level, _ in rows}
    with ExitStack() as stack:
        servers = [stack.enter_context(stage()) for stage in STAGES]
        running = {kind: stack.enter_context(DATABASES[kind]()) for kind in kinds}
        for level, way in rows:
            found = Counter[str]()
            database = at_level(running[level.partition(" ")[0]], level)
            for server, (stage, strikes) in zip(servers, STAGES.items(), strict=True):
                wanted = sections / len(rows) - found["sections"] if stage is redis_server else 0
                found += book(launcher, server, strikes, seed=seed, sections=wanted, database=database, way=way)
            yield level, way, found
