"""The pools there are, in numbers; one pool, with who holds its members and who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..base.names import known_as, matcher, member_name, pool_name, unquoted
from ..base.steps import Steps, arun, run_blocking
from ..store.calls_once import read_members
from ..store.lock_store import Partition
from ..store.reading import read_all, together
from ..store.records import check_member, make_keys, pools_key
from ..store.stores import get_store
from ..store.wire import Command
from .info import LockInfo, LockStatus, WaiterInfo, read_queue, read_statuses
from .listing import read_matching


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
    """The pools with members whose names match the shell-style ``pattern``, by name; two round trips.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_list(pattern, using), "Await alist_pools() instead")


async def alist_pools(pattern: str = "*", *, using: str | None = None) -> list[PoolSummary]:
    """See list_pools()."""
    return await arun(_list(pattern, using))


def _list(pattern: str, using: str | None) -> Steps[list[PoolSummary]]:
    matches = matcher(pattern)
    found = yield from together([_summaries(partition, matches) for partition in get_store(using).everywhere()])
    return sorted((one for some in found for one in some if one.members), key=lambda one: one.name)


def _summaries(partition: Partition, matches: Callable[[str], object]) -> Steps[list[PoolSummary]]:
    us, (found,) = yield from read_all(partition, [("ZRANGE", pools_key(partition.prefix), "0", "-1")])
    pools = [raw.decode(errors="replace") for raw in found]
    known = [(*known_as(pool), pool) for pool in pools]
    wanted = {name: pool for noun, name, pool in known if noun == "pool" and matches(name)}
    if not wanted:
        return []
    _, counts = yield from read_all(
        partition, [one for pool in wanted.values() for one in _counts(partition, pool, us)]
    )
    rows: list[Sequence[int]] = [counts[start : start + 3] for start in range(0, len(counts), 3)]
    return [PoolSummary(name, partition.alias, *row) for name, row in zip(wanted, rows, strict=True)]


def _counts(partition: Partition, pool: str, us: int) -> list[Command]:
    """Members, those that are held, and those who wait."""
    keys = make_keys(partition.prefix, pool)
    return [("ZCARD", keys.members), ("ZCOUNT", keys.busy, f"({us}", "+inf"), ("ZCARD", keys.line)]


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
    members = yield from read_members(partition, make_keys(partition.prefix, pool), pool)
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
    """How many are (held, free)."""
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
