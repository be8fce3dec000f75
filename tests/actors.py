"""Who acts in the tests: threads and tasks that take orders, processes that only queue; what Redis holds of a lock."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from linecache import getline
from typing import Any, TypeVar

import redis

from django_redislock import scripts
from django_redislock.connection import Backend
from django_redislock.names import make_keys
from django_redislock.steps import run

T = TypeVar("T")

NAME = "order:42"
KEYS = make_keys("redislock{0}:", NAME)
TOKEN = "a-token-that-the-tests-know"
GENEROUS = 30  # seconds that nothing should take


class Other:
    """A thread that does what it is told, one thing after the other."""

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
        """Let it begin; the future has the result."""
        future: Future[T] = Future()
        self._jobs.put((future, call))
        return future

    def __call__(self, call: Callable[[], T]) -> T:
        return self.start(call).result(GENEROUS)

    def end(self) -> None:
        self._jobs.put(None)
        self._thread.join(GENEROUS)


def stands_at(thread: threading.Thread, function: str, code: str) -> bool:
    """Whether a thread is in ``function``, at a line with ``code``."""
    frame = sys._current_frames().get(thread.ident or 0)
    return (
        frame is not None
        and frame.f_code.co_name == function
        and code in getline(frame.f_code.co_filename, frame.f_lineno)
    )


class Ghost:
    """Another process, as Redis sees it: it queues (alive: its channel is heard), and then does nothing any more."""

    def __init__(self, client: redis.Redis, *, alive: bool) -> None:
        self.client = client
        self.backend = Backend("default", "redislock")
        self.pubsub = client.pubsub()
        if alive:
            self.pubsub.subscribe(self.backend.channel)
            assert self.pubsub.get_message(timeout=GENEROUS)

    def queue(self, token: str, *, mode: str, age: float = 0.0, ttl: float = 30, name: str = NAME) -> scripts.Taken:
        """Queue as a waiter that came ``age`` seconds ago."""
        return run(
            scripts.acquire(
                self.backend,
                make_keys("redislock{0}:", name),
                name,
                token,
                ttl=round(ttl * 1000),
                mode=mode,
                wait="1",
                ticket=server_time(self.client) - round(age * 1e6),
                owner="ghost",
            )
        )

    def hear(self) -> list[str]:
        """The words of the next message to this process."""
        message = self.pubsub.get_message(timeout=GENEROUS)
        assert message
        return str(message["data"].decode()).split()

    def close(self) -> None:
        self.pubsub.close()
        self.backend.close()


def put(
    client: redis.Redis,
    name: str,
    *,
    owner: str = "host:1:Main",
    since: int = 0,
    ttl: int = 60,
    waiters: int = 0,
    now: int | None = None,
) -> None:
    """A held lock, as the scripts write it; ``since``: seconds ago, which orders the fences too."""
    now = server_time(client) if now is None else now
    began = now - since * 1_000_000
    client.set(f"redislock{{0}}:lock:{name}", f"{'t' * 22} channel c {began} {began} {owner}", px=ttl * 1000)
    client.zadd("redislock{0}:index", {name: now + ttl * 1_000_000})
    if waiters:
        client.zadd(f"redislock{{0}}:queue:{name}", {f"token-{number}": now + number for number in range(waiters)})


def server_time(client: redis.Redis) -> int:
    """Microseconds by the server's clock."""
    seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def holder(client: redis.Redis, name: str = NAME) -> str:
    """The token that holds the lock in Redis; empty when nobody does."""
    value = client.get(make_keys("redislock{0}:", name).lock)
    return value.decode().split(" ")[0] if isinstance(value, bytes) else ""


def flag(client: redis.Redis) -> str:
    """c: the lock was taken or is confirmed, h: it was handed over."""
    value = client.get(KEYS.lock)
    return value.decode().split(" ")[2] if isinstance(value, bytes) else ""


def queued(client: redis.Redis) -> int:
    """How many wait, by whichever key has more of them. (``!`` is no waiter but the trace of a handoff.)"""
    entries = int(client.hlen(KEYS.waiters)) - int(client.hexists(KEYS.waiters, "!"))
    return max(int(client.zcard(KEYS.queue)), entries)


class Actor:
    """A task that does what it is told, one thing after the other. See Other."""

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
        """Let it begin; the future has the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((future, call))
        return future

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        return await asyncio.wait_for(self.start(call), GENEROUS)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
