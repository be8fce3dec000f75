"""One lock as Redis says it is at one moment; force-releasing it, whoever holds it; suspending it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from logging import INFO, WARNING
from typing import Any, NamedTuple

from ..base.log import log_event
from ..base.names import SEMAPHORE, check_name
from ..base.steps import Steps, arun, run_blocking
from ..base.times import LONGEST, Seconds, seconds
from ..conf import check_count
from ..engine.held import caller
from ..engine.owner import describe_owner
from ..options import check_note
from ..signals import lock_force_released, sending
from ..store import calls
from ..store.lock_store import Partition
from ..store.reading import Found, batches, read_all, read_values
from ..store.records import UNKNOWN, Holder, make_keys, parse_holder, parse_waiter
from ..store.stores import get_partition
from ..store.wire import Command

LISTED_WAITERS = LISTED_PERMITS = 100


class LockStatus(Enum):
    """The state of a lock, as seen from here.

    ``FREE``
        Nobody holds it; of a semaphore, a permit is free.
    ``LOCKED``
        Held *here*: through this object (in lists of a pool: by this thread or task), or by the token given to the
        constructor. ``locked()`` asks something else: whether *anybody* holds it.
    ``UNAVAILABLE``
        Held elsewhere, or suspended. It has nothing to do with :exc:`LockUnavailable`, which means that Redis cannot be
        reached.
    ``ERROR``
        Somebody else has written its key, or removed its expiry.
    """

    FREE = "free"
    UNAVAILABLE = "unavailable"
    LOCKED = "locked"
    ERROR = "error"


@dataclass(frozen=True)
class WaiterInfo:
    """A waiter: its owner, the seconds it has waited, and its note.

    ``gone``: Redis cannot reach its process now (it was killed, say). If that is still so when its turn comes, it is
    skipped.
    """

    owner: str
    waited: float
    note: str = ""
    gone: bool = False


@dataclass(frozen=True)
class SuspensionInfo:
    """A suspension of a lock: who asked for it, the seconds that are left of it, and its note."""

    owner: str
    left: float
    note: str = ""


@dataclass(frozen=True)
class LockInfo:
    """What Redis said about a lock at one moment. Times are by the server's clock.

    ``owner`` is for people: ``host:pid:thread`` (or the job of a task queue), and the request or command where there is
    one. ``waiters`` counts all; ``queue`` holds the first 100 of them in order, where it was asked for. ``note`` is the
    holder's. The token is left out, since it is the right to release; ``token_hint`` shows just enough to tell two
    acquisitions apart.

    ``pool_waiters`` and ``pool_queue``: those who wait for any member of the pool, if this is a member. ``status`` is
    UNAVAILABLE, or ERROR: somebody else has written it (``owner`` is "?", ``fence`` 0) or removed its expiry
    (``lease_left`` is infinite). ``alias`` is the cache alias that it was read from.

    ``suspension``: the lock is suspended. If ``held`` is False, nobody holds it: ``owner`` says so, and ``since``,
    ``lease_left`` and ``note`` are those of the suspension. Else it begins as soon as nobody holds the lock;
    :func:`list_locks` leaves that out.

    ``handed_over``: a release has just handed the lock over to this holder, whose process has not confirmed that yet.
    It does so once it has held the lock for 0.1 s; until then, the lease is at most a third of the TTL (or 3 s).
    ``detached``: nobody uses it, but it stays held for ``lease_left``: by ``detach()`` or ``at_least``, or for a job
    that is queued or is to be tried again. ``owner`` has acquired it last.

    Of a semaphore, ``permits_held`` of ``limit`` permits are held, by the latest request's limit, and ``permits`` has
    the first 100 of them that end, the oldest one first. ``owner``, ``since`` and ``note`` are those of the oldest of
    these, ``fence`` is the highest of all, and ``lease_left`` that of the lease that ends first.
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
    alias: str = ""
    suspension: SuspensionInfo | None = None
    held: bool = True
    handed_over: bool = False
    detached: bool = False
    limit: int | None = None
    permits_held: int = 0
    permits: tuple[LockInfo, ...] = ()

    @property
    def expires(self) -> datetime:
        """When the lease ends if nobody renews it; the last moment of the year 9999 if it never does."""
        if self.lease_left == math.inf:
            return datetime.max.replace(tzinfo=timezone.utc)
        return datetime.fromtimestamp(self.since.timestamp() + self.held_for + self.lease_left, timezone.utc)


def with_permits(label: str, info: LockInfo | None) -> str:
    """Return ``label`` of a lock; of a semaphore, also how many permits are held."""
    return label if info is None or info.limit is None else f"{label} {info.permits_held}/{info.limit}"


class Queue(NamedTuple):
    """How many wait, and the first of them."""

    waiters: int = 0
    first: tuple[WaiterInfo, ...] = ()


NOBODY = Queue()


def make_info(
    alias: str,
    name: str,
    value: bytes,
    us: int,
    left: float,
    own: Queue = NOBODY,
    pool: Queue = NOBODY,
    *,
    planned: SuspensionInfo | None = None,
) -> LockInfo:
    """``left``: seconds of lease. ``planned``: the suspension that begins when the holder's lock ends."""
    holder = parse_holder(value) or Holder("", "", 0, us, UNKNOWN, "")  # a foreign value
    lease_left = left if left == math.inf else min(max(0.0, left), LONGEST)
    return LockInfo(
        name=name,
        owner=holder.described,
        fence=holder.fence,
        since=datetime.fromtimestamp(holder.since / 1e6, timezone.utc),
        held_for=max(0.0, (us - holder.since) / 1e6),
        lease_left=lease_left,
        waiters=own.waiters,
        token_hint=f"{holder.token[:4]}…" if holder.token and not holder.suspension else "",
        queue=own.first,
        note=holder.note,
        pool_waiters=pool.waiters,
        pool_queue=pool.first,
        status=LockStatus.UNAVAILABLE if holder.id and left < math.inf else LockStatus.ERROR,
        alias=alias,
        suspension=SuspensionInfo(holder.owner, lease_left, holder.note) if holder.suspension else planned,
        held=not holder.suspension,
        handed_over=holder.handed_over,
        detached=holder.detached,
    )


def inspect(partition: Partition, name: str, *, waiters: int = LISTED_WAITERS) -> Steps[LockInfo | None]:
    """One round trip, or two for a semaphore; None when nobody holds the lock."""
    value, left, us, planned, *queues = yield from _ask(partition, name, waiters)
    if name.startswith(SEMAPHORE):
        found = yield from read_semaphores(partition, [name])
        return replace(found[0][0], waiters=queues[0].waiters, queue=queues[0].first) if found else None
    if value is None:
        return None
    return make_info(partition.alias, name, value, us, left, *queues, planned=planned)


def _semaphore_info(found: Sequence[LockInfo], limit: int, waiters: int) -> LockInfo:
    """``found``: the permits that are known, the first to end first."""
    permits = tuple(sorted(found[:LISTED_PERMITS], key=lambda permit: permit.since))
    return replace(
        permits[0],
        fence=max(permit.fence for permit in found),
        lease_left=found[0].lease_left,
        waiters=waiters,
        limit=limit,
        permits_held=len(found),
        permits=permits,
    )


def read_semaphores(partition: Partition, names: Sequence[str]) -> Steps[list[tuple[LockInfo, dict[str, LockInfo]]]]:
    """Those of these semaphores that are held, each with its permits by their holders' ids, the first to end first.

    One round trip for each batch.
    """
    found = list[tuple[LockInfo, dict[str, LockInfo]]]()
    for batch in batches(names):
        keys = [make_keys(partition.prefix, name) for name in batch]
        reads: list[Command] = []
        for values_key, ends_key, *_ in (key.all for key in keys):
            reads.append(("HGETALL", values_key))
            reads.append(("ZRANGE", ends_key, "0", "-1", "WITHSCORES"))
        us, answers = yield from read_all(partition, reads, [key.queue for key in keys], spares=True)
        for number, name in enumerate(batch):
            fields, ends = (answer or [] for answer in answers[2 * number : 2 * number + 2])
            values = dict(zip(fields[::2], fields[1::2], strict=True))
            lefts = [(id, (float(end) - us) / 1e6) for id, end in zip(ends[::2], ends[1::2], strict=True)]
            permits = {
                id.decode(errors="replace"): make_info(partition.alias, name, values[id], us, left)
                for id, left in lefts
                if left > 0 and id in values
            }
            if permits:
                limit, waiters = values.get(b":", b""), answers[2 * len(keys) + number]
                most = int(limit) if limit.isdigit() else 1  # somebody else has written it, or deleted it
                found.append((_semaphore_info([*permits.values()], most, waiters), permits))
    return found


def read_status(partition: Partition, name: str, id: str | None, token: str | None) -> Steps[LockStatus]:
    """One round trip. ``id``, ``token``: by which the lock would be held here."""
    value, left, *_ = yield from _ask(partition, name, 0)
    return _status_of(Found(value, left), id, token)


def _status_of(found: Found, id: str | None, token: str | None = None) -> LockStatus:
    if found.value is None:
        return LockStatus.FREE
    holder = parse_holder(found.value)
    if holder is None or found.left == math.inf:
        return LockStatus.ERROR
    return LockStatus.LOCKED if holder.is_of(id, token) else LockStatus.UNAVAILABLE


def read_statuses(partition: Partition, names: Sequence[str], ids: Sequence[str | None]) -> Steps[list[LockStatus]]:
    """The statuses of many locks, in one round trip. ``ids``: one for each, if it is held here."""
    if not names:
        return []
    keys = [make_keys(partition.prefix, name) for name in names]
    _, found, _ = yield from read_values(partition, keys)
    return [_status_of(each, id) for each, id in zip(found, ids, strict=True)]


def read_queue(partition: Partition, pool: str) -> Steps[Queue]:
    """Those who wait for any member of a pool; one round trip."""
    # asked through the keys of a member; no real one is called "%"
    *_, line = yield from _ask(partition, pool, LISTED_WAITERS, member="%")
    return line  # type: ignore[no-any-return]


def _ask(partition: Partition, name: str, waiters: int, *, member: str = "") -> Steps[tuple[Any, ...]]:
    """Value, seconds of lease left, server's time, planned suspension, queue; and the pool's."""
    answer = yield from calls.info(partition, make_keys(partition.prefix, f"{name}{member}"), name, waiters)
    value, left_ms, us, planned, planned_ms, _, *found = answer
    suspension = parse_holder(planned)
    queues = []
    for count, queue, entries, gone in zip(*[iter(found)] * 4, strict=True):
        listed = [_waiter_info(us, *each) for each in zip(queue[1::2], entries, gone, strict=True)]
        queues.append(Queue(count, tuple(listed)))
    coming = None if suspension is None else SuspensionInfo(suspension.owner, planned_ms / 1000, suspension.note)
    return value, math.inf if left_ms == -1 else left_ms / 1000, us, coming, *queues


def _waiter_info(us: int, ticket: bytes, entry: bytes | None, gone: int) -> WaiterInfo:
    owner, note = parse_waiter(entry)
    return WaiterInfo(owner, min(max(0.0, (us - float(ticket)) / 1e6), LONGEST), note, bool(gone))


def get_lock(name: str, *, using: str | None = None) -> LockInfo | None:
    """What Redis says about the lock ``name`` now, with its queue; None when nobody holds it and it is not suspended.

    Raises LockUnavailable when Redis cannot be reached.
    """
    name = check_name(name)
    return run_blocking(inspect(get_partition(using, name), name), "Await aget_lock() instead")


async def aget_lock(name: str, *, using: str | None = None) -> LockInfo | None:
    """See get_lock()."""
    name = check_name(name)
    return await arun(inspect(get_partition(using, name), name))


def force_release(
    name: str, *, using: str | None = None, by: str = "", fence: int | None = None, permit: int | None = None
) -> LockInfo | None:
    """Force-release the lock, whoever holds it; return what was released, None when nobody held it.

    The next waiter gets the lock and the old holder is told at once (``lost``), but its code keeps running until it
    checks the lock: make sure that it is dead or harmless. ``by`` says who asked, for the log and the signal. ``fence``
    spares an acquisition with a higher fence (None is returned then): pass the fence that you saw when you decided.
    Of a semaphore (``"semaphore:name"``), all permits are released that are held when this is called, or only the
    ``permit`` with this fence. Whoever gets the lock, or a permit, after that call is spared. Raises LockUnavailable
    when Redis cannot be reached.
    """
    return run_blocking(_force(name, using, by, fence, permit), "Await aforce_release() instead")


async def aforce_release(
    name: str, *, using: str | None = None, by: str = "", fence: int | None = None, permit: int | None = None
) -> LockInfo | None:
    """See force_release()."""
    return await arun(_force(name, using, by, fence, permit))


def _force(name: str, using: str | None, by: str, fence: int | None, permit: int | None) -> Steps[LockInfo | None]:
    name = check_name(name)
    partition = get_partition(using, name)
    for what, number in (("fence", fence), ("permit", permit)):
        if number is not None:
            check_count(number, what)
    if name.startswith(SEMAPHORE):
        return (yield from _force_permits(partition, name, by, fence, permit))
    if permit is not None:
        raise ValueError(f"{name!r} is a lock, and has no permits: pass its fence as fence=.")
    seen = yield from inspect(partition, name, waiters=0)
    if seen is None or (fence is not None and seen.fence > fence):
        return None
    # and nobody else, who may have got it meanwhile. (A foreign value has no fence.)
    if not (yield from calls.force(partition, name, seen.fence or None)):
        return None
    return (yield from _tell_of_force(name, seen, by))


def _tell_of_force(name: str, released: LockInfo, by: str) -> Steps[LockInfo]:
    log_event(WARNING, "force-released", name=name, by=by, owner=released.owner)
    yield sending(lock_force_released, name=name, by=by)
    return released


def _force_permits(
    partition: Partition, name: str, by: str, fence: int | None, permit: int | None
) -> Steps[LockInfo | None]:
    """Return the one that was released, or (without ``permit``) what was known of all."""
    found = yield from read_semaphores(partition, [name])
    if not found:
        return None
    (semaphore, permits), released = found[0], list[LockInfo]()
    for id, seen in permits.items():
        if permit not in (None, seen.fence) or (fence is not None and seen.fence > fence):
            continue
        if (yield from calls.force(partition, name, id=id)):  # else it was given back meanwhile
            released.append((yield from _tell_of_force(name, replace(seen, waiters=semaphore.waiters), by)))
    if not released:
        return None
    return semaphore if permit is None else released[0]


def suspend(partition: Partition, name: str, period: Seconds, note: str) -> Steps[None]:
    """See Lock.suspend()."""
    length, note = seconds(period, "seconds"), check_note(note)
    by = describe_owner("", caller())
    owner = f"{by}\n{note}" if note else by
    yield from calls.suspend(partition, name, length, owner)
    log_event(INFO, "suspended", name=name, seconds=length, by=by, note=note)


def resume(partition: Partition, name: str) -> Steps[bool]:
    """See Lock.resume()."""
    # asked in any case: one that was given up may still arrive, and does nothing after this
    if name.startswith(SEMAPHORE) or not (yield from calls.force(partition, name, what=calls.SUSPENSION)):
        return False
    log_event(INFO, "resumed", name=name, by=describe_owner("", caller()))
    return True
