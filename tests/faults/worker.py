"""A process that uses locks as hard as it can, and writes down what it sees.

Workers are forked from a nursery, so that a new one runs at once. SIGTERM tells one to come to its end: who waits then
still waits for its lock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import traceback
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any

from django.test import override_settings

from django_redislock import FairLock, Lock, LockLost, LockUnavailable, scripts
from django_redislock import lock as lock_module
from django_redislock.attempt import Attempt
from django_redislock.steps import Call, Pause, Steps, arun, run

from .mutants import mutate

FEW = 5  # locks that a player uses, of many: else all of them wait for the first that stands still
BEAT, STALL = 0.02, 0.3  # seconds: a process that did not run for so long says so

# of tests.processes.Worker: each line that it hears is the order for a child. It does not ask how they end, so the
# number of one that has ended is nobody else's while the nursery lives
NURSERY = """
from tests.faults import worker
say("ready")
while order := hear():
    child = os.fork()
    if not child:
        worker.work(order)
        break
    say("child", child)
"""

_ticket: ContextVar[int | None] = ContextVar("ticket", default=None)
_presumed: ContextVar[bool] = ContextVar("presumed", default=False)
_release = scripts.release
_stopping = False


class NotedAttempt(Attempt):
    """Leaves its ticket to the thread or task that made it."""

    __slots__ = ()

    def leave(self) -> None:
        _ticket.set(0 if self.ticket is None and self.unknown else self.ticket)
        super().leave()


def noted_release(*args: Any, **kwargs: Any) -> Steps[tuple[int, bool]]:
    """Leaves to the thread or task that releases whether that was only presumed, from a call that was repeated."""
    answer = yield from _release(*args, **kwargs)
    _presumed.set(answer == (0, True))
    return answer


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


class Player:
    """A thread or task that uses locks until it is told to stop."""

    def __init__(self, log: Log, order: dict[str, Any], seed: str, *, awaits: bool) -> None:
        self.log = log
        self.dice = random.Random(seed)
        places = order["places"]
        self.places = [
            (FairLock if fair else Lock, name) for name, fair in self.dice.sample(places, min(FEW, len(places)))
        ]
        self.ttl = order["ttl"]
        self.holds = order["holds"]
        self.timeouts = order["timeouts"]
        self.leak = order["leak"]
        self.kept: list[bytearray] = []
        self.awaits = awaits

    def play(self) -> Steps[None]:
        while not _stopping:
            yield from self.section()

    def section(self) -> Steps[None]:
        kind, name = self.dice.choice(self.places)
        timeout = self.dice.choice(self.timeouts)
        number = self.log.number()
        note = self.log.note
        if self.leak:
            self.kept.append(bytearray(self.leak))
        lock = kind(name, ttl=self.ttl, on_lost=lambda error: note("told", number))
        acquire = lock.aacquire if self.awaits else lock.acquire
        note("ask", number, kind.__name__, name, timeout)
        try:
            try:
                got = yield Call(acquire, (), {"blocking_timeout": timeout})
            except LockUnavailable:
                note("end", number, "refused")
                yield Pause(0.05)
                return
            if not got:
                note("end", number, "timeout")
                yield Pause(self.dice.random() * 0.01)
                return
            note("got", number, lock.fence, _ticket.get())
            yield from self.hold(lock, number, self.dice.choice(self.holds))
            yield from self.end(lock, number)
        except Exception as error:
            traceback.print_exc()
            note("end", number, repr(error))

    def hold(self, lock: Lock, number: int, seconds: float) -> Steps[None]:
        """Be in the section for so long, or until the lock is lost."""
        until = monotonic() + seconds
        while True:
            now = monotonic()
            left = lock.remaining()
            if lock.lost:
                return
            self.log.note("holds", number, f"{left:.6f}", at=now)  # whatever happened since, it held then
            if now >= until:
                return
            yield Pause(min(0.02, until - now))

    def end(self, lock: Lock, number: int) -> Steps[None]:
        """What the end of a ``with`` does."""
        try:
            yield from lock._exit(None)
        except LockLost:
            self.log.note("end", number, "lost")
        except LockUnavailable:
            self.log.note("end", number, "unavailable")
        else:
            self.log.note("end", number, "presumed" if _presumed.get() else "released")


def work(line: str) -> None:
    """Play by the order, until SIGTERM comes and all have ended."""
    order = json.loads(line)
    # the end of the process is the arena's matter, not that of a test's Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    mutate(order["mutant"])
    setattr(lock_module, "Attempt", NotedAttempt)  # noqa: B010
    setattr(scripts, "release", noted_release)  # noqa: B010
    log = Log(order["log"])
    _watch_for_failures(log)
    with override_settings(CACHES={"default": order["cache"]}):
        if order["sweep"]:
            for name, _ in order["places"]:
                with FairLock(name, ttl=order["ttl"], blocking_timeout=60):
                    pass
            log.note("bye")
            sys.exit()
        threads = [
            threading.Thread(target=run, args=(Player(log, order, f"{order['seed']} {index}", awaits=False).play(),))
            for index in range(order["threads"])
        ]
        if order["tasks"]:
            threads.append(threading.Thread(target=asyncio.run, args=(_play_together(log, order),)))
        for thread in threads:
            thread.start()
        last = monotonic()
        nursery = os.getppid()
        while any(thread.is_alive() for thread in threads):
            sleep(BEAT)
            if os.getppid() != nursery:
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


async def _play_together(log: Log, order: dict[str, Any]) -> None:
    players = [Player(log, order, f"{order['seed']} task {index}", awaits=True) for index in range(order["tasks"])]
    await asyncio.gather(*(arun(player.play()) for player in players))


def _stop(number: int, frame: object) -> None:
    global _stopping
    _stopping = True
