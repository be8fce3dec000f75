"""The held locks: all, or a page of them, searched, sorted and cut, without reading more than that takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, NamedTuple

from . import scripts
from .connection import Backend, get_backend
from .names import is_name, make_keys
from .registry import UNKNOWN, Holder, LockInfo, as_count, batches, check_answers, holder_of, inspect, read_locks
from .steps import Steps, arun, run_blocking


@dataclass(frozen=True)
class Page:
    """``locks`` of one page, out of ``matching`` that were searched for, out of ``total`` that are held."""

    locks: list[LockInfo]
    matching: int
    total: int


class _Row(NamedTuple):
    """What is known of a lock before it is read in full; the values only where they are asked for."""

    name: str
    ends: float  # server microseconds
    owner: str
    fence: int
    since: int  # server microseconds
    waiters: int


# the sort key of each column. A lock that is held for longer began earlier
ORDERS: dict[str, Callable[[_Row], Any]] = {
    "name": lambda row: row.name,
    "owner": lambda row: row.owner,
    "held_for": lambda row: -row.since,
    "lease_left": lambda row: row.ends,
    "fence": lambda row: row.fence,
    "waiters": lambda row: row.waiters,
}
INDEXED = {"name", "lease_left"}  # what the index of held locks knows by itself


def everything(count: int) -> slice:
    return slice(count)


def read_page(
    *,
    cut: Callable[[int], slice] = everything,
    words: Sequence[str] = (),
    names: Collection[str] | None = None,
    order: Sequence[str] = ("name",),
    errors: bool = False,
    using: str | None = None,
) -> Page:
    """The held locks with all ``words`` in name or owner, whatever their case; of ``names`` only, if given.

    ``order`` names columns, the first one counts most, ``-`` turns one round. ``cut`` is told how many match and
    answers which of them the page shows. At most three round trips, however many locks there are: the index; what
    searching and sorting need of all locks, if it is more than the index tells; and the locks of the page. A lock
    that is released in between is left out. ``errors``: with the locks that never end, status ERROR, as far as the
    index knows them: those that were ours, and those that somebody of ours has asked for.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_read_page(cut, words, names, order, errors, using), "alist_locks")


def list_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """The held locks whose names match the shell-style ``pattern``, by name. Reads an index, never SCANs the keys.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_list(pattern, using), "alist_locks")


async def alist_locks(pattern: str = "*", *, using: str | None = None) -> list[LockInfo]:
    """See list_locks()."""
    return await arun(_list(pattern, using))


def read_lock(name: str, *, using: str | None = None) -> LockInfo | None:
    """As get_lock(), but also of a lock whose status is ERROR, whatever somebody else has written there."""
    return run_blocking(inspect(get_backend(using), name, errors=True), "aget_lock")


def _list(pattern: str, using: str | None) -> Steps[list[LockInfo]]:
    return (yield from read_matching(get_backend(using), re.compile(translate(pattern)).match))


def read_matching(backend: Backend, matches: Callable[[str], object]) -> Steps[list[LockInfo]]:
    """The held locks whose names ``matches`` finds true, by name; two round trips."""
    _, rows = yield from _read_index(backend)
    return (yield from read_locks(backend, sorted((row.name, row.ends) for row in rows if matches(row.name))))


def _read_index(backend: Backend) -> Steps[tuple[int, list[_Row]]]:
    """The server's time, and what the index of held locks tells; one round trip."""
    commands: list[Any] = [("TIME",), ("ZRANGE", f"{backend.prefix}index", 0, -1, "WITHSCORES")]
    clock, index = answers = yield from scripts.execute_many(backend, commands)
    yield from check_answers(backend, commands, answers)
    names = [member.decode(errors="replace") for member in index[::2]]
    rows = [
        _Row(name, float(ends), "", 0, 0, 0) for name, ends in zip(names, index[1::2], strict=True) if is_name(name)
    ]
    return int(clock[0]) * 1_000_000 + int(clock[1]), rows


def _read_page(
    cut: Callable[[int], slice],
    words: Sequence[str],
    names: Collection[str] | None,
    order: Sequence[str],
    errors: bool,
    using: str | None,
) -> Steps[Page]:
    backend = get_backend(using)
    us, rows = yield from _read_index(backend)
    # every change of a lease moves its entry: the others have expired, or never will
    overdue = [row._replace(ends=math.inf) for row in rows if errors and row.ends <= us]
    rows = [row for row in rows if row.ends > us]
    columns = {column.lstrip("-") for column in order}
    if words or columns - INDEXED:
        rows, overdue = rows + overdue, []
        rows = yield from _look_up(backend, rows, count="waiters" in columns, errors=errors)
    rows += yield from _look_up(backend, overdue, count=False, errors=errors)
    total = len(rows)
    if names is not None:
        rows = [row for row in rows if row.name in names]
    for word in map(str.casefold, words):
        rows = [row for row in rows if word in row.name.casefold() or word in row.owner.casefold()]
    for column in reversed(order):
        rows.sort(key=ORDERS[column.lstrip("-")], reverse=column.startswith("-"))
    shown = [(row.name, row.ends) for row in rows[cut(len(rows))]]
    locks = yield from read_locks(backend, shown, errors=errors)
    return Page(locks, len(rows), total)


def _look_up(backend: Backend, rows: list[_Row], *, count: bool, errors: bool) -> Steps[list[_Row]]:
    """The same rows with the values of their locks, and with the number of waiters where it counts: one round trip.

    Of a pool's members those count as well who wait for any. ``errors``: also what somebody else has written.
    """
    keys = [make_keys(backend.prefix, row.name) for row in rows]
    commands: list[Any] = [("MGET", *(key.lock for key in batch)) for batch in batches(keys)]
    reads = len(commands)
    queues = list(dict.fromkeys(queue for key in keys for queue in (key.queue, *key.line[:1]))) if count else []
    commands += [("ZCARD", queue) for queue in queues]
    answers = (yield from scripts.execute_many(backend, commands)) if commands else []
    yield from check_answers(backend, commands, answers[:reads])
    values = [value for batch in answers[:reads] for value in batch]
    counts = dict(zip(queues, map(as_count, answers[reads:]), strict=True))
    found = []
    for row, key, value in zip(rows, keys, values, strict=True):
        holder = holder_of(value)
        if holder is None and value is not None and errors:
            holder = Holder("", 0, 0, UNKNOWN, "")
        if holder is not None:
            waiters = sum(counts.get(queue, 0) for queue in (key.queue, *key.line[:1]))
            found.append(_Row(row.name, row.ends, holder.owner, holder.fence, holder.since, waiters))
    return found
