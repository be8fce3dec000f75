"""A worker process: does the jobs that come down its pipe, each started by a time on the shared clock."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, MutableSequence
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import django
from django.conf import settings

from django_redislock import Lock, scripts
from django_redislock.steps import Steps

from .contenders import CONTENDERS, Contender
from .figures import Section

READY = "ready"

Job = Callable[..., Any]
"""Called with the worker and its arguments. It must call ``worker.ready()`` once; its result goes to the parent."""


class Failure(str):
    """The traceback of a job that failed."""


class Worker:
    """What a job may use. ``inside`` is shared by all workers: the mark of whoever is inside, 0 for nobody."""

    def __init__(self, number: int, pipe: Connection, inside: MutableSequence[int], url: str) -> None:
        self.number = number
        self.inside = inside
        self.url = url
        self.troubles: list[str] = []  # warnings of our locks, and errors of threads
        self.kept: list[object] = []  # held beyond the job
        self._pipe = pipe
        self._contenders: dict[tuple[str, int], Contender] = {}
        self._tickets: dict[str, int] = {}
        self._noting_tickets = False
        logging.getLogger("django_redislock").addHandler(_Noting(self.troubles))

    def contender(self, key: str, ttl: int) -> Contender:
        """Made when it is first asked for."""
        if (key, ttl) not in self._contenders:
            self._contenders[key, ttl] = CONTENDERS[key](self.url, f"bench:{key}", ttl)
        return self._contenders[key, ttl]

    def ready(self) -> None:
        """Warmed up: wait for the others, and start when they do."""
        self._pipe.send(READY)
        time.sleep(max(0.0, self._pipe.recv() - monotonic()))

    def section(self, contender: Contender, who: int, hold: float) -> Section:
        """Acquire, stay inside for ``hold`` seconds, release."""
        inside, mark = self.inside, who + 1
        asked = monotonic()
        held = contender.acquire()
        got = monotonic()
        clash = inside[0] != 0
        inside[0] = mark
        ticket = fence = None
        if isinstance(held, Lock):
            fence, ticket = held.fence, self._tickets.pop(held.token or "", None)
        if hold:
            time.sleep(hold)
        clash = clash or inside[0] != mark
        inside[0] = 0
        leaving = monotonic()
        held.release()
        return Section(who, asked, got, leaving, clash, ticket, fence)

    def note_tickets(self) -> None:
        """From now on, keep the number that Redis answers first to each acquisition: its place in the server's order.

        Ticket and fence come from one counter, so who gets the lock at once has its fence for a ticket.
        """
        if self._noting_tickets:
            return
        self._noting_tickets = True
        acquire, tickets = scripts.acquire, self._tickets

        def noting(*args: Any, **options: Any) -> Steps[scripts.Taken]:
            taken = yield from acquire(*args, **options)
            if taken.number:
                tickets.setdefault(args[3], taken.number)
            return taken

        scripts.acquire = noting

    def serve(self) -> None:
        """Do jobs until the parent hangs up."""
        try:
            while True:
                job, args = self._pipe.recv()
                try:
                    answer = job(self, *args)
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
        self.texts.append(f"{record.levelname.lower()}: {record.getMessage()}")


def main(number: int, pipe: Connection, inside: MutableSequence[int], url: str) -> None:
    """What a worker process runs. It has settings of its own: the private server, and defaults for the rest."""
    settings.configure(
        INSTALLED_APPS=["django_redislock"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
    )
    django.setup()
    Worker(number, pipe, inside, url).serve()
