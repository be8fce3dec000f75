"""The held locks, and the pools; one pool, with who holds its members and who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..base.names import SEMAPHORE, is_name, known_as, matcher, member_name, pool_name, unquoted
from ..base.steps import Steps, arun, run_blocking
from ..store.calls_once import read_members
from ..store.lock_store import Partition
from ..store.reading import read_all, read_values
from ..store.records import check_member, make_keys, pools_key
from ..store.stores import get_store, get_stores
from ..store.wire import Command
from .info import (
    LockInfo,
    LockStatus,
    Queue,
    WaiterInfo,
    make_info,
    read_queue,
    read_semaphores,
    read_statuses,
)


def list_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """The held locks whose names match the shell-style ``pattern``, by name, without their queues.

    The lock of a process that has died is among them until its lease ends. Those with the status ERROR are among them
    if one of our processes has held or asked for them. Two round trips, or three where there are semaphores; on a
    cluster, as many for each of its 64 tags, one tag after the other, or one where a tag has no such lock.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_list_locks(pattern, using), "Await alist_locks() instead")


async def alist_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """See list_locks()."""
    return await arun(_list_locks(pattern, using))


def _list_locks(pattern: str, using: str | None) -> Steps[list[LockInfo]]:
    return read_matching(get_store(using).everywhere(), matcher(pattern))


def list_everywhere(pattern: str = "*", using: str | None = None) -> list[LockInfo]:
    """The same of all aliases that have locks, if ``using`` names none."""
    partitions = [partition for store in get_stores(using) for partition in store.everywhere()]
    return run_blocking(read_matching(partitions, matcher(pattern)), "Await alist_locks() instead")


def read_matching(partitions: Sequence[Partition], matches: Callable[[str], object]) -> Steps[list[LockInfo]]:
    """The held locks whose names ``matches`` finds true, by name; two round trips for each partition."""
    found: list[LockInfo] = []
    for partition in partitions:
        found += yield from _read_matching(partition, matches)
    return sorted(found, key=lambda lock: lock.name)


def _read_matching(partition: Partition, matches: Callable[[str], object]) -> Steps[list[LockInfo]]:
    # those whose time is up, too: they have expired, or never will
    _, (index,) = yield from read_all(partition, [("ZRANGE", f"{partition.prefix}index", "0", "-1")])
    known = [raw.decode(errors="replace") for raw in index]
    listed = [name for name in known if is_name(name) and matches(name)]
    names = [name for name in listed if not name.startswith(SEMAPHORE)]
    semaphores = [name for name in listed if name.startswith(SEMAPHORE)]
    locks = [info for info, _ in (yield from read_semaphores(partition, semaphores))]
    if not names:
        return locks
    keys = [make_keys(partition.prefix, name) for name in names]
    queues = dict.fromkeys(queue for key in keys for queue in (key.queue, key.line) if queue)
    us, found, counts = yield from read_values(partition, keys, sizes=list(queues))
    for name, key, each in zip(names, keys, found, strict=True):
        if each.value is not None:
            own, pool = Queue(counts[key.queue]), Queue(counts.get(key.line, 0))
            locks.append(make_info(partition.alias, name, each.value, us, each.left, own, pool))
    return locks


@dataclass(frozen=True)
class PoolSummary:
    """A pool in numbers. ``held`` members are locked or suspended; one that was taken out of the pool still counts
    there until its holder releases it. ``waiters`` wait for any member.
    """

    name: str
    alias: str
    members: int
    held: int
    waiters: int


def list_pools(pattern: str = "*", *, using: str | None = None) -> list[PoolSummary]:
    """The pools with members whose names match the shell-style ``pattern``, by name.

    Two round trips; on a cluster, as many for each of its 64 tags, one tag after the other, or one where a tag has no
    such pool. Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_list_pools(pattern, using), "Await alist_pools() instead")


async def alist_pools(pattern: str = "*", *, using: str | None = None) -> list[PoolSummary]:
    """See list_pools()."""
    return await arun(_list_pools(pattern, using))


def _list_pools(pattern: str, using: str | None) -> Steps[list[PoolSummary]]:
    matches = matcher(pattern)
    found: list[PoolSummary] = []
    for partition in get_store(using).everywhere():
        found += yield from _summaries(partition, matches)
    return sorted((pool for pool in found if pool.members), key=lambda pool: pool.name)


def _summaries(partition: Partition, matches: Callable[[str], object]) -> Steps[list[PoolSummary]]:
    us, (found,) = yield from read_all(partition, [("ZRANGE", pools_key(partition.prefix), "0", "-1")])
    pools = [raw.decode(errors="replace") for raw in found]
    known = [(*known_as(pool), pool) for pool in pools]
    wanted = {name: pool for noun, name, pool in known if noun == "pool" and matches(name)}
    if not wanted:
        return []
    reads: list[Command] = []
    for pool in wanted.values():
        keys = make_keys(partition.prefix, pool)
        reads += ("ZCARD", keys.members), ("ZCOUNT", keys.busy, f"({us}", "+inf"), ("ZCARD", keys.line)
    _, read = yield from read_all(partition, reads, spares=True)
    counts = [count or 0 for count in read]
    rows: list[Sequence[int]] = [counts[start : start + 3] for start in range(0, len(counts), 3)]
    return [PoolSummary(name, partition.alias, *row) for name, row in zip(wanted, rows, strict=True)]


@dataclass(frozen=True)
class PoolInfo:
    """What Redis said about a pool. ``waiters`` counts all who wait for any member, ``queue`` has the first 100."""

    name: str
    members: int
    free: int
    locks: tuple[LockInfo, ...]  # of the members that are held
    waiters: int
    queue: tuple[WaiterInfo, ...]


def read_keys(partition: Partition, name: str) -> Steps[list[str]]:
    """The members of the pool, by name; one round trip."""
    pool = pool_name(name)
    members = yield from read_members(partition, pool)
    return [unquoted(check_member(partition, pool, raw)) for raw in members]


def read_items(
    partition: Partition, name: str, id_on: Callable[[str], str | None]
) -> Steps[list[tuple[str, LockStatus]]]:
    """The members of the pool with their statuses; two round trips. ``id_on``: by which a lock is held here."""
    keys = yield from read_keys(partition, name)
    names = [member_name(name, key) for key in keys]
    statuses = yield from read_statuses(partition, names, [id_on(each) for each in names])
    return list(zip(keys, statuses, strict=True))


def count_states(items: Sequence[tuple[str, LockStatus]]) -> tuple[int, int]:
    """Return how many are (held, free)."""
    free = [status for _, status in items].count(LockStatus.FREE)
    return len(items) - free, free


def inspect_pool(partition: Partition, name: str) -> Steps[PoolInfo]:
    """Five round trips."""
    pool = pool_name(name)
    items = yield from read_items(partition, name, lambda member: None)
    _, free = count_states(items)
    locks = yield from read_matching([partition], lambda name: name.rpartition(":")[0] == pool[:-1])
    queue = yield from read_queue(partition, pool)
    return PoolInfo(name, len(items), free, tuple(locks), queue.waiters, queue.first)
