"""A process that books: under the lock of an account it reads the balance, waits a moment, and writes one more.

It reports the place that it has reached, and halts there on request, so that a fault hits it at a known place. For
that it has a desk in memory that it shares with the trial. It is forked and stopped as :mod:`.worker` is.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import redis_lock
from django.core.cache import caches
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.test import override_settings
from django_redis import get_redis_connection
from redis import RedisError

import tests.helpers.mariadb  # noqa: F401 (the driver)
from django_redislock import locked_atomic
from tests import inside
from tests.helpers.databases import Account, configure

from .worker import be_worker, is_stopping

TTL = 1  # seconds: python-redis-lock takes whole ones
ACCOUNTS = 3  # at most
TOLD = (RedisError, DatabaseError, redis_lock.NotAcquired)  # LockLost and the other errors of locks are RedisErrors


class Place(IntEnum):
    """What a booker has reached. Under the lock, it is just before the step that the place is named after."""

    OUT = 0
    CLAIM = 1
    WRITE = 2
    COMMIT = 3


class Desk(ctypes.Structure):
    """Memory shared by a booker and the trial. Only the trial writes ``halt``; only the booker writes the rest."""

    place: int
    halt: int  # the place where it is to halt, until this is OUT
    halted: int
    account: int
    entered: Any  # how many times, for each account
    committed: Any
    _fields_ = [
        ("place", ctypes.c_int64),
        ("halt", ctypes.c_int64),
        ("halted", ctypes.c_int64),
        ("account", ctypes.c_int64),
        ("entered", ctypes.c_int64 * ACCOUNTS),
        ("committed", ctypes.c_int64 * ACCOUNTS),
    ]

    @classmethod
    def at(cls, path: Path) -> Desk:
        """The desk in this file, which is created if needed."""
        with path.open("a+b") as file:
            file.truncate(ctypes.sizeof(cls))
            return cls.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(cls)))


def name_of(account: int) -> str:
    """The lock's name. Accounts are counted from 1."""
    return f"account:{account}"


# -- the ways to book under a lock -----------------------------------------------------------------------------------


def fenced(name: str) -> AbstractContextManager[object]:
    return locked_atomic(name, fenced=True, ttl=TTL)


def unfenced(name: str) -> AbstractContextManager[object]:
    return locked_atomic(name, fenced=False, ttl=TTL)


@contextmanager
def python_redis_lock(name: str) -> Iterator[None]:
    threading.excepthook = lambda _: None  # its renewal thread dies with a traceback when the lock is lost
    client = get_redis_connection("default")
    with redis_lock.Lock(client, name, expire=TTL, auto_renewal=True), transaction.atomic():
        yield


@contextmanager
def django_redis(name: str) -> Iterator[None]:
    cache: Any = caches["default"]
    with cache.lock(name, timeout=TTL, sleep=0.01), transaction.atomic():
        yield


WAYS: dict[str, Callable[[str], AbstractContextManager[object]]] = {
    way.__name__: way for way in (fenced, unfenced, python_redis_lock, django_redis)
}


# -- the booker ------------------------------------------------------------------------------------------------------


class Booker:
    """Books until it is told to stop."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.log = be_worker(order)
        self.desk = Desk.at(Path(order["desk"]))
        self.random = random.Random(order["seed"])
        self.way = WAYS[order["way"]]
        self.accounts = order["accounts"]
        self.launcher = os.getppid()
        self.number = 0  # of the section
        self.asked = 0.0
        self.within = False  # it believes that it has the lock
        self.wrote = 0
        inside.on_claim(self.enter, lambda fence: self.log.note("claimed", self.number, fence))
        connection = connections[DEFAULT_DB_ALIAS]
        self._commit = connection.commit
        setattr(connection, "commit", self.commit)  # noqa: B010

    def work(self) -> None:
        while not is_stopping():
            self.book(self.random.randrange(self.accounts))

    def book(self, account: int) -> None:
        desk = self.desk
        desk.account = account
        self.number, self.asked, self.within = self.log.number(), monotonic(), False
        row = Account(DEFAULT_DB_ALIAS, account + 1)
        try:
            with self.way(name_of(account + 1)):
                self.enter()
                balance = self.read(row)
                self.stand(Place.WRITE)
                self.wrote = row.balance = balance + 1
        except TOLD as error:
            self.log.note("told", self.number, type(error).__name__)
            sleep(0.01)  # while Redis is away
        desk.place = Place.OUT

    def enter(self) -> None:
        """Note that the lock is held. This is called before the claim, or, without a claim, when the block begins."""
        if not self.within:
            self.within = True
            self.log.note("entered", self.number, name_of(self.desk.account + 1), f"{self.asked:.6f}")
            self.desk.entered[self.desk.account] += 1
            self.stand(Place.CLAIM)

    def read(self, row: Account) -> int:
        return row.balance

    def commit(self) -> None:
        """Replaces the connection's method, and calls it: the last moment before COMMIT is sent."""
        self.stand(Place.COMMIT)
        sent = monotonic()
        self._commit()
        self.log.note("committed", self.number, self.wrote, f"{sent:.6f}")
        self.desk.committed[self.desk.account] += 1

    def stand(self, place: Place) -> None:
        desk = self.desk
        desk.place = place
        if desk.halt != place:
            return
        desk.halted = True
        while desk.halt:
            if os.getppid() != self.launcher:
                os._exit(1)  # the tests were killed
            sleep(0.001)
        desk.halted = False


# -- faults in the fencing, each of which a run must find -----------------------------------------------------------


def claim_nothing(booker: Booker) -> None:
    inside.claim_nothing()


def claim_after_the_first_read(booker: Booker) -> None:
    claim = inside.put_claims_off()

    def read(row: Account) -> int:
        balance = row.balance
        claim()
        return balance

    setattr(booker, "read", read)  # noqa: B010


def compare_the_wrong_way_round(booker: Booker) -> None:
    inside.compare_fences_the_wrong_way_round()


MUTANTS = {
    mutant.__name__: mutant for mutant in (claim_nothing, claim_after_the_first_read, compare_the_wrong_way_round)
}


def work(line: str) -> None:
    """Book as ordered, until SIGTERM comes."""
    order = json.loads(line)
    del connections[DEFAULT_DB_ALIAS]  # the launcher's connection
    configure(DEFAULT_DB_ALIAS, order["database"])
    with override_settings(CACHES={"default": order["cache"]}):
        booker = Booker(order)
        if order["mutant"]:
            MUTANTS[order["mutant"]](booker)
        booker.work()
    connections.close_all()
    sys.exit()
