"""The held locks: all, or a page of them, searched, sorted and cut, without reading more than that takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..base.names import is_name, matcher
from ..base.steps import Steps, arun, run_blocking
from ..store.lock_store import Partition
from ..store.reading import read_index, read_values, together
from ..store.records import Keys, make_keys, shown_holder
from ..store.stores import get_store, get_stores
from .info import LockInfo, Queue, make_info


@dataclass(frozen=True)
class Page:
    """``locks`` of one page, out of ``matching`` that were searched for, out of ``total`` that are held."""

    locks: list[LockInfo]
    matching: int
    total: int


class _Row(NamedTuple):
    """What is known of a lock before it is read in full; values only where they are needed."""

    name: str
    ends: float  # server microseconds
    partition: Partition
    owner: str = ""
    fence: int = 0
    since: int = 0  # server microseconds
    waiters: int = 0


# the sort key of each column; a lock that is held for longer was acquired earlier
ORDERS: dict[str, Callable[[_Row], Any]] = {
    "name": lambda row: row.name,
    "owner": lambda row: row.owner,
    "held_for": lambda row: -row.since,
    "lease_left": lambda row: row.ends,
    "fence": lambda row: row.fence,
    "waiters": lambda row: row.waiters,
}
INDEXED = {"name", "lease_left"}  # what the index of held locks knows by itself


def list_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """The held locks whose names match the shell-style ``pattern``, by name, without their queues.

    Those with the status ERROR are among them if one of our processes has held or asked for them. Two round trips; on a
    cluster, two to each node.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_list(pattern, using), "Await alist_locks() instead")


async def alist_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """See list_locks()."""
    return await arun(_list(pattern, using))


def read_page(
    *,
    cut: Callable[[int], slice] = slice,
    words: Sequence[str] = (),
    names: Collection[str] | None = None,
    order: Sequence[str] = ("name",),
    using: str | None = None,
) -> Page:
    """The held locks with all ``words`` in name or owner, ignoring case; only those in ``names``, if given.

    ``using`` is an alias; None: all that have locks. ``order`` names columns, the first one counts most, ``-`` reverses
    one. ``cut`` takes how many match and returns which of them the page shows. At most three round trips for each
    alias, however many locks there are: the index; what searching and sorting need of all locks, if it is more than the
    index tells; and the locks of the page. A lock that is released in between is left out.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_read_page(cut, words, names, order, using), "Await alist_locks() instead")


def _list(pattern: str, using: str | None) -> Steps[list[LockInfo]]:
    return (yield from read_matching(get_store(using).everywhere(), matcher(pattern)))


def read_matching(partitions: Sequence[Partition], matches: Callable[[str], object]) -> Steps[list[LockInfo]]:
    """The held locks whose names ``matches`` finds true, by name; two round trips for each node."""
    found = yield from together([_read_matching(partition, matches) for partition in partitions])
    return sorted((lock for locks in found for lock in locks), key=lambda lock: lock.name)


def _read_matching(partition: Partition, matches: Callable[[str], object]) -> Steps[list[LockInfo]]:
    _, index = yield from read_index(partition)
    # those whose time is up, too: they have expired, or never will
    rows = [_Row(name, ends, partition) for name, ends in index if is_name(name) and matches(name)]
    return (yield from _read_locks(partition, rows))


def _read_page(
    cut: Callable[[int], slice],
    words: Sequence[str],
    names: Collection[str] | None,
    order: Sequence[str],
    using: str | None,
) -> Steps[Page]:
    partitions = [partition for store in get_stores(using) for partition in store.everywhere()]
    columns = {column.lstrip("-") for column in order}
    in_full, count = bool(words or columns - INDEXED), "waiters" in columns
    found = yield from together([_read_rows(partition, in_full=in_full, count=count) for partition in partitions])
    rows = [row for some in found for row in some]
    total = len(rows)
    if names is not None:
        rows = [row for row in rows if row.name in names]
    folded = set(map(str.casefold, words))
    if folded:
        rows = [row for row in rows if _has_all(folded, row)]
    for column in reversed(order):
        rows.sort(key=ORDERS[column.lstrip("-")], reverse=column.startswith("-"))
    chosen = rows[cut(len(rows))]
    mine: dict[Partition, list[_Row]] = defaultdict(list)
    for row in chosen:
        mine[row.partition].append(row)
    read = yield from together([_read_locks(partition, some) for partition, some in mine.items()])
    number = {(row.partition.alias, row.name): number for number, row in enumerate(chosen)}
    locks = sorted((lock for some in read for lock in some), key=lambda lock: number[lock.alias, lock.name])
    return Page(locks, len(rows), total)


def _read_rows(partition: Partition, *, in_full: bool, count: bool) -> Steps[list[_Row]]:
    """All held locks of one partition; ``in_full``: with what the index does not tell."""
    us, index = yield from read_index(partition)
    everyone = [_Row(name, ends, partition) for name, ends in index if is_name(name)]
    rows = [row for row in everyone if us < row.ends < math.inf]
    # every change of a lease moves its entry: the others have expired, or never will
    endless = [row._replace(ends=math.inf) for row in everyone if not us < row.ends < math.inf]
    if in_full:
        return (yield from _look_up(partition, rows + endless, count=count))
    return rows + (yield from _look_up(partition, endless, count=False))


def _has_all(folded: Collection[str], row: _Row) -> bool:
    name, owner = row.name.casefold(), row.owner.casefold()
    return all(word in name or word in owner for word in folded)


def _look_up(partition: Partition, rows: list[_Row], *, count: bool) -> Steps[list[_Row]]:
    """The same rows with the values of their locks, and with the number of waiters where it counts: one round trip.

    For a pool's members, those who wait for any member count too.
    """
    if not rows:
        return []
    keys = [make_keys(partition.prefix, row.name) for row in rows]
    us, found, counts = yield from read_values(partition, keys, sizes=_queues(*keys) if count else ())
    known = []
    for row, key, each in zip(rows, keys, found, strict=True):
        if each.value is not None:
            holder = shown_holder(each.value, us)
            waiters = sum(counts.get(queue, 0) for queue in _queues(key))
            known.append(_Row(row.name, row.ends, partition, holder.described, holder.fence, holder.since, waiters))
    return known


def _read_locks(partition: Partition, rows: Sequence[_Row]) -> Steps[list[LockInfo]]:
    """What Redis says of these locks, in their order, without those that are free by now: one round trip."""
    if not rows:
        return []
    keys = [make_keys(partition.prefix, row.name) for row in rows]
    us, found, counts = yield from read_values(partition, keys, lefts=True, sizes=_queues(*keys))
    locks = []
    for row, key, each in zip(rows, keys, found, strict=True):
        if each.value is not None:
            assert each.left is not None
            own, pool = Queue(counts[key.queue]), Queue(counts.get(key.line, 0))
            locks.append(make_info(partition.alias, row.name, each.value, us, each.left, own, pool))
    return locks


def _queues(*keys: Keys) -> list[str]:
    """Those in which somebody may wait for these locks, each once."""
    return list(dict.fromkeys(queue for key in keys for queue in (key.queue, key.line) if queue))
