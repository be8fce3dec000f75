"""What each process has for itself: objects that a forked child makes anew, and background threads.

Forks are noticed by Python's hook, and where that is not called (uWSGI without ``py-call-osafterfork``) by the process
id, at the next use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")

_all: list[PerProcess[object]] = []

# another object in each process: a number is given again
generation: object = object()


class PerProcess(Generic[T]):
    """A value made on first use, one for each process. In a forked child, ``leave`` is called with the parent's."""

    def __init__(self, make: Callable[[], T], leave: Callable[[T], object] = lambda inherited: None) -> None:
        self._make = make
        self._leave = leave
        self._pid = os.getpid()
        self._value: T | None = None
        self._mutex = threading.RLock()  # a finalizer may want the value while it is made
        _all.append(self)  # type: ignore[arg-type]

    def get(self) -> T:
        if self._pid != os.getpid():
            leave_parent()
        value = self._value
        if value is None:
            with self._mutex:
                value = self._value
                if value is None:
                    made = self._make()
                    value = self._value = made if self._value is None else self._value
        return value

    def peek(self) -> T | None:
        """The value, if this process has made it already."""
        if self._pid != os.getpid():
            leave_parent()
        return self._value

    def reset(self) -> T | None:
        """Make a new one on the next use; return the old one."""
        with self._mutex:
            value, self._value = self._value, None
        return value

    def leave_parent(self) -> None:
        """In a forked child: drop what was inherited, unless another thread has."""
        if self._pid == os.getpid():
            return
        # the thread that had the mutex does not exist here
        self._mutex = threading.RLock()
        inherited, self._value = self._value, None
        self._pid = os.getpid()
        if inherited is not None:
            self._leave(inherited)


def leave_parent() -> None:
    """Called in a forked child."""
    global generation
    generation = object()
    for each in _all:
        each.leave_parent()


os.register_at_fork(after_in_child=leave_parent)


def make_thread(run: Callable[[threading.Thread], object], name: str) -> threading.Thread:
    """A background thread that calls ``run`` with itself, as current_thread() differs where gevent patched late."""
    # tests of a site replace the class by one that never runs, or runs at once; gevent, maybe late, by the right one
    kind = threading.Thread if threading.Thread.__module__ == "gevent.threading" else Thread
    thread = kind(target=lambda: run(thread), name=name, daemon=True)
    return thread


def start(thread: threading.Thread) -> bool:
    """Start a thread. False: the main thread has ended, after which Python 3.12 and later start no more threads.

    RuntimeError: the system allows no more threads.
    """
    if sys.is_finalizing():
        return False  # Python 3.10 and 3.11 would wait for ever for the thread to begin
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
        return False
    return True


def try_start(thread: threading.Thread) -> bool:
    """Start a thread. False: none can be started, for whatever reason."""
    try:
        return start(thread)
    except RuntimeError:
        return False
