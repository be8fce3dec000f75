"""A worker process: runs the jobs that come through its pipe, each started at a given time of the shared clock."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Generator, MutableSequence
from importlib import import_module
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import django
from django.conf import settings

from django_redislock import Lock

from .contenders import Contender
from .figures import Section
from .runners import Call, Coroutines, Routine, Runner, Threads

READY = "ready"

Job = Callable[..., Routine[Any]]
"""Called with the worker and its arguments. It must yield ``worker.ready()`` once; its result goes to the parent."""


class Failure(str):
    """The traceback of a job that failed."""


class Worker:
    """What a job can use. ``inside`` is shared by all workers: for each name, the mark of the worker inside, or 0."""

    def __init__(
        self, number: int, pipe: Connection, inside: MutableSequence[int], url: str, *, coroutines: bool
    ) -> None:
        self.number = number
        self.inside = inside
        self.url = url
        self.runner: Runner = Coroutines() if coroutines else Threads()
        self.troubles: list[str] = []  # warnings of our locks, and errors of waiters
        self.kept: list[object] = []  # kept after the end of the job
        self._pipe = pipe
        self._contenders: dict[tuple[type[Contender], int, int], Contender] = {}
        self._tickets: dict[str, int] = {}
        self._noting_tickets = False
        logging.getLogger("django_redislock").addHandler(_Noting(self.troubles))

    def contender(self, kind: type[Contender], ttl: int, name: int = 0) -> Contender:
        """The contender of this kind, made when first needed. ``name``: the number of a name."""
        found = self._contenders.get((kind, ttl, name))
        if found is None:
            text = f"bench:{kind.key}:{name}" if name else f"bench:{kind.key}"
            found = self.contender(kind, ttl).under(text) if name else kind(self.url, text, ttl)
            self._contenders[kind, ttl, name] = found
        return found

    def ready(self) -> Call:
        """Say that the warm-up is over; wait for the other workers, and start with them."""
        return self.runner.run_blocking, self._wait_for_the_others

    def _wait_for_the_others(self) -> None:
        self._pipe.send(READY)
        time.sleep(max(0.0, self._pipe.recv() - monotonic()))

    def offset(self, client: Any) -> Routine[float]:
        """The server's clock minus ours, at the time of sending."""
        asked = monotonic()
        seconds, us = yield (client.time,)
        return float(seconds + us / 1e6 - asked)

    def section(self, contender: Contender, who: int, hold: float, name: int = 0) -> Routine[Section]:
        """Acquire, stay inside for ``hold`` seconds, release. ``name``: the number of the contender's."""
        inside, mark = self.inside, who + 1
        asked = monotonic()
        held = yield (contender.acquire,)
        got = monotonic()
        clash = inside[name] != 0
        inside[name] = mark
        ticket = fence = None
        if isinstance(held, Lock):
            fence, ticket = held.fence, self._tickets.pop(held.token or "", None)
        if hold:
            yield self.runner.sleep, hold
        clash = clash or inside[name] != mark
        inside[name] = 0
        leaving = monotonic()
        yield contender.release, held
        return Section(who, asked, got, leaving, clash, ticket, fence, name)

    def note_tickets(self) -> None:
        """From now on, keep the first number that Redis returns to each attempt: its place in the server's order.

        Ticket and fence come from one counter, so an attempt that gets the lock at once has its fence as a ticket. (The
        token is the attempt's id, as none is given.) Another checkout may have no such module: its order is not known.
        """
        if self._noting_tickets:
            return
        self._noting_tickets = True
        try:
            calls = import_module("django_redislock.store.calls")
        except ModuleNotFoundError:
            return
        acquire, at_once, tickets = calls.acquire, getattr(calls, "granted_at_once", None), self._tickets

        def noting(request: Any, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
            reply = yield from acquire(request, *args, **options)
            if reply.number:
                tickets.setdefault(request.id, reply.number)
            return reply

        def noting_at_once(request: Any, *args: Any) -> Any:
            granted = at_once(request, *args)  # type: ignore[misc]
            if granted is not None:
                tickets.setdefault(request.id, granted[0])
            return granted

        calls.acquire = noting  # type: ignore[attr-defined]
        if at_once is not None:
            calls.granted_at_once = noting_at_once  # type: ignore[attr-defined]

    def serve(self) -> None:
        """Run jobs until the parent closes the pipe."""
        try:
            while True:
                job, args = self._pipe.recv()
                try:
                    answer = self.runner.run(job(self, *args))
                except (EOFError, BrokenPipeError):
                    raise
                except Exception:
                    answer = Failure(traceback.format_exc())
                self._pipe.send(answer)
        except (EOFError, OSError):
            pass


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
    rest."""
    settings.configure(
        INSTALLED_APPS=["django_redislock"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        REDISLOCK={"CLUSTER": cluster},
    )
    django.setup()
    Worker(number, pipe, inside, url, coroutines=coroutines).serve()
