"""Adds headers to each response that say when the request asked for its lock, and when it got it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextvars import ContextVar
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, NamedTuple

import redis.asyncio.lock
import redis.lock
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from bench.tickets import note_tickets
from django_redislock import lock_acquired

HEADER = "X-Demo-Lock"
LOOK = "X-Demo-Look"  # in a request: asks for the output of ``redislocks list`` while it holds the lock
TRY = """
local time, got = redis.call('TIME'), redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return {time[1], time[2], got and 1 or 0}
"""


class Turn(NamedTuple):
    """One acquisition. ``asked`` and ``served`` are times by the clock of Redis, so that they can be compared.

    ``asked``: when Redis ran the first request for the lock. Either it found the lock free, and was served in the same
    moment, or it did not.
    """

    asked: int
    served: int
    waited: float  # seconds


class Watched:
    """What an HTTP request, which acquires one lock, has done so far."""

    def __init__(self, *, look: bool) -> None:
        self.look = look
        self.asked: int | None = None
        self.since = 0.0  # monotonic; where the lock does not say how long it was waited for
        self.headers: dict[str, Any] = {}

    def ask(self, number: int, since: float = 0.0) -> None:
        if self.asked is None:
            self.asked, self.since = number, since

    def serve(self, number: int, waited: float) -> None:
        self.headers[HEADER] = Turn(number if self.asked is None else self.asked, number, waited)

    def sign(self, response: HttpResponse) -> HttpResponse:
        for name, value in self.headers.items():
            response.headers[name] = json.dumps(value)
        return response


_nobody = Watched(look=False)  # outside of requests
_request: ContextVar[Watched] = ContextVar("demo.request", default=_nobody)


@sync_and_async_middleware
def observe(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """The middleware that adds the headers."""

    def watched(request: HttpRequest) -> Watched:
        _request.set(Watched(look=LOOK in request.headers))
        return _request.get()

    async def aobserved(request: HttpRequest) -> HttpResponse:
        return watched(request).sign(await get_response(request))

    def observed(request: HttpRequest) -> HttpResponse:
        return watched(request).sign(get_response(request))

    return aobserved if iscoroutinefunction(get_response) else observed


def watch() -> None:
    """From now on, record requests for locks and grants: ours, redis-py's and redis.asyncio's.

    Of ours, the ticket and the fence, which are times, as a rule. The others have no tickets, so each try asks for the
    time in the same script.
    """
    note_tickets(lambda attempt, number: _request.get().ask(number))
    lock_acquired.connect(_on_acquired)
    redis.lock.Lock.do_acquire = _do_acquire  # type: ignore[method-assign, assignment]
    redis.asyncio.lock.Lock.do_acquire = _ado_acquire  # type: ignore[method-assign, assignment]


def _on_acquired(*, fence: int, waited: float, **facts: Any) -> None:
    request = _request.get()
    request.serve(fence, waited)
    if request.look:  # asked here, because in memory mode only this process knows the locks
        output = io.StringIO()
        call_command("redislocks", "list", stdout=output)
        request.headers[LOOK] = output.getvalue()


def _do_acquire(lock: redis.lock.Lock, token: str) -> bool:
    since = monotonic()
    return _note(_try(lock, token), since)


async def _ado_acquire(lock: redis.asyncio.lock.Lock, token: str) -> bool:
    since = monotonic()
    return _note(await _try(lock, token), since)


def _try(lock: Any, token: str) -> Any:
    return lock.redis.eval(TRY, 1, lock.name, token, int(lock.timeout * 1000))


def _note(reply: Any, since: float) -> bool:
    seconds, us, served = map(int, reply)
    request = _request.get()
    request.ask(seconds * 1_000_000 + us, since)
    if served:
        request.serve(seconds * 1_000_000 + us, monotonic() - request.since)
    return bool(served)
