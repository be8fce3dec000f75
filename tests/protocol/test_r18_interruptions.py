"""R18: an exception that a signal handler raises at any moment leaves no lock, no place in a queue, no connection, no
role.

It is raised at every place where handlers run, one after the other; and at random, in processes of their own, as time
limits of task queues do. (Other tests do the same to the connections alone, in store/test_connections.py.)
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
import redis
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_redislock
from django_redislock import Lock, LockNotOwned, LockPool, locked, locked_get_or_set, locked_view
from tests import inside
from tests.helpers.actors import GENEROUS
from tests.helpers.interrupts import Interrupt, Interrupter, interrupted_in
from tests.helpers.state import NAME, fence_of, leftovers, queued
from tests.inside import leases
from tests.protocol.scene import LONG, Eventually, Start

OURS = str(Path(django_redislock.__file__).parent)
MEMBERS = {"free:pool:accounts:", "fresh:pool:accounts:", "members:pool:accounts:", "pools"}


def enter() -> None:
    with Lock(NAME, ttl=LONG, blocking_timeout=GENEROUS):
        pass


def take() -> None:
    """An exception between the return of acquire() and the next line leaves the lock to the caller (see Guarantees)."""
    lock = Lock(NAME, ttl=LONG)
    try:
        lock.acquire(blocking_timeout=GENEROUS)
        lock.release()
    except Interrupt:
        if fence_of(lock) is not None:
            lock.release()
        raise


def take_member() -> None:
    member = None
    try:
        member = LockPool("accounts").acquire(ttl=LONG, blocking_timeout=GENEROUS)
        with member:
            pass
    finally:
        if member is not None and fence_of(member) is not None:
            member.release()


def enter_cache_lock() -> None:
    """Without a timeout it is renewed, for as long as its thread lives."""
    with inside.redis_py_lock(NAME):
        pass


def fail(*_: object) -> HttpResponse:
    raise ValueError


def compute() -> None:
    caches["memory"].delete("key")
    locked_get_or_set("key", fail, using="memory")


@locked_view(NAME)
def view(request: HttpRequest) -> HttpResponse:
    return fail()


SECTIONS: dict[str, Callable[[], object]] = {
    "with": enter,
    "acquire": take,
    "pool": take_member,
    "decorator": locked(NAME)(fail),
    "cache.lock": enter_cache_lock,
    "cached value": compute,
    "view": lambda: view(RequestFactory().get("/")),
}


@pytest.mark.complete
@pytest.mark.parametrize("how", SECTIONS)
def test_a_section_that_is_interrupted_at_any_place_leaves_nothing_behind(how: str, client: redis.Redis) -> None:
    section = SECTIONS[how]
    LockPool("accounts").extend(["alice"])
    with suppress(ValueError):
        section()
    places = Interrupter(lambda file: file.startswith(OURS))
    with suppress(ValueError):
        places.run(section)
    assert places.places > 50  # newer Pythons check for signals at fewer places
    for place in range(places.places):
        one = Interrupter(lambda file: file.startswith(OURS), place)
        with suppress(Interrupt, ValueError):
            one.run(section)
        deadline = monotonic() + 5
        while leases() or not set(leftovers(client)) <= MEMBERS:
            if sys.version_info < (3, 11):
                gc.collect()  # there, a traced frame keeps its local variables, its errors among them, in a dict
            assert monotonic() < deadline, f"{leftovers(client)}, interrupted at {one.struck}"
        with suppress(ValueError):
            section()  # so that the next one finds a connection


# Sections one after the other, with a time limit that may end anywhere in them, before or after.
INTERRUPTED = """
import random, signal
from tests.inside import leases

class TimeLimit(BaseException):
    pass

def strike(*args):
    raise TimeLimit

def run():
    try:
        if waits:
            Lock("held", blocking_timeout=0.002).acquire()
        else:
            with Lock(name, ttl=600, blocking_timeout=60):
                pass
    except LockUnavailable:
        pass  # the machine is so busy that Redis has not answered in time

signal.signal(signal.SIGALRM, strike)
rng = random.Random(1)
run()
struck = 0
while struck < 200:
    began = time.perf_counter()
    run()  # which connects again, so that the next one takes as long
    usual = time.perf_counter() - began
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, usual * 1.2))
        run()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except (TimeLimit, UnboundLocalError) as error:
        if not isinstance(error, TimeLimit) and not isinstance(error.__context__, TimeLimit):
            raise  # redis-py 5 has a finally that uses what is not set yet
        struck += 1
say("struck")
hear()
say("held", len(leases()))
hear()
"""


@pytest.mark.complete
@pytest.mark.parametrize("waits", [False, True])
def test_a_time_limit_anywhere_leaves_nothing_behind(
    waits: bool, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    if waits:
        Lock("held", ttl=LONG).acquire()
    worker = start(INTERRUPTED, name=NAME, waits=waits)
    worker.expect("struck", within=120)
    kept = {"index", "lock:held"} if waits else set()
    eventually(lambda: set(leftovers(client)) <= kept)
    worker.tell()
    assert worker.expect("held") == ["0"]


# The main thread is the first to wait, so that it reads the messages for all of its process.
READS = """
from tests.inside import limit
limit(look_every=600.0)

def wait():
    hear()
    with Lock(name, blocking_timeout=60):
        say("acquired")

threading.Thread(target=wait, daemon=True).start()
try:
    Lock(name, blocking_timeout=60).acquire()
except KeyboardInterrupt:
    say("interrupted")
threading.Event().wait()
"""


def test_another_waiter_takes_over_reading_from_one_that_was_interrupted(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    with Lock(NAME, ttl=LONG):
        worker = start(READS, name=NAME)
        eventually(lambda: queued(client) == 1)
        worker.tell()
        eventually(lambda: queued(client) == 2)
        worker.signal(signal.SIGINT)
        worker.expect("interrupted")
        eventually(lambda: queued(client) == 1)
    worker.expect("acquired", within=15)


def test_a_holder_interrupted_while_releasing_may_wait_for_the_same_lock_at_once() -> None:
    """The release is finished in the background. Until then the lock seemed to be held by the caller, which got a
    LockError."""
    lock = Lock(NAME, ttl=LONG)
    for one in (Lock("another", ttl=LONG), lock):
        with pytest.raises(Interrupt), interrupted_in(inside.leave_block), one:
            pass
    with lock:
        pass


def test_the_end_of_a_block_releases_what_was_acquired_in_it_and_nothing_that_nobody_has_entered(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(NAME)
    with lock:
        lock.release()
        lock.acquire()
    assert leftovers(client) == []
    with pytest.raises(LockNotOwned), lock:
        lock.release()
    with pytest.raises(LockNotOwned):
        lock.__exit__(None, None, None)
    inside.interrupt_ends_of_blocks(monkeypatch, Interrupt())
    with pytest.raises(Interrupt):
        lock.__exit__(None, None, None)
    assert leftovers(client) == []
