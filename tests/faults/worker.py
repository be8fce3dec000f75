"""A process that uses locks as hard as it can, and writes down what it sees.

Workers are forked from a launcher, so that a new one runs at once. SIGTERM tells one to come to its end: whoever waits
then still waits for its lock.
"""

import asyncio
import ctypes
import faulthandler
import itertools
import logging
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple

import redis
import redis_lock
from django.core.cache import caches
from django.test import override_settings

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, Semaphore, leader
from tests.helpers.actors import GENEROUS
from tests.inside import change_scripts, note_attempts

THREADS, TASKS = 2, 3
FEW = 5  # locks that one user uses, of many: else all of them wait for the first that stands still
BEAT, STALL = 0.02, 0.15  # seconds: a process that did not run for so long says so
TOKENS = [None] * 6 + ["own", "own", "shared"]  # how a section comes by its token
POLLS = [None] * 19 + [True]
PHASE = 15  # seconds for which all have the same limit, where limits take turns
OLD: dict[str, Callable[..., AbstractContextManager[Any]]] = {  # code that a site moves from, see ALSO_LOCK
    "redis-py": lambda client, name, **options: client.lock(name, **options),
    "django-redis": lambda client, name, **options: caches["default"].lock(name, **options),  # type: ignore[attr-defined]
    "python-redis-lock": lambda client, name, timeout, sleep: redis_lock.Lock(client, name, expire=timeout),
}

stopping = threading.Event()
_ticket: ContextVar[int | None] = ContextVar("ticket", default=None)
_presumed: ContextVar[bool] = ContextVar("presumed", default=False)
_unreleased: ContextVar[bool] = ContextVar("unreleased", default=False)


class Log(logging.Handler):
    """Each line is with the system when the call returns: kill -9 loses nothing."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.WARNING)
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.numbers = itertools.count(1)

    def note(self, event: str, *words: object, at: float | None = None) -> None:
        time = monotonic() if at is None else at
        os.write(self._file, f"{time:.6f} {event}{''.join(f' {word}' for word in words)}\n".encode())

    def emit(self, record: logging.LogRecord) -> None:
        """What the locks log as an error is one of ours; that Redis cannot be reached is a warning, and no news."""
        if record.getMessage().startswith("event=not-released "):
            _unreleased.set(True)  # by the section that ends
        elif record.levelno >= logging.ERROR:
            traceback.print_exc()
            self.note("failure", record.getMessage())


def be_worker(order: dict[str, Any]) -> Log:
    # the end of the process is the trial's matter, not that of a test's Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    stacks = open(f"{order['log']}.stacks", "w")  # noqa: SIM115 (as long as the process lives)
    faulthandler.register(signal.SIGUSR1, stacks)
    log, logger = Log(order["log"]), logging.getLogger("django_redislock")
    logger.propagate = False
    logger.addHandler(log)
    return log


class User:
    """A thread or task that uses locks until it is told to stop. Now and then a task is cancelled, and tries again."""

    def __init__(self, log: Log, order: dict[str, Any], label: str, *, awaits: bool) -> None:
        self.log, self.order, self.awaits = log, order, awaits
        self.random = random.Random(f"{order['seed']} {label}")
        self.names = self.random.sample(order["names"], min(FEW, len(order["names"])))
        job = f"job-of-{label.replace(' ', '-')}".ljust(22, "-")  # the same for its twins in the other processes
        self.tokens = {None: None, "own": f"{job}{os.getpid()}", "shared": job}
        self.again: tuple[str, str | None] | None = None  # name and token of a section that was interrupted
        self.number = 0  # of the section that is open; 0: none

    async def use_locks(self) -> None:
        while not stopping.is_set():
            try:
                await self.section()
            except asyncio.CancelledError:
                if self.number:
                    self.close("interrupted")

    async def pause(self, seconds: float) -> None:
        """Threads block here, so their coroutines never suspend."""
        await asyncio.sleep(seconds) if self.awaits else sleep(seconds)

    def close(self, outcome: str) -> None:
        self.log.note("end", self.number, outcome)
        self.number = 0

    async def section(self) -> None:
        if self.again is None or self.random.random() > 0.7:  # else as a job does that is started again
            self.again = self.random.choice(self.names), self.tokens[self.random.choice(TOKENS)]
        name, token = self.again
        limit = self.limit(name)
        if limit or self.order["leaders"]:
            token = None  # which they have not
        timeout, poll = self.random.choice(self.order["timeouts"]), self.random.choice(POLLS)
        seconds = self.random.choice(self.order["holds"])
        self.entered = False
        _unreleased.set(False)
        self.number = number = next(self.log.numbers)
        self.log.note("ask", number, name, timeout, token, limit)
        options: dict[str, Any] = {
            "ttl": self.order["ttl"], "poll": poll, "on_lost": lambda error: self.log.note("told", number),
        }  # fmt: skip
        lock: Lock
        if self.order["leaders"]:
            lock = leader(name, **options)
        elif limit:
            lock = Semaphore(name, limit=limit, blocking_timeout=timeout, **options)
        else:
            lock = Lock(name, token=token, blocking_timeout=timeout, **options)
        try:
            if self.awaits:
                async with lock:
                    await self.hold(lock, number, seconds)
            else:
                with lock:
                    await self.hold(lock, number, seconds)
        except LockNotAcquired:
            self.close("timeout")
            await self.pause(self.random.random() * 0.01)
        except LockLost:
            self.close("lost")
        except LockUnavailable:
            self.close("unavailable" if self.entered else "refused")
            await self.pause(0.05)
        except Exception as error:
            traceback.print_exc()
            self.close(repr(error))
        else:
            self.close("unavailable" if _unreleased.get() else "presumed" if _presumed.get() else "released")
        self.again = None

    def limit(self, name: str) -> int:
        """Of the semaphore of this name, here and now; 0: it is a lock."""
        if not self.order["limits"]:
            return 0
        way, limits = self.order["limits"][self.order["names"].index(name) % len(self.order["limits"])]
        if way == "in turn":
            return int(limits[int(monotonic() / PHASE) % len(limits)])
        return int(self.random.choice(limits))

    async def hold(self, lock: Lock, number: int, seconds: float) -> None:
        if isinstance(lock, leader) and not (await lock.alead() if self.awaits else lock.lead()):
            return  # it was paused for longer than its term, just when that began
        self.entered = True
        self.log.note("got", number, lock.fence, _ticket.get())
        until = monotonic() + seconds
        while True:
            now, left = monotonic(), lock.remaining()
            if lock.lost:
                return
            self.log.note("holds", number, f"{left:.6f}", at=now)  # whatever happened since, it held then
            if now >= until:
                return
            await self.pause(min(0.02, until - now))


class OldUser(User):
    """A thread that runs old code. Its locks have no fences, no order and no renewal."""

    async def section(self) -> None:
        name, seconds, ttl = self.random.choice(self.names), self.random.choice(self.order["holds"]), self.order["ttl"]
        # python-redis-lock waits in one command for as long as a lease lasts
        client = redis.Redis.from_url(self.order["cache"]["LOCATION"], socket_timeout=GENEROUS)
        self.number = number = next(self.log.numbers)
        self.log.note("ask", number, name, GENEROUS, None, 0)
        try:
            with client, OLD[self.order["old"]](client, name, timeout=ttl, sleep=0.01):
                began = monotonic()
                self.log.note("got", number, -1, 0)
                for pause in (0.0, seconds):
                    sleep(pause)
                    now = monotonic()
                    self.log.note("holds", number, f"{began + ttl - now:.6f}", at=now)
        except (redis.exceptions.LockError, redis_lock.NotAcquired):
            self.close("lost")
        else:
            self.close("released")


def use_alone(user: User) -> None:
    with suppress(StopIteration):
        user.use_locks().send(None)


async def use_together(users: list[User], interrupts: float) -> None:
    tasks = [asyncio.create_task(user.use_locks()) for user in users]
    while not stopping.is_set():
        await asyncio.sleep(users[0].random.random() * 2 / interrupts / len(users) if interrupts else BEAT)
        if interrupts:
            users[0].random.choice(tasks).cancel()
    await asyncio.gather(*tasks)


def work(order: dict[str, Any]) -> None:
    log = be_worker(order)
    if order["mutant"]:
        change_scripts(MUTANTS[order["mutant"]].without)
    note_attempts(_ticket.set, _presumed.set)
    with override_settings(CACHES={"default": order["cache"]}, REDISLOCK=order["settings"]):
        if order["sweep"]:
            kind = partial(Semaphore, limit=1) if order["limits"] else Lock
            for name in order["names"]:
                with kind(name, ttl=order["ttl"], blocking_timeout=60):
                    pass
        else:
            compete(log, order)
    log.note("bye")
    sys.exit()


class MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library. The ninth number is ``fordblks``, see mallinfo(3)."""

    _fields_ = [("numbers", ctypes.c_size_t * 10)]


mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", MallInfo)  # else nothing counts as kept
mallinfo.restype = MallInfo


def kept_by_malloc() -> int:
    """Bytes that are free, and that malloc has not given back to the system."""
    return int(mallinfo().numbers[8])


def compete(log: Log, order: dict[str, Any]) -> None:
    kind = OldUser if order["old"] else User
    users = [kind(log, order, f"thread {index}", awaits=False) for index in range(THREADS)]
    threads = [threading.Thread(target=use_alone, args=(user,)) for user in users]
    if not order["old"]:
        tasks = [User(log, order, f"task {index}", awaits=True) for index in range(TASKS)]
        threads.append(threading.Thread(target=lambda: asyncio.run(use_together(tasks, order["interrupts"]))))
    for thread in threads:
        thread.start()
    last, launcher = monotonic(), os.getppid()
    memory, due = os.open(f"{order['log']}.memory", os.O_CREAT | os.O_WRONLY), 0.0
    while any(thread.is_alive() for thread in threads):
        if last >= due:  # not more often: it goes through all that is free
            os.pwrite(memory, f"{sys.getallocatedblocks():12} {kept_by_malloc():12}".encode(), 0)
            due = last + 0.5
        sleep(BEAT)
        if os.getppid() != launcher:
            os._exit(1)  # the tests were killed
        now = monotonic()
        if now - last > STALL:
            log.note("stall", f"{last:.6f}", at=now)
        last = now


class Mutant(NamedTuple):
    without: set[str]  # the rules, by their names in the scripts
    found: set[str]  # violations, at least one of which must show
    sections: int = 100  # that each worker enters before it must have shown
    limits: list[tuple[str, list[int]]] | None = None  # of semaphores


TWO, ANY = ([("at random", limits)] for limits in ([2], [1, 2]))
# rules that the scripts leave out: a run must find each of them
MUTANTS = {
    "a held lock is taken": Mutant({"idle-lock", "idle-queue", "idle-waiters"}, {"overlap"}),
    "release compares no id": Mutant({"release-id"}, {"overlap", "lost_early"}),
    "no fence": Mutant({"fence-time", "fence-grows"}, {"fence"}),
    "the fence is only the time in seconds": Mutant({"fence-us", "fence-grows"}, {"fence"}),
    "the last in the queue is the first": Mutant({"order"}, {"order"}),
    "whoever asks skips the queue": Mutant({"asker-queues"}, {"order"}, sections=500),
    "a handoff is told and not granted": Mutant({"grant-written"}, {"overlap"}),
    "a handoff is granted and not told": Mutant({"grant-told"}, {"left_free"}),
    "whoever asks is told that it holds the lock": Mutant({"already-mine"}, {"overlap"}),
    "the queue knows no order": Mutant({"tickets"}, {"order"}),
    "release leaves the index as it is": Mutant({"release-index"}, {"left"}),
    "who comes gets a permit though none is free": Mutant({"idle-permits"}, {"overlap"}, limits=TWO),
    "a release gives permits though none is free": Mutant({"permits-free"}, {"overlap"}, limits=ANY),
    "whose permit it is does not matter": Mutant({"permit-own"}, {"lost_early"}, limits=TWO),
    "the last that waits for a permit is the first": Mutant({"order"}, {"order"}, limits=TWO),
    "a permit is granted and not told": Mutant({"grant-told"}, {"left_free"}, limits=TWO),
    "a permit is told and not granted": Mutant({"grant-written"}, {"overlap"}, limits=TWO),
}
