"""A process that uses locks as hard as it can, and writes down what it sees.

Workers are forked from a launcher, so that a new one runs at once. SIGTERM tells one to come to its end: whoever waits
then still waits for its lock.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.idna  # noqa: F401 (Python forgets it for good when its import is interrupted)
import faulthandler
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any

from django.test import override_settings

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable
from tests.inside import note_attempts

from .mutants import mutate

FEW = 5  # locks that one user uses, of many: else all of them wait for the first that stands still
BEAT, STALL = 0.02, 0.3  # seconds: a process that did not run for so long says so
SWALLOWED_AFTER = 2.0  # seconds: an interruption that met a finalizer is ignored by Python, and does not arrive
TOKENS = [None] * 6 + ["own", "own", "shared"]  # how a section comes by its token
POLLS = [None] * 19 + [True]

# of tests.helpers.processes.Worker: each line that it hears is the order for a child. It does not ask how they end, so
# the number of one that has ended is nobody else's while the launcher lives
LAUNCHER = """
from importlib import import_module
work = import_module(module).work
say("ready")
while order := hear():
    child = os.fork()
    if not child:
        work(order)
        break
    say("child", child)
"""

_ticket: ContextVar[int | None] = ContextVar("ticket", default=None)
_presumed: ContextVar[bool] = ContextVar("presumed", default=False)
_stopping = False


class Interrupted(BaseException):
    """Raised in a thread from outside, wherever it happens to be: as a time limit for a job is."""


class Log:
    """Each line is with the system when the call returns: kill -9 loses nothing."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._numbers = itertools.count(1)

    def number(self) -> int:
        return next(self._numbers)

    def note(self, event: str, *words: object, at: float | None = None) -> None:
        time = monotonic() if at is None else at
        os.write(self._file, f"{time:.6f} {event}{''.join(f' {word}' for word in words)}\n".encode())


class User:
    """A thread or task that uses locks until it is told to stop. Now and then it is interrupted, and tries again."""

    def __init__(self, log: Log, order: dict[str, Any], label: str, *, awaits: bool) -> None:
        self.log = log
        self.random = random.Random(f"{order['seed']} {label}")
        names = order["names"]
        self.names = self.random.sample(names, min(FEW, len(names)))
        self.ttl = order["ttl"]
        self.holds = order["holds"]
        self.timeouts = order["timeouts"]
        self.leak = order["leak"]
        self.kept: list[bytearray] = []
        self.awaits = awaits
        job = f"job-of-{label.replace(' ', '-')}".ljust(22, "-")
        self.own_token = f"{job}{os.getpid()}"
        self.shared_token = job  # with its twins in the other processes
        self.again: tuple[str, str | None] | None = None  # name and token of a section that was interrupted
        self.number = 0  # of the section that is open; 0: none
        self.entered = False  # it holds its lock
        self.interruptions = 0  # that have been sent
        self.interrupted = 0  # that have arrived
        self.interrupted_at = 0.0  # when the last one was sent
        self.interrupt: Callable[[], object] | None = None  # how to do so

    async def use_locks(self) -> None:
        struck = False
        while True:
            # a second one may come while the first is being handled, where that took long to arrive
            try:
                if struck:
                    if self.number:
                        self.close("interrupted")
                    self.interrupted, struck = self.interrupted + 1, False
                while not _stopping:
                    await self.section()
                end = monotonic() + SWALLOWED_AFTER
                while self.interrupted < self.interruptions and monotonic() < end:
                    await self.pause(BEAT)  # one that is on its way
                return
            except (Interrupted, asyncio.CancelledError):
                struck = True

    async def pause(self, seconds: float) -> None:
        """Threads block here, so their coroutines never suspend."""
        await asyncio.sleep(seconds) if self.awaits else sleep(seconds)

    def close(self, outcome: str) -> None:
        self.log.note("end", self.number, outcome)
        self.number = 0

    async def section(self) -> None:
        if self.leak:
            self.kept.append(bytearray(self.leak))
        name, token = self.choose()
        timeout = self.random.choice(self.timeouts)
        poll = self.random.choice(POLLS)
        seconds = self.random.choice(self.holds)
        self.again = name, token
        self.entered = False
        self.number = number = self.log.number()
        self.log.note("ask", number, name, timeout, token)
        lock = Lock(
            name, ttl=self.ttl, token=token, poll=poll, blocking_timeout=timeout,
            on_lost=lambda error: self.log.note("told", number),
        )  # fmt: skip
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
            self.close("presumed" if _presumed.get() else "released")
        self.again = None

    def choose(self) -> tuple[str, str | None]:
        """What to lock, and with which token."""
        if self.again is not None and self.random.random() < 0.7:
            return self.again  # as a job does that is started again
        token = {None: None, "own": self.own_token, "shared": self.shared_token}[self.random.choice(TOKENS)]
        return self.random.choice(self.names), token

    async def hold(self, lock: Lock, number: int, seconds: float) -> None:
        """Be in the section for so long, or until the lock is lost."""
        self.entered = True
        self.log.note("got", number, lock.fence, _ticket.get())
        until = monotonic() + seconds
        while True:
            now = monotonic()
            left = lock.remaining()
            if lock.lost:
                return
            self.log.note("holds", number, f"{left:.6f}", at=now)  # whatever happened since, it held then
            if now >= until:
                return
            await self.pause(min(0.02, until - now))


class Interrupter(threading.Thread):
    """Interrupts users at random moments, so many times a second each."""

    def __init__(self, users: list[User], order: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._users = users
        self._random = random.Random(f"{order['seed']} interrupter")
        self._pause = 1 / order["interrupts"] / len(users)

    def run(self) -> None:
        while not _stopping:
            sleep(self._random.random() * 2 * self._pause)
            user = self._random.choice(self._users)
            now = monotonic()
            arrived = user.interrupted == user.interruptions or now - user.interrupted_at > SWALLOWED_AFTER
            if user.interrupt is not None and arrived and not _stopping:
                user.interruptions, user.interrupted_at = user.interrupted + 1, now
                user.interrupt()


_starting = threading.Lock()
_start = threading.Thread.start


def start_thread(thread: threading.Thread) -> None:
    """Until a new thread runs, Python takes it for the one that starts it, and that one would wait for it for ever."""
    with _starting:
        _start(thread)


def interrupt_thread(thread: threading.Thread) -> None:
    assert thread.ident is not None
    with _starting:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def be_worker(order: dict[str, Any]) -> Log:
    """What the process of a trial does first: it stops when it is told to, shows its stacks, and has a log."""
    # the end of the process is the trial's matter, not that of a test's Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    log = Log(order["log"])
    stacks = open(f"{order['log']}.stacks", "w")  # noqa: SIM115 (as long as the process lives)
    faulthandler.register(signal.SIGUSR1, stacks)
    _watch_for_failures(log)
    return log


def is_stopping() -> bool:
    """Whether SIGTERM has come."""
    return _stopping


def work(line: str) -> None:
    """Use locks as ordered, until SIGTERM comes and all have ended."""
    order = json.loads(line)
    log = be_worker(order)
    mutate(order["mutant"])
    note_attempts(_ticket.set, _presumed.set)
    setattr(threading.Thread, "start", start_thread)  # noqa: B010
    with override_settings(CACHES={"default": order["cache"]}, REDISLOCK=order["settings"]):
        if order["sweep"]:
            for name in order["names"]:
                with Lock(name, ttl=order["ttl"], blocking_timeout=60):
                    pass
            log.note("bye")
            sys.exit()
        users = [User(log, order, f"thread {index}", awaits=False) for index in range(order["threads"])]
        threads = [threading.Thread(target=_use_alone, args=(user,)) for user in users]
        if order["tasks"]:
            tasks = [User(log, order, f"task {index}", awaits=True) for index in range(order["tasks"])]
            threads.append(threading.Thread(target=asyncio.run, args=(_use_together(tasks),)))
            users += tasks
        for thread in threads:
            thread.start()
        if order["interrupts"]:
            Interrupter(users, order).start()
        last = monotonic()
        launcher = os.getppid()
        blocks = os.open(f"{order['log']}.blocks", os.O_CREAT | os.O_WRONLY)
        while any(thread.is_alive() for thread in threads):
            os.pwrite(blocks, f"{sys.getallocatedblocks():10}".encode(), 0)
            sleep(BEAT)
            if os.getppid() != launcher:
                os._exit(1)  # the tests were killed
            now = monotonic()
            if now - last > STALL:
                log.note("stall", f"{last:.6f}", at=now)
            last = now
    log.note("bye")
    sys.exit()


def _watch_for_failures(log: Log) -> None:
    """What the locks log as an error is one of ours; that Redis cannot be reached is a warning, and no news here."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            traceback.print_exc()
            log.note("failure", record.getMessage())

    logger = logging.getLogger("django_redislock")
    logger.propagate = False
    logger.addHandler(Handler(logging.ERROR))


def _use_alone(user: User) -> None:
    thread = threading.current_thread()
    user.interrupt = lambda: interrupt_thread(thread)
    with suppress(StopIteration):
        user.use_locks().send(None)


async def _use_together(users: list[User]) -> None:
    await asyncio.gather(*map(_use, users))


async def _use(user: User) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    user.interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
    await user.use_locks()


def _stop(number: int, frame: object) -> None:
    global _stopping
    _stopping = True
