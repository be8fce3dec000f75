"""One body for both worlds: sync code in threads, and coroutines in tasks of one event loop.

A body is a coroutine function that is given a :class:`Kin`. As sync code, it never suspends: threads drive it by hand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import wraps
from inspect import isawaitable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_redislock import Lock, LockInfo, aget_lock, force_release, get_lock
from tests.helpers.actors import GENEROUS
from tests.helpers.state import NAME

Body = Callable[..., Coroutine[Any, Any, Any]]

# how a task runs sync code
RUNS: dict[str, Callable[..., Awaitable[Any]]] = {
    "one thread": lambda function, *args, **kwargs: sync_to_async(function)(*args, **kwargs),
    "any thread": lambda function, *args, **kwargs: sync_to_async(function, thread_sensitive=False)(*args, **kwargs),
    "to_thread": asyncio.to_thread,
}

# what the rule of today does not do; strict, so that whoever changes the rule removes the mark
owner_rule = pytest.mark.filterwarnings("default::FutureWarning")


class Child:
    """A task or thread that was started here. Its context is a copy, or empty (``stranger``)."""

    def __init__(self, kin: Kin, body: Body, *, stranger: bool) -> None:
        self._kin = kin
        self._future: Future[Any] = Future()
        context = Context() if stranger else copy_context()
        if kin.tasks:
            self._task = context.run(asyncio.ensure_future, self._live(body))
        else:
            self._thread = threading.Thread(target=context.run, args=(_drive, self._live(body)), daemon=True)
            self._thread.start()

    async def _live(self, body: Body) -> None:
        try:
            self._future.set_result(await body())
        except BaseException as error:
            self._future.set_exception(error)

    def done(self) -> bool:
        return self._future.done()

    async def result(self) -> Any:
        """What its body returned or raised, once it has ended."""
        await self._kin.until(self._ended)
        return self._future.result()

    def _ended(self) -> bool:
        return self._task.done() if self._kin.tasks else self._future.done() and not self._thread.is_alive()

    def end(self) -> None:
        """The test is over."""
        if self._kin.tasks:
            self._task.cancel()
        else:
            for _ in range(500):
                if not self._thread.is_alive():
                    break
                force_release(NAME)  # it may wait for the lock
                self._thread.join(0.02)


class Kin:
    """Calls methods of locks as sync code or as coroutines: ``await kin(lock, "acquire", blocking=False)``."""

    def __init__(self, *, tasks: bool) -> None:
        self.tasks = tasks
        self._children: list[Child] = []
        self._over = False

    async def __call__(self, lock: Lock, method: str, *args: Any, **options: Any) -> Any:
        if self.tasks:
            return await getattr(lock, f"a{method}")(*args, **options)
        return getattr(lock, method)(*args, **options)

    def child(self, body: Body) -> Child:
        """Start a task, or a thread that inherits the context, as the threads of newer interpreters do."""
        return self._start(body, stranger=False)

    def stranger(self, body: Body) -> Child:
        """The same in an empty context."""
        return self._start(body, stranger=True)

    def _start(self, body: Body, *, stranger: bool) -> Child:
        child = Child(self, body, stranger=stranger)
        self._children.append(child)
        return child

    async def until(self, condition: Callable[[], Any], within: float = GENEROUS) -> Any:
        """Wait for a state; return what the condition returned."""
        deadline = time.monotonic() + within
        while True:
            result = condition()
            if result := (await result if isawaitable(result) else result):
                return result
            assert not self._over, "the test is over"
            assert time.monotonic() < deadline, f"still not so after {within} s"
            if self.tasks:
                await asyncio.sleep(0.002)
            else:
                time.sleep(0.002)

    async def info(self, name: str = NAME) -> LockInfo | None:
        """What Redis says."""
        return await aget_lock(name) if self.tasks else get_lock(name)

    async def queued(self, waiters: int = 1) -> None:
        """Wait until so many wait for the lock."""

        async def are_there() -> bool:
            info = await self.info()
            return info is not None and info.waiters == waiters

        await self.until(are_there)

    async def renewed(self, ttl: float, name: str = NAME) -> bool:
        """Whether the lease of this TTL is renewed, and not left to end."""
        seen: list[LockInfo | None] = [await self.info(name)]

        async def known() -> bool:
            seen.append(await self.info(name))
            first, now = seen[0], seen[-1]
            if first is None or now is None or now.fence != first.fence:
                return True
            return (now.expires - first.expires).total_seconds() > ttl / 6

        await self.until(known)
        return seen[0] is not None and seen[-1] is not None and seen[-1].fence == seen[0].fence

    def live(self, body: Coroutine[Any, Any, Any]) -> None:
        """Run the body in a task or thread, in an empty context; and end what it leaves behind."""
        if self.tasks:
            Context().run(asyncio.run, self._with_end(body))
            return
        failed: list[BaseException] = []

        def run() -> None:
            try:
                _drive(self._with_end(body))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=Context().run, args=(run,), daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    async def _with_end(self, body: Coroutine[Any, Any, Any]) -> None:
        try:
            await body
        finally:
            self._over = True
            for child in self._children:
                child.end()
            if self.tasks:
                await asyncio.gather(*(child._task for child in self._children), return_exceptions=True)


def _drive(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that never suspends, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("sync code does not suspend")


def both(*, fails: Iterable[str] = ()) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run the body, whose argument ``kin`` this fills, as a test: with threads and with tasks.

    ``fails``: in which of them it does not hold today.
    """

    def decorate(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(body)
        def test(kin: str, **fixtures: Any) -> None:
            people = Kin(tasks=kin == "tasks")
            people.live(body(kin=people, **fixtures))

        marked: Callable[..., None] = pytest.mark.parametrize(
            "kin", [pytest.param(way, marks=owner_rule if way in fails else ()) for way in ("threads", "tasks")]
        )(test)
        return marked

    return decorate


BOTH = ("threads", "tasks")
