"""A worker process: runs the jobs that come through its pipe, each started at a given time of the shared clock.

Jobs are coroutine functions, for threads as well: there, what they call blocks, and they never wait for a loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, MutableSequence
from functools import cache
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import django
import redis
import redis.asyncio
from django.conf import settings

from django_redislock import Lock

from .contenders import Contender, done
from .figures import Section
from .tickets import note_tickets

READY = "ready"

T = TypeVar("T")

Job = Callable[..., Coroutine[Any, Any, Any]]
"""Called with the worker and its arguments. It must await ``worker.ready()`` once; its result goes to the parent."""


class Answer(NamedTuple):
    result: Any
    troubles: list[str]
    failure: str = ""  # the job's traceback


class Crowd:
    """Threads or coroutines of this process. ``over`` is set when all have finished."""

    def __init__(self, size: int) -> None:
        self.alive = size
        self.over = threading.Event()
        self._mutex = threading.Lock()

    def leave(self) -> None:
        with self._mutex:
            self.alive -= 1
            if not self.alive:
                self.over.set()


class Worker:
    """What a job can use. ``inside`` is shared by all workers: for each name, the mark of the worker inside, or 0."""

    def __init__(
        self, number: int, pipe: Connection, inside: MutableSequence[int], url: str, cluster: bool, coroutines: bool
    ) -> None:
        self.number = number
        self.url = url
        self.cluster = cluster
        self.troubles: list[str] = []  # warnings of our locks, and errors of those that were started
        self.kept: list[Any] = []  # kept after the end of the job
        self.one: Any = cache(lambda kind: kind(self))  # the contender of a kind, made when first needed
        self.loop = asyncio.new_event_loop() if coroutines else None  # also runs between jobs
        self._inside = inside
        self._pipe = pipe
        self._tasks: list[asyncio.Task[None]] = []
        self._tickets: dict[str, int] | None = None
        logging.getLogger("django_redislock").addHandler(_Noting(self.troubles))
        if self.loop:
            threading.Thread(target=self.loop.run_forever, daemon=True).start()

    # -- threads or coroutines ----------------------------------------------------------------------------------------

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(job, self.loop).result() if self.loop else _run(job)

    def start(self, size: int, job: Callable[[int], Coroutine[Any, Any, object]]) -> Crowd:
        """Start so many threads or coroutines, each given its number."""
        crowd = Crowd(size)

        async def do(number: int) -> None:
            try:
                await job(number)
            except Exception as error:
                self.troubles.append(f"{type(error).__name__}: {error}")
            finally:
                crowd.leave()

        for number in range(size):
            if self.loop:
                self._tasks.append(self.loop.create_task(do(number)))
            else:
                threading.Thread(target=_run, args=(do(number),), daemon=True).start()
        return crowd

    def seconds_for(self, size: int) -> float:
        """After which such a crowd waits for its lock: no contender but ours could tell."""
        return size * (0.0005 if self.loop else 0.003)

    async def sleep(self, seconds: float) -> None:
        if self.loop:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def block(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that blocks its thread, while the others of a crowd go on."""
        return await self.loop.run_in_executor(None, function, *args) if self.loop else function(*args)

    def client(self, *, cluster: bool = False, **options: Any) -> Any:
        """A plain client of Redis."""
        module = redis.asyncio if self.loop else redis
        return (module.RedisCluster if cluster else module.Redis).from_url(self.url, **options)

    # -- what jobs do -------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Say that the warm-up is over; wait for the other workers, and start with them."""
        self._pipe.send(READY)
        start = await self.block(self._pipe.recv)
        await self.sleep(max(0.0, start - monotonic()))

    async def section(self, contender: Contender, number: int = 0, hold: float = 0.0) -> Section:
        """Acquire the lock of this number (or any member of a pool), stay inside for ``hold`` seconds, release."""
        if self._tickets is None:
            self._tickets = {}
            note_tickets(self._tickets.setdefault)
        inside, mark, name = self._inside, self.number + 1, contender.name(number)
        asked = monotonic()
        held = await contender.acquire(name)
        got = monotonic()
        number = contender.number(held, number)
        clash = inside[number] != 0
        inside[number] = mark
        ticket = fence = None
        if isinstance(held, Lock):
            # a permit has no token; of those, a process wants one at a time
            fence, known = held.fence, held.token or next(reversed(self._tickets), "")
            ticket = self._tickets.pop(known, None)
        if hold:
            await self.sleep(hold)
        clash = clash or inside[number] != mark
        inside[number] = 0
        leaving = monotonic()
        await contender.release(held)
        return Section(self.number, number, asked, got, leaving, clash, ticket, fence)

    def serve(self) -> None:
        """Run jobs until the parent ends this process."""
        while True:
            job, args = self._pipe.recv()
            result, failure = None, ""
            try:
                result = self.run(job(self, *args))
            except Exception:
                failure = traceback.format_exc()
            self._pipe.send(Answer(result, self.troubles.copy(), failure))
            self.troubles.clear()


async def clocks(worker: Worker, size: int, seconds: float) -> list[float]:
    """The server's clock minus ours, at the time of sending, while so many ask for it."""
    client = worker.client()
    await done(client.ping())
    offsets: list[float] = []

    async def ask(number: int) -> None:
        end = monotonic() + seconds
        while True:
            asked = monotonic()
            second, us = await done(client.time())
            offsets.append(second + us / 1e6 - asked)
            if monotonic() >= end:
                break

    await worker.ready()
    await worker.block(worker.start(size, ask).over.wait)
    return offsets


def _run(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop."""
    try:
        job.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a blocking call has returned something to wait for")


class _Noting(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        text = re.sub(r" waited=\S+", "", record.getMessage())  # texts that always differ could not be counted
        self.texts.append(f"{record.levelname.lower()}: {text}")


def main(
    number: int, pipe: Connection, inside: MutableSequence[int], url: str, cluster: bool, coroutines: bool
) -> None:
    """The main function of a worker process, which has its own settings: the private server, and defaults for the
    rest. Ctrl-C is for the parent, which then ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings.configure(
        INSTALLED_APPS=["django_redislock"],
        CACHES={"default": {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}},
        REDISLOCK={"CLUSTER": cluster},
    )
    django.setup()
    Worker(number, pipe, inside, url, cluster, coroutines).serve()
