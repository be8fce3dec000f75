"""A forked child inherits nothing of what its parent uses for locks, also where Python is not told of the fork."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

import pytest

from django_redislock import Lock, LockNotOwned, list_locks
from tests.helpers.actors import GENEROUS
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


def owns_nothing(lock: Lock, channel: str) -> bool:
    try:
        lock.check()
    except LockNotOwned:
        return lock.token is None and lock.remaining() == 0
    return False


def excludes(lock: Lock, channel: str) -> bool:
    with Lock("b") as mine:
        return mine.owned() and not Lock(lock.name).acquire(blocking=False) and len(list_locks("[ab]")) == 2


def listens_elsewhere(lock: Lock, channel: str) -> bool:
    return own_channel() != channel


LOOKS = [owns_nothing, excludes, listens_elsewhere]


def is_free_of_its_parent(first: int, lock: Lock, channel: str) -> bool:
    """Whatever it asks for first."""
    return all(look(lock, channel) for look in LOOKS[first:] + LOOKS[:first])


@pytest.mark.parametrize("first", range(3))
def test_a_child_owns_nothing_of_its_parents_and_has_connections_of_its_own(first: int) -> None:
    with Lock("a", ttl=60) as lock:
        channel = own_channel()
        assert in_child(lambda: is_free_of_its_parent(first, lock, channel))
        assert lock.owned()
    assert own_channel() == channel


@pytest.mark.parametrize("first", range(2))
def test_a_fork_that_python_is_not_told_of_is_noticed_by_the_process_id(first: int) -> None:
    """As of uWSGI without ``py-call-osafterfork``. In a process that is its own parent: a fork by the C library beside
    other threads may hang in Python itself."""

    def look() -> bool:
        lock = Lock("a", ttl=60)
        lock.acquire()
        channel, getpid = own_channel(), os.getpid
        parent = getpid()
        old, peek_at_old = per_process(object)
        parents = old()
        os.getpid = lambda: parent + 1
        try:
            return (
                (bool(first) or peek_at_old() is None)
                and is_free_of_its_parent(first, lock, channel)
                and old() is not parents
            )
        finally:
            os.getpid = getpid

    assert in_child(look)
