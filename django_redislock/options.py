"""The options of a lock: what they may be."""

from __future__ import annotations

from typing import Any

from asgiref.sync import iscoroutinefunction
from redis.backoff import AbstractBackoff

from .conf import conf, way_to_wait
from .texts import shown

MAX_NOTE_BYTES = 1000


def check_on_lost(value: Any) -> Any:
    if value != "cancel" and (not callable(value) or iscoroutinefunction(value)):
        raise TypeError(f"on_lost must be a plain function, 'cancel' or None, not {shown(value)}.")
    return value


def check_wait(wait: str | None, backoff: AbstractBackoff | None, attempts: int | None) -> None:
    """Whether all three fit together: only who polls has a pace, and counts its tries."""
    if wait is not None:
        way_to_wait(wait, "wait")
    if backoff is not None and not isinstance(backoff, AbstractBackoff):
        raise TypeError(
            f"backoff must be an instance of one of redis-py's classes in redis.backoff, such as "
            f"EqualJitterBackoff(cap=0.5, base=0.02), not {shown(backoff)}."
        )
    if attempts is not None:
        if not isinstance(attempts, int) or isinstance(attempts, bool):
            raise TypeError(f"attempts must be an int, 1 or more, or None, not {shown(attempts)}.")
        if attempts < 1:
            raise ValueError(f"attempts must be 1 or more, not {shown(attempts)}.")
    given = [name for name, value in (("backoff", backoff), ("attempts", attempts)) if value is not None]
    if given and (wait or conf().WAIT) != "poll":
        raise ValueError(
            f"{' and '.join(given)} can only be given with wait='poll': who waits to be woken looks when it is told. "
            f"(wait is {wait!r}, REDISLOCK['WAIT'] is {conf().WAIT!r}.)"
        )


def check_note(note: str) -> str:
    """Return ``note`` when it can be kept with a lock."""
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not {shown(note)} ({type(note).__name__}).")
    try:
        size = len(note.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"note cannot be encoded as UTF-8: {error}.") from None
    if size > MAX_NOTE_BYTES:
        raise ValueError(f"note has {size} bytes; at most {MAX_NOTE_BYTES} are kept. It begins with {note[:80]!r}.")
    return note
