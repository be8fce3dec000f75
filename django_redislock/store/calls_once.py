"""Calls that run once in Redis, however often they are sent: of values, counters, members, force() and suspend().

A call that is sent again because its answer was lost must not count twice, and must return the first run's answer. So
each call is one of a *sequence*, which has one call at a time and numbers them, and the script stores number and answer
under the sequence's key (piece ``once``). Sequences are reused, so Redis stores one answer for each *concurrent* call,
not for each call. Source: the slots of NFS 4.1, RFC 8881, section 2.10.6.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from ..base.steps import Steps
from ..base.times import NEVER, Deadline
from ..exceptions import LockUnavailable
from .lock_store import Partition
from .records import make_keys, pools_key
from .retry import call
from .scripts import Script


def call_once(
    partition: Partition, script: Script, keys: Sequence[str], args: Sequence[str], *, name: str, noun: str = "lock"
) -> Steps[bytes]:
    """Run ``script``, which includes ``once``, on ``keys``. After LockUnavailable, it may have run or not.

    A repetition is recognised for 60 s.
    """
    with take_sequence(partition, name) as (sequence, number):
        reply = yield from call(partition, script.command((sequence, *keys), (number, *args)), name, noun=noun)
    return reply.answer  # type: ignore[no-any-return]


@contextmanager
def take_sequence(partition: Partition, name: str) -> Iterator[tuple[str, str]]:
    """Yield the key of a sequence for one call that concerns ``name``, and the call's number in it."""
    free = partition.free_sequences
    try:
        # that of a call on this name which was given up, and may arrive yet; else the one used last: few are in use
        if given_up := [each for each in free if each[2] == name]:
            sequence, last, _ = given_up[-1]
            free.remove(given_up[-1])
        else:
            sequence, last, _ = free.pop()
    except (IndexError, ValueError):  # there is none, or another thread has just taken it
        sequence, last = f"{partition.prefix}sequence:{secrets.token_urlsafe(12)}", 0
    late, refused = name, False
    try:
        yield sequence, str(last + 1)
        late = ""
    except LockUnavailable as error:
        refused = isinstance(error.__cause__, ResponseError)  # perhaps because of a foreign value under its key
        raise
    finally:
        if not refused:
            free.append((sequence, last + 1, late))


BATCH = 250  # members in one step, so that none keeps Redis for longer than a few milliseconds

_MEMBERS = Script("members", "member")


def change_members(
    partition: Partition, pool: str, how: str, members: Sequence[str], *, staged: str = "none"
) -> Steps[int]:
    """Add members to the pool or remove them (``how``), BATCH at a time; return how many were added or removed."""
    changed = 0
    for start in range(0, len(members), BATCH):
        changed += yield from _step(partition, pool, how, *members[start : start + BATCH], staged=staged)
    return changed


def replace_members(partition: Partition, pool: str, members: Sequence[str]) -> Steps[int]:
    """Replace all members by these in one step; return how many are new."""
    staged = secrets.token_urlsafe(12)
    new = yield from change_members(partition, pool, "stage", members, staged=staged)
    yield from _step(partition, pool, "switch", str(len(members)), staged=staged)
    return new


def _step(partition: Partition, pool: str, how: str, *words: str, staged: str = "none") -> Steps[int]:
    """One step, and as many calls as it takes to hand out what it has made free."""
    into = (f"{partition.prefix}next_{which}:{staged}" for which in ("members", "fresh"))
    declared = (*make_keys(partition.prefix, pool).declared, *into, pools_key(partition.prefix))

    def run(how: str, *words: str) -> Steps[list[int]]:
        args = (pool, how, partition.channel, str(partition.highest_fence), *words)
        answer = yield from call_once(partition, _MEMBERS, declared, args, name=pool)
        return [int(number) for number in answer.split()]

    changed, more = yield from run(how, *words)
    while more:
        _, more = yield from run("grant")
    return changed


def read_members(partition: Partition, pool: str) -> Steps[list[bytes]]:
    """All members, by name."""
    return (yield from _read(partition, pool, "ZRANGE", "0", "-1"))  # type: ignore[no-any-return]


def count_members(partition: Partition, pool: str, *, deadline: Deadline = NEVER) -> Steps[int]:
    """``deadline``: see call()."""
    return (yield from _read(partition, pool, "ZCARD", deadline=deadline))  # type: ignore[no-any-return]


def has_member(partition: Partition, pool: str, member: str) -> Steps[bool]:
    return (yield from _read(partition, pool, "ZSCORE", member)) is not None


def _read(partition: Partition, pool: str, verb: str, *args: str, deadline: Deadline = NEVER) -> Steps[Any]:
    command = (verb, make_keys(partition.prefix, pool).members, *args)
    reply = yield from call(partition, command, pool, deadline=deadline)
    return reply.answer
