"""Threads and tasks that run what they are given, processes that only queue, and what waits for a state of them."""

import asyncio
import faulthandler
import math
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from inspect import isawaitable
from linecache import getline
from typing import Any, TypeVar

import pytest
import redis
from asgiref.sync import sync_to_async

from tests.inside import AcquireReply, Process

T = TypeVar("T")

GENEROUS = 30  # seconds that nothing should take


class Other:
    """A thread that runs the calls it is given, one after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def start(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, call))
        return future

    def __call__(self, call: Callable[[], T]) -> T:
        return self.start(call).result(GENEROUS)

    def end(self, within: float = GENEROUS) -> None:
        self._jobs.put(None)
        self._thread.join(within)


class Actor:
    """A task that runs the calls it is given, one after the other. See Other."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[tuple[asyncio.Future[Any], Callable[[], Awaitable[Any]]]] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            future, call = await self._jobs.get()
            try:
                future.set_result(await call())
            except Exception as error:
                future.set_exception(error)
            except asyncio.CancelledError:
                future.cancel()
                raise

    def start(self, call: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((future, call))
        return future

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        return await asyncio.wait_for(self.start(call), GENEROUS)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class Person:
    def __init__(self, start: Callable[..., Future[Any]], end: Callable[[float], object], *, awaits: bool) -> None:
        self._start, self._end, self.awaits = start, end, awaits

    def end(self, within: float = GENEROUS) -> None:
        self._end(within)

    def start(self, thing: Any, method: str, *args: Any, **options: Any) -> Future[Any]:
        name = f"a{method}" if self.awaits else method
        # with and async with: dunder methods by their plain names
        name = name if hasattr(thing, name) else f"__{name}__"
        return self._start(lambda: getattr(thing, name)(*args, **options))

    def __call__(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        return self.start(thing, method, *args, **options).result(GENEROUS)

    def read(self, look: Callable[[], T]) -> T:
        async def alook() -> T:
            return look()

        return self._start(alook if self.awaits else look).result(GENEROUS)  # type: ignore[no-any-return]


class Crowd:
    """Makes people who use locks: threads, or tasks of one event loop in a thread of its own. On the test's behalf,
    ``person(lock, "acquire", blocking_timeout=1)`` calls the method, or awaits its async version; ``start`` does not
    wait for the result; ``read`` evaluates something there (``person.read(lambda: lock.lost)``)."""

    def __init__(self, *, tasks: bool) -> None:
        self.awaits = tasks
        self._people: list[Person] = []
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        if tasks:
            self._thread.start()

    async def _live(self) -> None:
        self._over = asyncio.Event()
        self._loop.set_result(asyncio.get_running_loop())
        await self._over.wait()

    def _in_loop(self, call: Callable[[], Any]) -> Future[Any]:
        async def act() -> Any:
            answer = call()
            return await answer if isawaitable(answer) else answer

        return asyncio.run_coroutine_threadsafe(act(), self._loop.result(GENEROUS))

    def __call__(self) -> Any:
        if self.awaits:
            task = self._in_loop(Actor).result(GENEROUS)
            start, end = lambda call: self._in_loop(lambda: task.start(call)), lambda within: self._in_loop(task.end)
            self._people.append(Person(start, end, awaits=True))
        else:
            thread = Other()
            self._people.append(Person(thread.start, thread.end, awaits=False))
        return self._people[-1]

    def close(self) -> None:
        # in all, not for each: when a test has failed, all of them may still be waiting
        until = time.monotonic() + GENEROUS
        for person in self._people:
            person.end(max(0.0, until - time.monotonic()))
        if self.awaits:
            self._in_loop(self._over.set).result(GENEROUS)
            self._thread.join(GENEROUS)


class Ghost(Process):
    """What looks like another process to Redis: it queues, and does nothing after that. ``alive``: it is subscribed."""

    def __init__(self, client: redis.Redis, *, alive: bool = True) -> None:
        super().__init__()
        self.client = client
        self.pubsub = client.pubsub()
        if alive:
            self.pubsub.subscribe(self.channel)
            assert self.pubsub.get_message(timeout=GENEROUS)

    def queue(self, id: str, *, name: str, age: float = 0.0, ttl: float = 30) -> AcquireReply:
        """Queue as a waiter that came ``age`` seconds ago."""
        ticket = server_time(self.client) - round(age * 1e6)
        return self.acquire(self.request(id, name=name, ttl=ttl), ticket=ticket)

    def hear(self) -> list[str]:
        message = self.pubsub.get_message(timeout=GENEROUS)
        assert message
        return str(message["data"].decode()).split()

    def close(self) -> None:
        self.pubsub.close()
        super().close()


def server_time(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("not reached")


# how a task runs sync code
RUNS: dict[str, Callable[..., Awaitable[Any]]] = {
    "one thread": lambda function, *args, **kwargs: sync_to_async(function)(*args, **kwargs),
    "any thread": lambda function, *args, **kwargs: sync_to_async(function, thread_sensitive=False)(*args, **kwargs),
    "to_thread": asyncio.to_thread,
}


def pause_after(begun: float) -> float:
    """Seconds to the next look at what is waited for since then: looks cost time that others need."""
    return min(max((time.monotonic() - begun) / 10, 0.001), 0.01)


def until(condition: Callable[..., Any], within: float = 2 * GENEROUS) -> Any:
    """Return what the condition returned."""
    begun = time.monotonic()
    while not (result := condition()):
        if time.monotonic() >= begun + within:
            faulthandler.dump_traceback(2)  # what all threads are doing, for the log
            pytest.fail(f"still not so after {within} s")
        time.sleep(pause_after(begun))
    return result


async def auntil(condition: Callable[..., Any], within: float = 2 * GENEROUS) -> Any:
    """The same for coroutines, and for conditions that must be awaited."""
    begun = time.monotonic()
    while True:
        result = condition()
        if result := (await result if isawaitable(result) else result):
            return result
        assert time.monotonic() < begun + within, f"still not so after {within} s"
        await asyncio.sleep(pause_after(begun))


def asked_for(condition: Callable[[], Any], ask: Callable[[], object], every: float) -> Callable[[], bool]:
    """The condition, for ``until``. While it is not met, the server is asked for it every so many seconds."""
    asked = -math.inf

    def is_met() -> bool:
        nonlocal asked
        if condition():
            return True
        if time.monotonic() > asked + every:
            asked = time.monotonic()
            with suppress(redis.ResponseError):  # it cannot at the moment
                ask()
        return False

    return is_met


def stands_in(thread: threading.Thread, function: str, code: str = "") -> bool:
    """Whether a thread is in ``function``, or in what that has called, at a line of it with ``code``."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function and code in getline(frame.f_code.co_filename, frame.f_lineno):
            return True
        frame = frame.f_back
    return False
