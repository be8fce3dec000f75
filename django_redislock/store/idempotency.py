"""Calls that run once in Redis, however often they are sent.

A call that is sent again because its answer was lost must not count twice, and must return the first run's answer. So
each call goes through a *slot*, which carries one call at a time and numbers them, and the script stores number and
answer under the slot's key (``once.lua``). Slots are reused, so Redis stores one answer for each *concurrent* call, not
for each call. Source: the sessions of NFS 4.1, RFC 8881, section 2.10.6.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from redis.exceptions import ResponseError

from ..base.steps import Steps
from ..exceptions import LockUnavailable
from .lock_store import Partition
from .retry import call
from .scripts import Script

# slots that carry no call: their key, and the number of the last call
_free: WeakKeyDictionary[Partition, list[tuple[str, int]]] = WeakKeyDictionary()


def call_once(
    partition: Partition, script: Script, keys: Sequence[str], args: Sequence[str], *, name: str, noun: str = "lock"
) -> Steps[bytes]:
    """Run ``script``, which includes ``once``, on ``keys``. After LockUnavailable, it may have run or not.

    A repetition is recognised for 60 s.
    """
    free = _free.setdefault(partition, [])
    try:
        slot, last = free.pop()  # the one used last, so that few slots are in use
    except IndexError:
        slot, last = f"{partition.prefix}slot:{secrets.token_urlsafe(12)}", 0
    number = last + 1
    command = script.command((slot, *keys), (str(number), *args))
    refused = False
    try:
        reply = yield from call(partition, command, name, noun=noun)
        return reply.answer  # type: ignore[no-any-return]
    except LockUnavailable as error:
        refused = isinstance(error.__cause__, ResponseError)  # perhaps because of a foreign value under its key
        raise
    finally:
        if not refused:
            free.append((slot, number))
