"""A forked child inherits nothing of what its parent uses for locks, also where Python is not told of the fork."""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator

import pytest

from django_redislock import Lock, LockNotOwned, list_locks
from tests.helpers.actors import GENEROUS, stands_in, until
from tests.inside import own_channel, per_process


def in_child(look: Callable[[], bool]) -> bool:
    """Whether a function returns True in a forked child."""
    with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(GENEROUS)
            os._exit(0 if look() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def is_free_of_its_parent(lock: Lock, channel: str) -> bool:
    with pytest.raises(LockNotOwned):
        lock.check()
    with Lock("b") as mine:
        excludes = mine.owned() and not Lock(lock.name).acquire(blocking=False) and len(list_locks("[ab]")) == 2
    return excludes and (lock.token, lock.remaining()) == (None, 0) and own_channel() != channel


def test_a_child_owns_nothing_of_its_parents_and_has_connections_of_its_own() -> None:
    with Lock("a", ttl=60) as lock:
        channel = own_channel()
        assert in_child(lambda: is_free_of_its_parent(lock, channel))
        assert lock.owned()
    assert own_channel() == channel


def test_a_child_that_leaves_the_block_it_was_forked_in_does_not_release_its_lock() -> None:
    """Nor does one that closes the generator around it."""

    def section() -> Generator[Lock, None, None]:
        with Lock("a", ttl=600) as lock:
            yield lock

    def close() -> bool:
        steps.close()
        return True

    def leave() -> bool:
        with pytest.raises(LockNotOwned, match="Cannot release"):
            next(steps)
        return True

    steps = section()
    lock = next(steps)
    for way in (close, leave):
        assert in_child(way)
        assert lock.owned()
    steps.close()  # a coroutine could await nothing here, so the release is left to the background
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

    assert in_child(look)


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
