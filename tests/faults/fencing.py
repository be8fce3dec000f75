"""Measures whether a database loses updates under a lock, with a fence and without, whatever happens to Redis.

Bookers (see :mod:`.booker`) add one to balances under locks of these accounts, each in a process of its own. One of
them is made to halt between two statements. Then something happens to it or to Redis, so that another one gets
the same lock. In the end the balances are compared with what the bookers have committed.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.test import override_settings
from redis import Redis

from django_redislock import force_release
from django_redislock.models import Fence
from redisserver import RedisServer, redis_server
from tests.helpers.databases import LEVELS, Account, at_level, one_database, sqlite_file, with_fences
from tests.helpers.mariadb import find_server, mariadb_server
from tests.helpers.postgres import find_programs, postgres_server
from tests.helpers.requirements import require

from . import booker
from .booker import ACCOUNTS, WAYS, Desk, Place, name_of
from .bookings import Bookings
from .clock import Clock, server_with_clock
from .history import Violation
from .on_sentinels import OnSentinels, on_sentinels, replace_unheard
from .trial import Launcher, Process, alias, eventually

BOOKERS = 4
STILL = 0.1  # seconds: a booker that has been at one place for so long is waiting for the database
HOUR = 3600
PLACES = [Place.CLAIM, Place.WRITE, Place.COMMIT]
# Django's default levels
DEFAULTS = [level for level in LEVELS if level == "sqlite" or level.endswith("read committed")]
ROWS = [(level, way) for level in LEVELS for way in WAYS if level in DEFAULTS or way in ("fenced", "unfenced")]


class Figures(NamedTuple):
    """Of one or several runs."""

    sections: int = 0
    strikes: int = 0
    lost: int = 0
    refused: int = 0
    told: int = 0
    wait: float = 0.0  # longest time in seconds from asking for a lock to having it
    violations: tuple[Violation, ...] = ()

    def plus(self, other: Figures) -> Figures:
        return Figures(
            self.sections + other.sections,
            self.strikes + other.strikes,
            self.lost + other.lost,
            self.refused + other.refused,
            self.told + other.told,
            max(self.wait, other.wait),
            self.violations + other.violations,
        )


class Halted(NamedTuple):
    """A booker that halts under the lock of an account, and how often others have had that lock so far."""

    process: Process
    desk: Desk
    account: int
    entered: int
    committed: int


class Run:
    """Bookers on one database and one Redis."""

    def __init__(self, launcher: Launcher, server: RedisServer, folder: Path, seed: int) -> None:
        self.launcher = launcher
        self.server = server
        self.folder = folder
        self.cache = getattr(server, "cache", None) or alias(server.url)
        self.random = random.Random(seed)
        self.strikes = 0
        self.bookers: list[tuple[Process, Desk]] = []

    def add(self, **order: Any) -> None:
        label = f"b{len(self.bookers) + 1}"
        log, desk = self.folder / f"{label}.log", self.folder / f"{label}.desk"
        shared = Desk.at(desk)
        order |= {"log": str(log), "desk": str(desk), "cache": self.cache, "seed": self.random.random()}
        self.bookers.append((Process(label, self.launcher.launch(order), log), shared))

    def master(self) -> Redis:
        server = self.server
        return (server.group.master_server() if isinstance(server, OnSentinels) else server).client()

    # -- what is seen of them ---------------------------------------------------------------------------------------

    @property
    def desks(self) -> list[Desk]:
        return [desk for _, desk in self.bookers]

    def entered(self) -> int:
        return sum(sum(desk.entered) for desk in self.desks)

    def more(self, sections: int) -> None:
        """Wait for so many more sections, of all bookers together."""
        wanted = self.entered() + sections
        self.until(lambda: self.entered() >= wanted)

    def until(self, condition: Callable[[], Any]) -> None:
        def is_so() -> bool:
            assert all(process.lives() for process, _ in self.bookers), "a booker has died"
            return bool(condition())

        eventually(is_so)

    def others(self, desk: Desk, account: int) -> tuple[int, int]:
        """How often all bookers except one have been under the lock of an account, and have committed there."""
        others = [other for other in self.desks if other is not desk]
        return sum(other.entered[account] for other in others), sum(other.committed[account] for other in others)

    # -- where a fault strikes --------------------------------------------------------------------------------------

    @contextmanager
    def halted(self, place: Place) -> Iterator[Halted]:
        """Halt a booker at this place, at least until the end of the block; see also :meth:`overtaken`."""
        process, desk = self.random.choice(self.bookers)
        desk.halt = place
        try:
            self.until(lambda: desk.halted)
            account = desk.account
            yield Halted(process, desk, account, *self.others(desk, account))
        finally:
            desk.halt = Place.OUT
        self.until(lambda: not desk.halted)

    def overtaken(self, by: Halted) -> None:
        """Wait until another has got the same lock, and either has committed or waits for the database. Then it may go
        on."""
        self.until(lambda: self.others(by.desk, by.account)[0] > by.entered)
        stands, since = self._places(by), monotonic()
        while self.others(by.desk, by.account)[1] == by.committed and monotonic() < since + STILL:
            now = self._places(by)
            if now != stands:
                stands, since = now, monotonic()
        by.desk.halt = Place.OUT

    def _places(self, by: Halted) -> list[int]:
        """The places of the bookers that may be under the same lock."""
        return [desk.place for desk in self.desks if desk.account == by.account]

    def release(self, name: str) -> None:
        """Force-release the lock, like an operator who believes that its holder is dead."""
        with override_settings(CACHES={"default": self.cache}):
            force_release(name)
        with self.master() as client:
            for key in client.scan_iter(f"*{name}", count=1000):  # locks of the other libraries
                if not key.startswith(b"redislock"):
                    client.delete(key)

    def flush(self) -> None:
        with self.master() as client:
            client.flushall()

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        for process, _ in self.bookers:
            process.signal(signal.SIGTERM)
        for process, _ in self.bookers:
            try:
                eventually(process.has_ended)
            except AssertionError:
                process.show_stacks("does not end")
                raise

    def close(self) -> None:
        for process, _ in self.bookers:
            if process.lives():
                process.signal(signal.SIGKILL)
        eventually(lambda: not any(process.lives() for process, _ in self.bookers))
        self.bookers.clear()


# -- faults ----------------------------------------------------------------------------------------------------------

Strike = Callable[[Run, Place], None]


def pause(run: Run, place: Place) -> None:
    """SIGSTOP for longer than the TTL, until another one has the lock."""
    with run.halted(place) as one:
        one.process.signal(signal.SIGSTOP)
        try:
            run.overtaken(one)
        finally:
            one.process.signal(signal.SIGCONT)


def flush(run: Run, place: Place) -> None:
    with run.halted(place) as one:
        run.flush()
        run.overtaken(one)


def release(run: Run, place: Place) -> None:
    with run.halted(place) as one:
        run.release(name_of(one.account + 1))
        run.overtaken(one)


def set_clock_back(run: Run, place: Place) -> None:
    """Set the clock back by an hour, so that new fences would be lower than old ones; in half of the cases, Redis
    also forgets its last fence. The clock is put right when the halted booker has continued."""
    assert isinstance(run.server, Clock)
    try:
        with run.halted(place) as one:
            run.server.jump(-HOUR)
            if run.random.random() < 0.5:
                run.flush()
            else:
                run.release(name_of(one.account + 1))
            run.overtaken(one)
    finally:
        run.server.jump(HOUR)


def fail_over(run: Run, place: Place) -> None:
    """Fail over to a replica that has not received the grant."""
    assert isinstance(run.server, OnSentinels)
    group = run.server.group
    with ExitStack() as stack:
        held: list[Halted] = []

        def halt() -> None:
            run.more(2 * BOOKERS)  # locks that are granted while the replica receives nothing
            held.append(stack.enter_context(run.halted(place)))

        old = replace_unheard(group, halt)
        run.overtaken(held[0])
    old.start()
    group.wait_until_ok()


class Stage(NamedTuple):
    """A kind of Redis, and the faults that hit it and its clients."""

    server: Callable[[], AbstractContextManager[RedisServer]]
    strikes: Sequence[Strike]


ONE_SERVER = Stage(redis_server, [pause, flush, release])
CLOCK = Stage(server_with_clock, [set_clock_back])
SENTINELS = Stage(on_sentinels, [fail_over])
STAGES = [SENTINELS, CLOCK, ONE_SERVER]  # the last one runs until there are enough sections
REST = 50  # undisturbed sections between two faults


# -- runs ------------------------------------------------------------------------------------------------------------


def book(
    launcher: Launcher,
    server: RedisServer,
    database: dict[str, Any],
    way: str,
    strikes: Sequence[Strike],
    *,
    seed: int = 0,
    sections: float = 0,
    rest: int = 10,
    mutant: str | None = None,
) -> Figures:
    """Inject each fault at each place at least once, in random order, then more until there are so many sections.

    ``rest``: undisturbed sections between two faults.
    """
    with ExitStack() as stack:
        stack.enter_context(one_database(DEFAULT_DB_ALIAS, database, ACCOUNTS))
        stack.enter_context(with_fences(DEFAULT_DB_ALIAS))
        folder = Path(tempfile.mkdtemp(prefix="redislock-fencing-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run = Run(launcher, server, folder, seed)
        stack.callback(run.close)
        run.flush()
        for _ in range(BOOKERS):
            run.add(database=database, way=way, mutant=mutant, accounts=accounts_in(database))
        run.more(rest)
        while not run.strikes or run.entered() < sections:
            for strike, place in run.random.sample(pairs := [*product(strikes, PLACES)], len(pairs)):
                strike(run, place)
                run.strikes += 1
                run.more(rest)
        run.finish()
        return figures(run, judged=way == "fenced")


def accounts_in(database: dict[str, Any]) -> int:
    """How many accounts there are. A writer of SQLite blocks all others, so nobody would reach the place where it
    halts."""
    return 1 if database["ENGINE"].endswith("sqlite3") else ACCOUNTS


def figures(run: Run, *, judged: bool) -> Figures:
    """The result of a run. ``judged``: by everything that must be true if the lock is fenced."""
    bookings = Bookings()
    bookings.read(run.folder)
    balances = {name_of(number): Account(DEFAULT_DB_ALIAS, number).balance for number in range(1, ACCOUNTS + 1)}
    violations = bookings.check(balances, dict(Fence.objects.values_list("name", "fence"))) if judged else []
    return Figures(
        len(bookings.all),
        run.strikes,
        bookings.lost(balances),
        bookings.refused,
        bookings.told,
        bookings.longest_wait(),
        (*violations,),
    )


@contextmanager
def sqlite_folder() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="redislock-sqlite-") as folder:
        yield sqlite_file(Path(folder))


DATABASES: dict[str, Callable[[], AbstractContextManager[dict[str, Any]]]] = {
    "sqlite": sqlite_folder,
    "postgres": lambda: postgres_server(require(find_programs)),
    "mariadb": lambda: mariadb_server(require(find_server)),
}


def compare(sections: int, seed: int, only: str = "") -> Iterator[tuple[str, str, Figures]]:
    """(Database, kind of lock, figures), with about so many sections in all. ``only``: databases whose name begins like
    this."""
    rows = [(level, way) for level, way in ROWS if level.startswith(only)]
    with ExitStack() as stack:
        launcher = Launcher(booker.__name__)
        stack.callback(launcher.close)
        servers = [stack.enter_context(stage.server()) for stage in STAGES]
        running = {
            kind: stack.enter_context(server())
            for kind, server in DATABASES.items()
            if any(level.startswith(kind) for level, _ in rows)
        }
        for level, way in rows:
            found = Figures()
            database = at_level(running[level.partition(" ")[0]], level)
            for stage, server in zip(STAGES, servers, strict=True):
                wanted = sections / len(rows) - found.sections if stage is STAGES[-1] else 0
                part = book(launcher, server, database, way, stage.strikes, seed=seed, sections=wanted, rest=REST)
                found = found.plus(part)
            yield level, way, found
