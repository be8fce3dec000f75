"""The jobs of a worker are written once, as generators that yield calls. Threads or coroutines run them.

A *routine* yields tuples of a function and its arguments, is sent what the function returned (with coroutines: the
result of awaiting that), and returns its result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any, ClassVar, TypeVar

import redis
import redis.asyncio

T = TypeVar("T")

Call = tuple[Any, ...]
Routine = Generator[Call, Any, T]


class Crowd:
    """Threads or coroutines of this process that each run a routine. ``over`` is set when all have finished."""

    def __init__(self, size: int) -> None:
        self.alive = size
        self.over = threading.Event()
        self._mutex = threading.Lock()

    def leave(self) -> None:
        with self._mutex:
            self.alive -= 1
            if not self.alive:
                self.over.set()


class Runner(ABC):
    """Runs routines, in threads or in coroutines."""

    each: ClassVar[
        float
    ]  # seconds after which one more of a crowd waits for its lock: no contender but ours could tell

    @abstractmethod
    def run(self, routine: Routine[T]) -> T:
        """Run a routine and return its result. Called from outside."""

    @abstractmethod
    def start(self, size: int, routine: Callable[[int], Routine[object]]) -> Crowd:
        """Start so many more routines, each given its number. Called by a routine."""

    @abstractmethod
    def client(self, url: str) -> Any:
        """A plain client of Redis, for a routine to call."""

    @abstractmethod
    def sleep(self, seconds: float) -> object: ...

    @abstractmethod
    def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that blocks its thread, while the others of a crowd go on."""


class Threads(Runner):
    """One thread for each routine."""

    each = 0.003

    def run(self, routine: Routine[T]) -> T:
        try:
            function, *args = next(routine)
            while True:
                try:
                    answer = function(*args)
                except BaseException as error:
                    function, *args = routine.throw(error)
                else:
                    function, *args = routine.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def start(self, size: int, routine: Callable[[int], Routine[object]]) -> Crowd:
        crowd = Crowd(size)

        def do(number: int) -> None:
            try:
                self.run(routine(number))
            finally:
                crowd.leave()

        for number in range(size):
            threading.Thread(target=do, args=(number,), daemon=True).start()
        return crowd

    def client(self, url: str) -> Any:
        return redis.Redis.from_url(url)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Coroutines(Runner):
    """Tasks of one event loop, which runs in a thread of its own, also between jobs."""

    each = 0.0005

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, routine: Routine[T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._perform(routine), self._loop).result()

    async def _perform(self, routine: Routine[T]) -> T:
        try:
            function, *args = next(routine)
            while True:
                try:
                    answer = await function(*args)
                except BaseException as error:
                    function, *args = routine.throw(error)
                else:
                    function, *args = routine.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def start(self, size: int, routine: Callable[[int], Routine[object]]) -> Crowd:
        crowd = Crowd(size)

        async def do(number: int) -> None:
            try:
                await self._perform(routine(number))
            finally:
                crowd.leave()

        for number in range(size):
            task = self._loop.create_task(do(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return crowd

    def client(self, url: str) -> Any:
        return redis.asyncio.Redis.from_url(url)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def run_blocking(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return self._loop.run_in_executor(None, function, *args)
