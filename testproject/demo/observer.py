"""Tells, in headers of each response, which locks the request got, and in which order they were asked for."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management import call_command

from django_redislock import lock_acquired, scripts

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from django_redislock.steps import Steps

HEADER = "X-Demo-Locks"
LOOK = "X-Demo-Look"  # in a request: what does ``redislocks list`` say while you hold the lock?


class Turn(NamedTuple):
    """One acquisition. ``asked`` and ``fence`` come from the same counter in Redis, so they order what happened there.

    ``asked`` is the ticket that Redis drew when the request queued; one that found the lock free never queued, it
    asked and was served in the same call: its fence.
    """

    name: str
    asked: int
    fence: int
    waited: float  # seconds


class Observer:
    """A WSGI application around another one. Watches the answers of the acquire script: tickets are not public."""

    def __init__(self, application: WSGIApplication) -> None:
        self.application = application
        self.request = threading.local()
        original = scripts.acquire

        def acquire(backend: Any, keys: Any, name: str, token: str, **options: Any) -> Steps[scripts.Taken]:
            taken = yield from original(backend, keys, name, token, **options)
            if taken.number and hasattr(self.request, "asked"):
                self.request.asked.setdefault(name, taken.number)
            return taken

        scripts.acquire = acquire
        lock_acquired.connect(self.on_acquired)

    def on_acquired(self, *, name: str, fence: int, waited: float, **kwargs: Any) -> None:
        request = self.request
        if hasattr(request, "turns"):
            request.turns.append(Turn(name, request.asked.get(name, fence), fence, waited))
            if request.look:
                request.listing.append(listing())

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = self.request
        request.look = f"HTTP_{LOOK.upper().replace('-', '_')}" in environ
        request.asked = {}
        turns: list[Turn] = []
        seen: list[str] = []
        request.turns, request.listing = turns, seen

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            ours = [(HEADER, json.dumps(turns)), *((LOOK, json.dumps(text)) for text in seen)]
            return start_response(status, [*headers, *ours], *more)

        return self.application(environ, start)


def listing() -> str:
    """What ``manage.py redislocks list`` prints; asked here, as in memory mode only this process knows the locks."""
    output = io.StringIO()
    call_command("redislocks", "list", stdout=output)
    return output.getvalue()


def read(header: str | None) -> list[Turn]:
    """What the header says."""
    return [Turn(*values) for values in json.loads(header or "[]")]
