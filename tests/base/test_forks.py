"""A forked child inherits nothing of what its parent uses for locks, also where Python is not told of the fork."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockNotOwned, LockPool, list_locks, locked, locked_view
from tests.helpers.actors import GENEROUS, stands_in, until
from tests.helpers.forks import end_well_if, fork, in_child
from tests.inside import end_process, own_channel, per_process, redis_py_lock

Body = Callable[[], None]


def is_free_of_its_parent(lock: Lock, channel: str) -> bool:
    with pytest.raises(LockNotOwned):
        lock.check()
    with Lock("b") as mine:
        excludes = mine.owned() and not Lock(lock.name).acquire(blocking=False) and len(list_locks("[ab]")) == 2
    return excludes and (lock.token, lock.remaining()) == (None, 0) and own_channel() != channel


def test_a_child_owns_nothing_of_its_parents_and_has_connections_of_its_own() -> None:
    with Lock("a", ttl=60) as lock:
        channel = own_channel()
        in_child(lambda: is_free_of_its_parent(lock, channel))
        assert lock.owned()
    assert own_channel() == channel


def enter(section: AbstractContextManager[Any], body: Body) -> None:
    with section:
        body()


def reentrant(body: Body) -> None:
    lock = Lock("seat", ttl=600, reentrant=True)
    with lock:
        enter(lock, body)


def coroutine(body: Body) -> None:
    async def section() -> None:
        async with Lock("seat", ttl=600):
            body()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(section())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()  # not in the child, which shares its epoll


def generator(body: Body) -> None:
    def section() -> Generator[None, None, None]:
        with Lock("seat", ttl=600):
            yield

    steps = section()
    next(steps)
    body()
    steps.close()  # a coroutine could await nothing here, so the release is left to the background


def stream(body: Body) -> None:
    view = locked_view("seat", ttl=600)(lambda request: StreamingHttpResponse([b"x"]))
    enter(closing(view(RequestFactory().get("/"))), body)


SECTIONS: dict[str, tuple[Callable[[Body], object], str]] = {  # and what the child gets that leaves it
    "block": (lambda body: enter(Lock("seat", ttl=600), body), "LockNotOwned"),
    "block that raises": (lambda body: enter(Lock("seat", ttl=600), body), "ZeroDivisionError"),
    "reentrant": (reentrant, "LockNotOwned"),
    "decorated": (lambda body: locked("seat", ttl=600)(body)(), "LockNotOwned"),
    "kept": (lambda body: locked("seat", at_least=5, ttl=600)(body)(), "LockNotOwned"),
    "coroutine": (coroutine, "LockNotOwned"),
    "member": (lambda body: enter(LockPool("accounts").acquire(ttl=600), body), "LockNotOwned"),
    "cache.lock": (lambda body: enter(redis_py_lock("seat", timeout=600), body), "LockError"),
    "generator": (generator, ""),
    "stream": (stream, ""),
}


@pytest.mark.django_db  # closing a response closes old database connections
@pytest.mark.parametrize("how", SECTIONS)
def test_a_child_that_leaves_the_section_it_was_forked_in_does_not_release_the_lock(how: str, other: Any) -> None:
    """Nor does what it has begun in the background, which is sent before it ends."""
    in_the_child = False

    def body() -> None:
        nonlocal in_the_child
        if in_the_child := fork():
            if "raises" in how:
                raise ZeroDivisionError
            return
        (held,) = other()(list_locks)
        assert f":{os.getpid()}:" in held.owner
        assert held.lease_left > 300

    LockPool("accounts").extend(["alice"])
    leave, expected = SECTIONS[how]
    raised = ""
    try:
        leave(body)
    except BaseException as error:
        if not in_the_child:
            raise
        raised = type(error).__name__
    if in_the_child:
        end_well_if(lambda: (end_process(), raised) == (None, expected))  # type: ignore[func-returns-value]
    until(lambda: not list_locks())


def test_a_fork_that_python_is_not_told_of_is_noticed_by_the_process_id() -> None:
    """As of uWSGI without ``py-call-osafterfork``. In a process that is its own parent: a fork by the C library beside
    other threads may hang in Python itself."""

    def look() -> bool:
        lock = Lock("a", ttl=60)
        lock.acquire()
        old, peek_at_old = per_process(object)
        channel, parent, parents = own_channel(), os.getpid(), old()
        os.getpid = lambda: parent + 1
        _, made_by_child = per_process(object)
        forgets = old() is not parents and made_by_child() is None and is_free_of_its_parent(lock, channel)
        os.getpid = lambda: parent + 2
        return forgets and peek_at_old() is None

    in_child(look)


def test_threads_that_come_first_together_share_what_their_process_makes() -> None:
    def make() -> object:
        second.start()
        until(lambda: stands_in(second, "get"))
        return object()

    get, _ = per_process(make)
    found: list[object] = []
    second = threading.Thread(target=lambda: found.append(get()))
    first = get()
    second.join(GENEROUS)
    assert found == [first]
