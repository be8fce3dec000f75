"""Adds headers to each response that say when the request asked for its lock, and when it got it."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import redis.asyncio.lock
import redis.lock
from django.core.management import call_command

from django_redislock import lock_acquired
from django_redislock.store import calls

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from django_redislock.base.steps import Steps

HEADER = "X-Demo-Lock"
TRY = """
local time, got = redis.call('TIME'), redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return {time[1], time[2], got and 1 or 0}
"""
LOOK = "X-Demo-Look"  # in a request: asks for the output of ``redislocks list`` while it holds the lock

ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]


class Turn(NamedTuple):
    """One acquisition. ``asked`` and ``served`` are times by the clock of Redis, so that they can be compared.

    ``asked``: when Redis ran the first request for the lock. Either it found the lock free, and was served in the same
    moment, or it did not.
    """

    asked: int
    served: int
    waited: float  # seconds


@dataclass
class Watched:
    """What an HTTP request, which acquires one lock, has done so far."""

    look: bool
    asked: int | None = None
    since: float = 0.0  # monotonic; where the lock does not say how long it was waited for
    turn: Turn | None = None
    listing: str | None = None

    def ask(self, number: int, since: float = 0.0) -> None:
        if self.asked is None:
            self.asked, self.since = number, since

    def serve(self, number: int, waited: float) -> None:
        self.turn = Turn(number if self.asked is None else self.asked, number, waited)

    def headers(self) -> list[tuple[str, str]]:
        values = {HEADER: self.turn, LOOK: self.listing}
        return [(name, json.dumps(value)) for name, value in values.items() if value is not None]


_request: ContextVar[Watched | None] = ContextVar("demo.request", default=None)


def watch() -> None:
    """From now on, record requests for locks and grants: ours, redis-py's and redis.asyncio's."""
    _watch_ours()
    _watch_others()


def _watch_ours() -> None:
    """Records the ticket and the fence, which are times, as a rule."""
    acquire = calls.acquire

    def watched(*args: Any, **options: Any) -> Steps[calls.AcquireReply]:
        taken = yield from acquire(*args, **options)
        request = _request.get()
        if taken.number and request is not None:
            request.ask(taken.number)
        return taken

    calls.acquire = watched
    lock_acquired.connect(_on_acquired)


def _on_acquired(*, fence: int, waited: float, **facts: Any) -> None:
    request = _request.get()
    if request is not None:
        request.serve(fence, waited)
        if request.look:
            request.listing = listing()


def _watch_others() -> None:
    """These locks have no tickets, so each try asks for the time in the same script."""

    def tries(lock: Any, token: str) -> Any:
        return lock.redis.eval(TRY, 1, lock.name, token, int(lock.timeout * 1000))

    def note(reply: Any, since: float) -> bool:
        seconds, us, served = map(int, reply)
        request = _request.get()
        if request is not None:
            request.ask(seconds * 1_000_000 + us, since)
            if served:
                request.serve(seconds * 1_000_000 + us, monotonic() - request.since)
        return bool(served)

    def do_acquire(self: redis.lock.Lock, token: str) -> bool:
        since = monotonic()
        return note(tries(self, token), since)

    async def ado_acquire(self: redis.asyncio.lock.Lock, token: str) -> bool:
        since = monotonic()
        return note(await tries(self, token), since)

    redis.lock.Lock.do_acquire = do_acquire  # type: ignore[method-assign]
    redis.asyncio.lock.Lock.do_acquire = ado_acquire  # type: ignore[method-assign, assignment]


def observed(application: WSGIApplication) -> WSGIApplication:
    """The WSGI application, with these headers in its responses."""

    def observe(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Watched(look=f"HTTP_{LOOK.upper().replace('-', '_')}" in environ)
        _request.set(request)

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, *request.headers()], *more)

        return application(environ, start)

    return observe


def aobserved(application: ASGIApplication) -> ASGIApplication:
    """The same for an ASGI application."""

    async def observe(scope: Any, receive: Any, send: Any) -> None:
        request = Watched(look=LOOK.lower().encode() in dict(scope["headers"]))
        _request.set(request)

        async def send_more(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in request.headers()]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        await application(scope, receive, send_more)

    return observe


def listing() -> str:
    """The output of ``manage.py redislocks list``, run here because in memory mode only this process knows the
    locks."""
    output = io.StringIO()
    call_command("redislocks", "list", stdout=output)
    return output.getvalue()


def read(header: str | None) -> Turn | None:
    """Parse the header."""
    return Turn(*json.loads(header)) if header else None
