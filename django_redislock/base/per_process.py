"""What each process makes for itself: a forked child inherits none of it, and begins anew.

Forks are noticed by Python's hook, and where that is not called (uWSGI without ``py-call-osafterfork``) by the process
id, at the next use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_all: list[PerProcess[object]] = []


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
    for each in _all:
        each.leave_parent()


os.register_at_fork(after_in_child=leave_parent)
