"""Calls that run once in Redis, however often they are sent.

When a call is sent again because its answer was lost, it must not count twice, and must return what the first run has
answered. So each call goes through a *slot*, which carries one call at a time and numbers them; the script leaves
number and answer in the slot's key (``once.lua``). Slots are used again: Redis remembers one answer per call that runs
at the same time, not one per call. Source: the sessions of NFS 4.1, RFC 8881, section 2.10.6.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from redis.exceptions import ResponseError

from ..exceptions import LockUnavailable
from ..steps import Steps
from .place import Backend
from .retry import call
from .scripts import Script


class _Slot:
    __slots__ = ("key", "number")

    def __init__(self, key: str) -> None:
        self.key = key
        self.number = 0


_free: WeakKeyDictionary[Backend, list[_Slot]] = WeakKeyDictionary()


@contextmanager
def _slot(backend: Backend) -> Iterator[_Slot]:
    """A slot for one call. The last one given back comes first, so that few are in use."""
    free = _free.setdefault(backend, [])
    try:
        slot = free.pop()
    except IndexError:
        slot = _Slot(f"{backend.prefix}slot:{secrets.token_urlsafe(12)}")
    slot.number += 1
    refused = False
    try:
        yield slot
    except LockUnavailable as error:
        refused = isinstance(error.__cause__, ResponseError)  # for what somebody else has written there, maybe
        raise
    finally:
        if not refused:
            free.append(slot)


def call_once(
    backend: Backend, script: Script, keys: Sequence[str], args: Sequence[str], *, name: str, noun: str = "lock"
) -> Steps[bytes]:
    """Run ``script``, which includes ``once``, on ``keys``. Raises LockUnavailable; it may have run or not, then.

    For 60 s after its last run, a repetition is recognised.
    """
    with _slot(backend) as slot:
        command = script.command((slot.key, *keys), (str(slot.number), *args))
        reply = yield from call(backend, command, name, noun=noun)
        return reply.answer  # type: ignore[no-any-return]
