"""Looking at locks from outside: what Redis says of them; set one free by force."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from logging import WARNING
from typing import Any, NamedTuple, TypeVar

from . import scripts
from .connection import Backend, Command, get_backend
from .log import log_event
from .names import check_name, make_keys
from .signals import lock_force_released
from .steps import Steps, Tell, arun, run_blocking

T = TypeVar("T")

LISTED_WAITERS = 100
BATCH = 1000
UNKNOWN = "?"  # the owner of what somebody else has written
LONGEST = 10 * 365 * 86400.0  # seconds
LONGEST_OWNER = 2000  # bytes, with the note: what is longer is none of ours
_VALUE = re.compile(rb"(\S+) \S+ \S (\d{1,18}) (\d{1,17}) (.*)", re.S)


class LockStatus(Enum):
    """What a lock is, as seen from here."""

    FREE = "free"
    UNAVAILABLE = "unavailable"  # held elsewhere
    LOCKED = "locked"  # held here: by this thread or task, or by a token that it was given
    ERROR = "error"  # held without an expiry, which only somebody else's writes can cause


def status_of(value: bytes | None, left_ms: int, token: str | None) -> LockStatus:
    """``value`` and PTTL of a lock's key; ``token``: by which it would be held here."""
    if value is None:
        return LockStatus.FREE
    if left_ms == -1:
        return LockStatus.ERROR
    return LockStatus.LOCKED if token and value.startswith(f"{token} ".encode()) else LockStatus.UNAVAILABLE


def read_statuses(backend: Backend, names: Sequence[str], tokens: Mapping[str, str]) -> Steps[list[LockStatus]]:
    """Of many locks, in one round trip, if any; ``tokens``: those held here, by name."""
    if not names:
        return []
    keys = [make_keys(backend.prefix, name).lock for name in names]
    gets: list[Any] = [("MGET", *batch) for batch in batches(keys)]
    commands = gets + [("PTTL", key) for key in keys]
    answers = yield from scripts.execute_many(backend, commands)
    yield from check_answers(backend, commands, answers)
    values = itertools.chain.from_iterable(answers[: len(gets)])
    return [
        status_of(value, left, tokens.get(name))
        for name, value, left in zip(names, values, answers[len(gets) :], strict=True)
    ]


@dataclass(frozen=True)
class WaiterInfo:
    """One that queues: who, since when (seconds), and whether for a FairLock; ``note`` is its own."""

    owner: str
    waited: float
    fair: bool
    note: str = ""


@dataclass(frozen=True)
class LockInfo:
    """What Redis said about a lock at one moment. Times are by the server's clock.

    ``owner`` is for people: ``host:pid:thread``, and the request path or command where there is one. ``waiters`` counts
    all; ``queue`` holds the first 100 of them in order, where it was asked for. ``note`` is what the holder wanted to
    be known. Tokens are not told: a token is the right to release; ``token_hint`` shows just enough to tell two
    acquisitions apart.

    ``pool_waiters`` and ``pool_queue`` are those who wait for any member of the pool, where this is one. ``status`` is
    UNAVAILABLE, or ERROR: it never ends (``lease_left`` is infinite), so somebody else has written it.
    """

    name: str
    owner: str
    fence: int
    since: datetime
    held_for: float  # seconds
    lease_left: float  # seconds
    waiters: int
    token_hint: str
    queue: tuple[WaiterInfo, ...] = ()
    note: str = ""
    pool_waiters: int = 0
    pool_queue: tuple[WaiterInfo, ...] = ()
    status: LockStatus = LockStatus.UNAVAILABLE

    @property
    def expires(self) -> datetime:
        """When the lease ends if nobody renews it; the last moment of the year 9999 where it never does."""
        if self.lease_left == math.inf:
            return datetime.max.replace(tzinfo=timezone.utc)
        return datetime.fromtimestamp(self.since.timestamp() + self.held_for + self.lease_left, timezone.utc)


class Holder(NamedTuple):
    """What a lock's key says of who holds it; ``since`` in microseconds of the server's clock."""

    token: str
    fence: int
    since: int
    owner: str
    note: str


def split_owner(text: bytes) -> tuple[str, str]:
    """Owner and note. Scripts know them as one text; owners have no control characters."""
    owner, _, note = text[:LONGEST_OWNER].decode(errors="replace").partition("\n")
    return owner, note


def holder_of(value: bytes | None) -> Holder | None:
    """``value`` is what acquire.lua writes; anything else was written by somebody else and is no lock of ours."""
    found = _VALUE.fullmatch(value or b"")
    if found is None:
        return None
    token, fence, since = (part.decode(errors="replace") for part in found.groups()[:3])
    return Holder(token, int(fence), int(since), *split_owner(found[4]))


class _Line(NamedTuple):
    """How many wait, and the first of them."""

    waiters: int = 0
    queue: tuple[WaiterInfo, ...] = ()


NOBODY = _Line()


def _lock_info(
    name: str, value: bytes, us: int, left: float, own: _Line = NOBODY, pool: _Line = NOBODY, *, errors: bool = False
) -> LockInfo | None:
    """``left``: seconds of lease, infinite where there is no end. ``errors``: also of what is none of ours then."""
    holder = holder_of(value)
    if holder is None:
        if not errors or left < math.inf:
            return None
        holder = Holder("", 0, us, UNKNOWN, "")
    return LockInfo(
        name=name,
        owner=holder.owner,
        fence=holder.fence,
        since=datetime.fromtimestamp(holder.since / 1e6, timezone.utc),
        held_for=max(0.0, (us - holder.since) / 1e6),
        lease_left=left if left == math.inf else min(max(0.0, left), LONGEST),
        waiters=own.waiters,
        token_hint=f"{holder.token[:4]}…",
        queue=own.queue,
        note=holder.note,
        pool_waiters=pool.waiters,
        pool_queue=pool.queue,
        status=LockStatus.ERROR if left == math.inf else LockStatus.UNAVAILABLE,
    )


def _lease(left_ms: int) -> float:
    """Seconds that a lease has, by PTTL."""
    return math.inf if left_ms == -1 else left_ms / 1000


def _waiter_info(ticket: bytes, entry: bytes | None, us: int) -> WaiterInfo:
    parts = (entry or b"L - 0 0 ?").split(b" ", 4)
    owner, note = split_owner(parts[4] if len(parts) == 5 else b"")
    waited = min(max(0.0, (us - float(ticket)) / 1e6), LONGEST)
    return WaiterInfo(owner=owner, waited=waited, fair=parts[0] == b"F", note=note)


def inspect(
    backend: Backend, name: str, *, waiters: int = LISTED_WAITERS, errors: bool = False
) -> Steps[LockInfo | None]:
    """One round trip; None when nobody holds the lock. ``errors``: see read_locks()."""
    value, left_ms, us, *lines = yield from _look(backend, name, waiters)
    return None if value is None else _lock_info(name, value, us, _lease(left_ms), *lines, errors=errors)


def read_queue(backend: Backend, name: str) -> Steps[tuple[int, list[WaiterInfo]]]:
    """How many wait for this lock, or for any member of a pool, and the first of them; one round trip."""
    _, _, _, line = yield from _look(backend, name, LISTED_WAITERS)
    return line.waiters, list(line.queue)


def _look(backend: Backend, name: str, waiters: int) -> Steps[tuple[Any, ...]]:
    """Value, lease left in milliseconds, server's time, the queue, and that of the pool where it is of one."""
    answer = yield from scripts.info(backend, make_keys(backend.prefix, name), name, waiters)
    value, left_ms, us, *found = answer
    lines = []
    for count, queue, entries in zip(*[iter(found)] * 3, strict=True):
        listed = [_waiter_info(ticket, entry, us) for ticket, entry in zip(queue[1::2], entries, strict=True)]
        lines.append(_Line(count, tuple(listed)))
    return value, left_ms, us, *lines


def read_locks(backend: Backend, found: Sequence[tuple[str, float]], *, errors: bool = False) -> Steps[list[LockInfo]]:
    """What Redis says of these entries of the index, (name, end of the lease) each; one round trip, if any.

    In their order; those that nobody holds any more are left out. ``errors``: with those whose status is ERROR,
    whatever somebody else has written there.
    """
    if not found:
        return []
    keys = [make_keys(backend.prefix, name) for name, _ in found]
    lines = list(dict.fromkeys(key.line for key in keys))
    commands: list[list[Command]] = [
        [("TIME",)],
        [("MGET", *(key.lock for key in batch)) for batch in batches(keys)],
        [("ZCARD", key.queue) for key in keys],
        [("ZCARD", line[0]) for line in lines if line],
        [("PTTL", key.lock) for key in keys] if errors else [],
    ]
    answers = iter((yield from scripts.execute_many(backend, list(itertools.chain(*commands)))))
    clock, gets, counts, of_pools, lefts = (list(itertools.islice(answers, len(some))) for some in commands)
    asked = [*commands[0], *commands[1], *commands[4]]
    yield from check_answers(backend, asked, [*clock, *gets, *lefts])
    us = int(clock[0][0]) * 1_000_000 + int(clock[0][1])
    in_pools = {(): 0, **dict(zip(filter(None, lines), of_pools, strict=True))}
    leases = map(_lease, lefts) if errors else ((ends - us) / 1e6 for _, ends in found)
    locks = []
    for (name, _), key, value, count, left in zip(
        found, keys, itertools.chain.from_iterable(gets), counts, leases, strict=True
    ):
        # a count that is none is of a key that somebody else wrote
        if value is not None and isinstance(count, int):
            lock = _lock_info(name, value, us, left, _Line(count), _Line(as_count(in_pools[key.line])), errors=errors)
            if lock is not None:
                locks.append(lock)
    return locks


def as_count(answer: Any) -> int:
    """What ZCARD has answered, if it was no error: of a key that somebody else wrote."""
    return answer if isinstance(answer, int) else 0


def check_answers(backend: Backend, commands: Sequence[Command], answers: Sequence[Any]) -> Steps[None]:
    """Raise LockUnavailable where one of them is an error (a user that may not MGET, say)."""
    for command, answer in zip(commands, answers, strict=False):
        if isinstance(answer, Exception):
            raise (yield from scripts.refusal(backend, [command], None, answer)) from answer


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """BATCH at a time: one long MGET would keep all others waiting."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _force(name: str, using: str | None, by: str, fence: int | None) -> Steps[LockInfo | None]:
    backend = get_backend(using)
    before = yield from inspect(backend, check_name(name), waiters=0)
    value = yield from scripts.force(backend, make_keys(backend.prefix, name), name, fence)
    if value is None:
        return None
    freed = _lock_info(name, value, 0, 0.0)
    if before is not None and (freed is None or before.fence == freed.fence):
        freed = before  # knows more; it has not changed hands since
    log_event(WARNING, "force-released", name=name, by=by, owner=freed.owner if freed else "?")
    yield Tell(lock_force_released, LockInfo, name=name, by=by)
    return freed


def get_lock(name: str, *, using: str | None = None) -> LockInfo | None:
    """What Redis says about the lock ``name`` now, with its queue; None when nobody holds it."""
    return run_blocking(inspect(get_backend(using), check_name(name)), "aget_lock")


async def aget_lock(name: str, *, using: str | None = None) -> LockInfo | None:
    """See get_lock()."""
    return await arun(inspect(get_backend(using), check_name(name)))


def force_release(name: str, *, using: str | None = None, by: str = "", fence: int | None = None) -> LockInfo | None:
    """Set the lock free whoever holds it; answers what was set free, None when nobody held it.

    The next waiter gets the lock and the old holder is told at once (``lost``), but what it is doing at this moment it
    goes on doing until it looks: make sure that it is dead or harmless. ``by`` says who asked, for log and signal.
    ``fence`` spares whoever acquired the lock later than with this fence (answered as None): give it what you saw
    when you made up your mind.
    """
    return run_blocking(_force(name, using, by, fence), "aforce_release")


async def aforce_release(
    name: str, *, using: str | None = None, by: str = "", fence: int | None = None
) -> LockInfo | None:
    """See force_release()."""
    return await arun(_force(name, using, by, fence))
