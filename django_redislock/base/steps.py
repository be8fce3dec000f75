"""Where one command is not enough, the logic of locks is written once, as generators that yield what they wait for.

Such a generator does no I/O itself: it yields requests (a command for Redis, a pause), is sent their results, and
returns its own. :func:`run` performs the requests in the calling thread, :func:`arun` in the running event loop. A
generator that is closed (GeneratorExit) must end without another request.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from asgiref.sync import SyncToAsync, async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from .times import Alarm

T = TypeVar("T")


class Step(Protocol):
    """Something that steps wait for."""

    def run(self) -> Any: ...

    async def arun(self) -> Any: ...


Steps = Generator[Step, Any, T]


def is_async(function: Any) -> bool:
    """Return whether a call returns a coroutine: of a coroutine function, or of an object whose ``__call__`` is one."""
    while isinstance(function, partial):
        function = function.func
    return iscoroutinefunction(function) or (callable(function) and iscoroutinefunction(type(function).__call__))


# where asgiref notes for whom a thread runs sync code; __dict__: a fifth of the time of a getattr() that finds nothing
ASGIREF = SyncToAsync.threadlocal


def served_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop for one of whose tasks this thread runs sync code by ``sync_to_async``, if any."""
    served: asyncio.AbstractEventLoop | None = ASGIREF.__dict__.get("main_event_loop")
    return served if served is not None and served.is_running() else None


@dataclass(slots=True, eq=False, repr=False)
class Pause:
    """Let ``seconds`` go by."""

    seconds: float

    def run(self) -> None:
        time.sleep(self.seconds)

    async def arun(self) -> None:
        over = asyncio.Event()
        alarm = Alarm(asyncio.get_running_loop(), self.seconds, over.set)
        try:
            await over.wait()
        finally:
            alarm.cancel()


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A function, in :func:`arun` its ``twin`` (None: itself), a coroutine function; sends back what it returns."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    twin: Callable[..., Any] | None = None

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    async def arun(self) -> Any:
        return await (self.twin or self.function)(*self.args, **self.kwargs)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


# sends back the event loop that drives the steps; None where a thread does, which may run a loop as well: see
# refuse_event_loop()
DRIVING_LOOP = Call(lambda: None, twin=_running_loop)


@dataclass(slots=True, eq=False, repr=False)
class CallOut:
    """One of the site's functions (no coroutine function), called once, under asyncio in a thread.

    It may return an awaitable. ``twice``: it may be called twice, and only the second time in a thread, if it needs one
    (a lazily loaded user). Not for pages: in ``{% if a and b %}``, Django swallows the error that says so.
    """

    function: Callable[[], Any]
    twice: bool = False

    def run(self) -> Any:
        result = self.function()
        return async_to_sync(_await)(result) if isawaitable(result) else result

    async def arun(self) -> Any:
        try:
            result = self.function() if self.twice else sync_to_async(self._call)()
        except SynchronousOnlyOperation:
            result = sync_to_async(self._call)()
        while isawaitable(result):
            result = await result
        return result

    def _call(self) -> Any:
        try:
            return self.function()
        except StopIteration as error:  # no future takes it: whoever awaits that would wait without end
            raise RuntimeError(f"{self.function!r} raised StopIteration") from error


async def _await(result: Awaitable[T]) -> T:
    return await result


def run(steps: Steps[T]) -> T:
    """Drive ``steps`` to their end in this thread and return their result.

    What is raised here, by a signal handler for instance, is thrown into ``steps``, so that they can clean up.
    """
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    try:
        while True:
            try:
                while True:  # inside the try, with its jump back: that is where signal handlers run
                    request = resume(value)
                    value = request.run()
                    resume = steps.send
            except BaseException as error:
                if steps.gi_frame is None:  # type: ignore[attr-defined]  # it has ended
                    return _result(error)  # type: ignore[no-any-return]
                resume, value = steps.throw, error
    finally:
        value = None  # an error in it would refer to this frame, and live as long as it
        steps.close()


async def arun(steps: Steps[T]) -> T:
    """Drive ``steps`` to their end in the running event loop and return their result."""
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    try:
        while True:
            try:
                while True:
                    request = resume(value)
                    value = await request.arun()
                    resume = steps.send
            except BaseException as error:
                if steps.gi_frame is None:  # type: ignore[attr-defined]  # it has ended
                    return _result(error)  # type: ignore[no-any-return]
                resume, value = steps.throw, error
    finally:
        value = None  # an error in it would refer to this frame, and live as long as it
        steps.close()


def _result(end: BaseException) -> Any:
    """Return what the ended steps returned, or raise what they raised."""
    try:
        if isinstance(end, StopIteration):
            return end.value
        if isinstance(end, RuntimeError) and isinstance(end.__cause__, StopIteration):
            raise end.__cause__ from None  # the user's function raised it: generators replace it
        raise end
    finally:
        del end  # it refers to this frame


def run_blocking(steps: Steps[T], instead: str) -> T:
    """Like :func:`run`, for what users call: refused where it would block a running event loop.

    ``instead``: see refuse_event_loop().
    """
    refuse_event_loop(instead)
    return run(steps)


def refuse_event_loop(instead: str = "Call it through sync_to_async.") -> None:
    """Raise SynchronousOnlyOperation where an event loop runs, for what only blocks.

    ``instead``: what to do there. Unless it ends with a full stop, there is a call to make through ``sync_to_async``.
    """
    if asyncio._get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        way_out = instead if instead.endswith(".") else f"{instead}, or call it through sync_to_async."
        raise SynchronousOnlyOperation(f"This would block the event loop that runs in this thread. {way_out}")
