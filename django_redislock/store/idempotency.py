"""Calls that run once in Redis, however often they are sent.

When a call is sent again because its answer was lost, it must not count twice, and must return what the first run has
answered. So each call goes through a *slot*, which carries one call at a time and numbers them; the script leaves
number and answer in the slot's key (``once.lua``). Slots are used again: Redis remembers one answer per call that runs
at the same time, not one per call. Source: the sessions of NFS 4.1, RFC 8881, section 2.10.6.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from redis.exceptions import ResponseError

from ..exceptions import LockUnavailable
from ..steps import Steps
from .place import Backend
from .retry import call
from .scripts import Script

# the slots that carry no call: key, and number of the last one
_free: WeakKeyDictionary[Backend, list[tuple[str, int]]] = WeakKeyDictionary()


def call_once(
    backend: Backend, script: Script, keys: Sequence[str], args: Sequence[str], *, name: str, noun: str = "lock"
) -> Steps[bytes]:
    """Run ``script``, which includes ``once``, on ``keys``. Raises LockUnavailable; it may have run or not, then.

    For 60 s after its last run, a repetition is recognised.
    """
    free = _free.setdefault(backend, [])
    try:
        slot, last = free.pop()  # the last one given back comes first, so that few are in use
    except IndexError:
        slot, last = f"{backend.prefix}slot:{secrets.token_urlsafe(12)}", 0
    number = last + 1
    command = script.command((slot, *keys), (str(number), *args))
    refused = False
    try:
        reply = yield from call(backend, command, name, noun=noun)
        return reply.answer  # type: ignore[no-any-return]
    except LockUnavailable as error:
        refused = isinstance(error.__cause__, ResponseError)  # for what somebody else has written there, maybe
        raise
    finally:
        if not refused:
            free.append((slot, number))
