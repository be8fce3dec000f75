"""The logic of locks is written once, as generators that yield what they wait for; sync and async drive them.

A *step* is a generator that yields requests (:class:`Execute`, :class:`Pause`, :class:`Park` ...) and returns its
result. It does no I/O itself: :func:`run` performs the requests in the calling thread, :func:`arun` in the running
event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import Signal

from .connection import ENTERING, Backend, Command
from .signals import asend, send

T = TypeVar("T")


class Request(Protocol):
    """Something a step waits for."""

    def run(self) -> Any: ...

    async def arun(self) -> Any: ...


Steps = Generator[Request, Any, T]


class Execute:
    """One Redis command; sends back its answer or throws its error."""

    __slots__ = ("backend", "command", "urgency")

    def __init__(self, backend: Backend, command: Command, *, urgency: int = ENTERING) -> None:
        self.backend = backend
        self.command = command
        self.urgency = urgency

    def run(self) -> Any:
        return self.backend.execute(self.command)

    async def arun(self) -> Any:
        return await self.backend.aexecute(self.command, urgency=self.urgency)


class ExecuteMany:
    """Several Redis commands in one write; sends back the list of answers."""

    __slots__ = ("backend", "commands")

    def __init__(self, backend: Backend, commands: list[Command]) -> None:
        self.backend = backend
        self.commands = commands

    def run(self) -> list[Any]:
        return self.backend.execute_many(self.commands)

    async def arun(self) -> list[Any]:
        return await self.backend.aexecute_many(self.commands)


class Pause:
    """Let ``seconds`` go by (between two tries of a failed command)."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self) -> None:
        time.sleep(self.seconds)

    async def arun(self) -> None:
        await asyncio.sleep(self.seconds)


class Park:
    """Wait until the waiter is told something, at most ``timeout`` seconds (None: without end).

    A thread's waiter has ``park(timeout)``, a coroutine's ``apark(timeout)``.
    """

    __slots__ = ("timeout", "waiter")

    def __init__(self, waiter: Any, timeout: float | None) -> None:
        self.waiter = waiter
        self.timeout = timeout

    def run(self) -> None:
        self.waiter.park(self.timeout)

    async def arun(self) -> None:
        await self.waiter.apark(self.timeout)


class Call:
    """The user's own function, or coroutine function in :func:`arun`; sends back what it returns."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    async def arun(self) -> Any:
        return await self.function(*self.args, **self.kwargs)


class Work:
    """A function that bears repetition and may turn out to need a thread (a template, a lazily loaded user)."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def run(self) -> Any:
        return self.function()

    async def arun(self) -> Any:
        try:
            answer = self.function()
        except SynchronousOnlyOperation:
            answer = await sync_to_async(self.function)()
        return (await answer) if isawaitable(answer) else answer


class Ask(Work):
    """The same for a function of the site's own, called once: sync ones in a thread, whatever they may need."""

    __slots__ = ()

    def run(self) -> Any:
        answer = self.function()
        return async_to_sync(_wait_for)(answer) if isawaitable(answer) else answer

    async def arun(self) -> Any:
        answer = await sync_to_async(self.function)()
        return (await answer) if isawaitable(answer) else answer


async def _wait_for(answer: Awaitable[T]) -> T:
    return await answer


class Tell:
    """The receivers of a signal."""

    __slots__ = ("facts", "sender", "signal")

    def __init__(self, signal: Signal, sender: type, **facts: Any) -> None:
        self.signal = signal
        self.sender = sender
        self.facts = facts

    def run(self) -> None:
        send(self.signal, self.sender, **self.facts)

    async def arun(self) -> None:
        await asend(self.signal, self.sender, **self.facts)


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
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # of the user's function; no generator lets it pass
            raise error.__cause__ from None
        raise


async def arun(steps: Steps[T]) -> T:
    """Drive ``steps`` to their end in the running event loop and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await request.arun()
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_blocking(steps: Steps[T], twin: str) -> T:
    """The same as :func:`run` for what users call: refused in a running event loop, which it would block."""
    if asyncio._get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        steps.close()
        raise SynchronousOnlyOperation(
            f"This call would block the event loop that runs in this thread. Await {twin}() instead, or call it "
            f"through sync_to_async."
        )
    return run(steps)
