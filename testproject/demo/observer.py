"""Tells, in headers of each response, which locks the request got, and in which order they were asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management import call_command

from django_redislock import lock_acquired, scripts

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from django_redislock.steps import Steps

HEADER = "X-Demo-Locks"
LOOK = "X-Demo-Look"  # in a request: what does ``redislocks list`` say while you hold the lock?

ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]


class Turn(NamedTuple):
    """One acquisition. ``asked`` and ``fence`` come from the same counter in Redis, so they order what happened there.

    ``asked`` is the ticket that Redis drew when the request queued; one that found the lock free never queued, it
    asked and was served in the same call: its fence.
    """

    name: str
    asked: int
    fence: int
    waited: float  # seconds


@dataclass
class Watched:
    """What a request has done so far."""

    look: bool
    asked: dict[str, int] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    listing: list[str] = field(default_factory=list)

    def headers(self) -> list[tuple[str, str]]:
        return [(HEADER, json.dumps(self.turns)), *((LOOK, json.dumps(text)) for text in self.listing)]


_request: ContextVar[Watched | None] = ContextVar("demo.request", default=None)


def watch() -> None:
    """Watch the answers of the acquire script, as tickets are not public, and who is served."""
    original = scripts.acquire

    def acquire(backend: Any, keys: Any, name: str, token: str, **options: Any) -> Steps[scripts.Taken]:
        taken = yield from original(backend, keys, name, token, **options)
        request = _request.get()
        if taken.number and request is not None:
            request.asked.setdefault(name, taken.number)
        return taken

    scripts.acquire = acquire
    lock_acquired.connect(on_acquired)


def on_acquired(*, name: str, fence: int, waited: float, **kwargs: Any) -> None:
    request = _request.get()
    if request is not None:
        request.turns.append(Turn(name, request.asked.get(name, fence), fence, waited))
        if request.look:
            request.listing.append(listing())


def observed(application: WSGIApplication) -> WSGIApplication:
    """The WSGI application, with our headers in its answers."""

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
    """What ``manage.py redislocks list`` prints; asked here, as in memory mode only this process knows the locks."""
    output = io.StringIO()
    call_command("redislocks", "list", stdout=output)
    return output.getvalue()


def read(header: str | None) -> list[Turn]:
    """What the header says."""
    return [Turn(*values) for values in json.loads(header or "[]")]
