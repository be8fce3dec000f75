"""One body for both worlds: sync code in threads, and coroutines in tasks of one event loop.

A body is a coroutine function that is given a :class:`Kin`. As sync code, it never suspends: threads drive it by hand.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import wraps
from inspect import isawaitable
from typing import Any

import pytest

from django_redislock import LockInfo, aget_lock, force_release, get_lock
from tests.helpers.actors import GENEROUS
from tests.helpers.state import NAME

Body = Callable[..., Coroutine[Any, Any, Any]]


def wrapping(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    """A factory of tasks as the integrations of Sentry, OpenTelemetry and ddtrace install it."""

    async def with_a_span() -> Any:
        return await coroutine

    return asyncio.Task(with_a_span(), loop=loop, **options)


FACTORIES: dict[str, Any] = {"plain": None, "wrapping": wrapping}
if sys.version_info >= (3, 12):
    FACTORIES |= {
        "eager": asyncio.eager_task_factory,
        "eager and wrapping": lambda *args, **options: wrapping(*args, **{"eager_start": True, **options}),
    }


class Kin:
    """Calls methods of locks as sync code or as coroutines: ``await kin(lock, "acquire", blocking=False)``."""

    def __init__(self, *, tasks: bool) -> None:
        self.tasks = tasks
        self._children: list[Any] = []
        self._over = False

    async def __call__(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        prefix = "a" if self.tasks else ""
        # with and async with: dunder methods by their plain names
        name = f"{prefix}{method}" if hasattr(thing, method) else f"__{prefix}{method}__"
        result = getattr(thing, name)(*args, **options)
        return await result if self.tasks else result

    def child(self, body: Body, *, stranger: bool = False) -> Any:
        """Start a task, or a thread that inherits the context, as newer interpreters do; a stranger's is empty."""
        context = Context() if stranger else copy_context()
        child: Any = context.run(lambda: asyncio.ensure_future(body())) if self.tasks else _start(context, body)
        self._children.append(child)
        return child

    async def end(self, child: Any) -> Any:
        """What a child returned or raised, once it has ended."""
        await self.until(child.done)
        return child.result()

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a state; return what the condition returned."""
        deadline = time.monotonic() + GENEROUS
        while True:
            result = condition()
            if result := (await result if isawaitable(result) else result):
                return result
            assert not self._over, "the test is over"
            assert time.monotonic() < deadline, f"still not so after {GENEROUS} s"
            await asyncio.sleep(0.002) if self.tasks else time.sleep(0.002)

    async def info(self, name: str = NAME) -> LockInfo | None:
        return await aget_lock(name) if self.tasks else get_lock(name)

    async def queued(self, waiters: int = 1) -> None:
        async def are_there() -> bool:
            info = await self.info()
            return info is not None and info.waiters == waiters

        await self.until(are_there)

    async def renewed(self, ttl: float, name: str = NAME) -> bool:
        """Whether the lease of this TTL is renewed, and not left to end."""
        first = now = await self.info(name)

        async def known() -> bool:
            nonlocal now
            now = await self.info(name)
            if first is None or now is None or now.fence != first.fence:
                return True
            return (now.expires - first.expires).total_seconds() > ttl / 6

        await self.until(known)
        return first is not None and now is not None and now.fence == first.fence

    def live(self, body: Coroutine[Any, Any, Any]) -> None:
        """Run the body in a task or thread, in an empty context; and end what it leaves behind."""
        if self.tasks:
            Context().run(asyncio.run, self._with_end(body))
        else:
            _start(Context(), lambda: self._with_end(body)).result()

    async def _with_end(self, body: Coroutine[Any, Any, Any]) -> None:
        try:
            await body
        finally:
            self._over = True
            for child in self._children:
                if self.tasks:
                    child.cancel()
                while not (self.tasks or child.done()):
                    force_release(NAME)  # it may wait for the lock
                    time.sleep(0.02)
            if self.tasks:
                await asyncio.gather(*self._children, return_exceptions=True)


def _start(context: Context, body: Body) -> Future[Any]:
    """Run in a thread a coroutine that never suspends."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            body().send(None)
        except StopIteration as end:
            done.set_result(end.value)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=context.run, args=(run,), daemon=True).start()
    return done


def lives(*kinds: str) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run the body, whose argument ``kin`` this fills, as a test in a thread or a task of its own, or in each."""

    def decorate(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(body)
        def test(kin: str, **fixtures: Any) -> None:
            people = Kin(tasks=kin == "tasks")
            people.live(body(kin=people, **fixtures))

        marked: Callable[..., None] = pytest.mark.parametrize("kin", kinds)(test)
        return marked

    return decorate


both, in_a_thread, in_a_task = lives("threads", "tasks"), lives("threads"), lives("tasks")
