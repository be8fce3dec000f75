"""Learns the places of waiters in their queues, which the locks do not tell."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def note_tickets(note: Callable[[str, int], object]) -> None:
    """From now on, have ``note`` called with the id of an attempt and the number that Redis has returned to it.

    The first number of an attempt is its place in the server's order. That of the last one is the fence: both come from
    one counter. (The id is the token, if none is given.) Another checkout may have no such module, or only part of it.
    """
    try:
        calls = import_module("django_redislock.store.calls")
    except ModuleNotFoundError:
        return
    acquire, at_once = calls.acquire, getattr(calls, "granted_at_once", None)

    def noting(request: Any, *args: Any, **options: Any) -> Any:
        reply = yield from acquire(request, *args, **options)
        if reply.number:
            note(request.id, reply.number)
        return reply

    def noting_at_once(request: Any, *args: Any) -> Any:
        granted = at_once(request, *args)  # type: ignore[misc]
        if granted is not None:
            note(request.id, granted[0])
        return granted

    calls.acquire = noting  # type: ignore[attr-defined]
    if at_once is not None:
        calls.granted_at_once = noting_at_once  # type: ignore[attr-defined]
