"""Objects that each process makes for itself, a forked child included."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable

import pytest

from django_redislock.base.per_process import PerProcess, leave_parent
from tests.helpers.actors import GENEROUS, Other

InChild = Callable[..., bool]


@pytest.fixture
def in_child() -> InChild:
    """Whether a function returns True in a forked child."""

    def in_child(look: Callable[[], bool], fork: Callable[[], int] = os.fork) -> bool:
        with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
            warnings.simplefilter("ignore", DeprecationWarning)
            child = fork()
        if not child:
            try:
                os._exit(0 if look() else 1)
            finally:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return in_child


def fork_unheard() -> int:
    """Fork like uWSGI without ``py-call-osafterfork``: Python calls no hooks."""
    child: int = ctypes.PyDLL(None).fork()
    return child


def test_a_value_is_made_at_its_first_use_and_once() -> None:
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    value = PerProcess(make)
    assert value.peek() is None
    assert value.get() is value.get() is value.peek()
    assert len(made) == 1


def test_many_threads_share_one_value() -> None:
    began, go_on = threading.Event(), threading.Event()
    made: list[object] = []
    found: list[object] = []

    def make() -> object:
        made.append(object())
        began.set()
        assert go_on.wait(GENEROUS)
        return made[-1]

    value = PerProcess(make)
    threads = [threading.Thread(target=lambda: found.append(value.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert began.wait(GENEROUS)
    go_on.set()
    for thread in threads:
        thread.join(GENEROUS)
    assert len(made) == 1
    assert found == made * 4


def test_after_a_reset_there_is_another_one() -> None:
    value = PerProcess(object)
    first = value.get()
    assert value.reset() is first
    assert value.peek() is None
    assert value.get() is not first
    value.reset()
    assert value.reset() is None


def test_a_forked_child_inherits_nothing_and_is_told_what_there_was(in_child: InChild) -> None:
    left: list[object] = []
    value = PerProcess(object, left.append)
    unused = PerProcess(object, left.append)
    mine = value.get()
    assert in_child(lambda: left == [mine] and value.peek() is None and value.get() is not mine)
    assert in_child(lambda: unused.peek() is None and unused.get() is not mine)
    assert value.get() is mine
    assert left == []


def test_the_callback_for_leaving_runs_once_and_only_for_an_existing_value() -> None:
    left: list[object] = []
    used, unused = PerProcess(object, left.append), PerProcess(object, left.append)
    parents = used.get()
    for value in (used, unused):
        value._pid = 0  # of the parent
    for _ in range(2):
        for value in (used, unused):
            value.leave_parent()
    assert left == [parents]
    assert used.get() is not parents


def test_what_a_thread_of_a_child_has_made_is_not_dropped_by_another_that_notices_the_fork_later() -> None:
    """If Python does not know of a fork, each thread notices it by itself."""
    left: list[object] = []
    value = PerProcess(object, left.append)
    parents, value._pid = value.get(), 0
    mine = value.get()
    leave_parent()
    assert value.get() is mine
    assert left == [parents]


@pytest.mark.parametrize("use", ["get", "peek"])
def test_a_fork_that_python_is_not_told_of_is_noticed_at_the_next_use(use: str, in_child: InChild) -> None:
    left: list[object] = []
    value = PerProcess(object, left.append)
    mine = value.get()
    assert in_child(lambda: getattr(value, use)() is not mine and left == [mine], fork_unheard)
    assert value.get() is mine


def test_a_child_that_was_forked_while_a_thread_made_the_value_makes_its_own(in_child: InChild) -> None:
    making, go_on = threading.Event(), threading.Event()

    def make() -> str:
        making.set()
        assert go_on.wait(GENEROUS)
        return "made"

    value = PerProcess(make)
    thread = threading.Thread(target=value.get)
    thread.start()
    assert making.wait(GENEROUS)

    def look() -> bool:
        go_on.set()
        found: str = value.get()
        return found == "made"

    assert in_child(look)
    go_on.set()
    thread.join(GENEROUS)


def test_a_finalizer_may_want_a_value_while_it_is_made(other: Callable[[], Other]) -> None:
    """The garbage collector runs it on the thread that makes the value, in the midst of that."""
    nested: list[object] = []

    def make() -> object:
        if not nested:
            nested.append(None)
            nested[0] = value.get()
        return object()

    value = PerProcess(make)
    assert other()(value.get) is value.get() is nested[0]
