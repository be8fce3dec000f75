"""R18: an exception that a signal handler raises at any moment leaves no lock, no place in a queue, no connection, no
role.

(Other tests do the same to the connections alone, in store/test_connections.py.)
"""

from __future__ import annotations

import gc
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
from django_redislock import Lock, LockPool, locked, locked_get_or_set, locked_view
from tests import inside
from tests.helpers.actors import GENEROUS
from tests.helpers.cancelling import Interrupt, Interrupter
from tests.helpers.state import NAME, fence_of, leftovers
from tests.inside import leases
from tests.protocol.scene import LONG, Eventually

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


def test_the_end_of_a_block_that_is_interrupted_is_no_end_of_another(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=LONG)
    inside.interrupt_ends_of_blocks(monkeypatch, Interrupt())
    with pytest.raises(Interrupt):
        lock.__exit__(None, None, None)  # which nobody has entered
    with pytest.raises(Interrupt), lock:
        pass
    monkeypatch.undo()
    with lock:  # it does not wait for itself
        pass
    assert leftovers(client) == []
