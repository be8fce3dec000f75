"""The logic of locks is written once, as generators that yield what they wait for; sync and async drive them.

A *step* is a generator that yields requests (:class:`Execute`, :class:`Pause`, :class:`Park`) and returns its result.
It does no I/O itself: :func:`run` performs the requests in the calling thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from .connection import Backend, Command

T = TypeVar("T")


class Request(Protocol):
    """Something a step waits for."""

    def run(self) -> Any: ...


class Parkable(Protocol):
    """Something that a thread can wait at."""

    def park(self, timeout: float | None) -> None: ...


Steps = Generator[Request, Any, T]


class Execute:
    """One Redis command; sends back its answer or throws its error."""

    __slots__ = ("backend", "command")

    def __init__(self, backend: Backend, command: Command) -> None:
        self.backend = backend
        self.command = command

    def run(self) -> Any:
        return self.backend.execute(self.command)


class ExecuteMany:
    """Several Redis commands in one write; sends back the list of answers."""

    __slots__ = ("backend", "commands")

    def __init__(self, backend: Backend, commands: list[Command]) -> None:
        self.backend = backend
        self.commands = commands

    def run(self) -> list[Any]:
        return self.backend.execute_many(self.commands)


class Pause:
    """Let ``seconds`` go by (between two tries of a failed command)."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self) -> None:
        time.sleep(self.seconds)


class Park:
    """Wait until the waiter is told something, at most ``timeout`` seconds (None: without end)."""

    __slots__ = ("timeout", "waiter")

    def __init__(self, waiter: Parkable, timeout: float | None) -> None:
        self.waiter = waiter
        self.timeout = timeout

    def run(self) -> None:
        self.waiter.park(self.timeout)


def run(steps: Steps[T]) -> T:
    """Drive ``steps`` to their end in this thread and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                answer = request.run()
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
