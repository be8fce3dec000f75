"""A page of the held locks: searched, sorted and cut, without reading more of them than that takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import scripts
from .connection import Backend, get_backend
from .names import make_keys
from .registry import LockInfo, batches, check_answers, is_name, read_locks, split_owner
from .steps import Steps, run_blocking


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
    using: str | None = None,
) -> Page:
    """The held locks with all ``words`` in name or owner, whatever their case; of ``names`` only, if given.

    ``order`` names columns, the first one counts most, ``-`` turns one round. ``cut`` is told how many match and
    answers which of them the page shows. At most three round trips, however many locks there are: the index; what
    searching and sorting need of all locks, if it is more than the index tells; and the locks of the page. A lock
    that is released in between is left out.

    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_read_page(cut, words, names, order, using), "alist_locks")


def _read_page(
    cut: Callable[[int], slice],
    words: Sequence[str],
    names: Collection[str] | None,
    order: Sequence[str],
    using: str | None,
) -> Steps[Page]:
    backend = get_backend(using)
    commands: list[Any] = [("TIME",), ("ZRANGE", f"{backend.prefix}index", 0, -1, "WITHSCORES")]
    clock, index = answers = yield from scripts.execute_many(backend, commands)
    check_answers(backend, answers)
    us = int(clock[0]) * 1_000_000 + int(clock[1])
    rows = []
    for member, score in zip(index[::2], index[1::2], strict=True):
        name, ends = member.decode(errors="replace"), float(score)
        # every change of a lease moves its entry: what is past due has expired
        if ends > us and is_name(name):
            rows.append(_Row(name, ends, "", 0, 0, 0))
    columns = {column.lstrip("-") for column in order}
    if words or columns - INDEXED:
        rows = yield from _look_up(backend, rows, count="waiters" in columns)
    total = len(rows)
    if names is not None:
        rows = [row for row in rows if row.name in names]
    for word in map(str.casefold, words):
        rows = [row for row in rows if word in row.name.casefold() or word in row.owner.casefold()]
    for column in reversed(order):
        rows.sort(key=ORDERS[column.lstrip("-")], reverse=column.startswith("-"))
    shown = [(row.name, row.ends) for row in rows[cut(len(rows))]]
    locks = yield from read_locks(backend, shown)
    return Page(locks, len(rows), total)


def _look_up(backend: Backend, rows: list[_Row], *, count: bool) -> Steps[list[_Row]]:
    """The same rows with the values of their locks, and with the number of waiters where it counts: one round trip."""
    keys = [make_keys(backend.prefix, row.name) for row in rows]
    commands: list[Any] = [("MGET", *(key.lock for key in batch)) for batch in batches(keys)]
    reads = len(commands)
    if count:
        commands += [("ZCARD", key.queue) for key in keys]
    answers = (yield from scripts.execute_many(backend, commands)) if commands else []
    check_answers(backend, answers[:reads])
    values = [value for batch in answers[:reads] for value in batch]
    counts = answers[reads:] or [0] * len(rows)
    found = []
    for row, value, waiting in zip(rows, values, counts, strict=True):
        parts = (value or b"").split(b" ", 5)  # what is no value of ours is not shown in the end
        if len(parts) == 6 and parts[3].isdigit() and parts[4].isdigit() and len(parts[3]) + len(parts[4]) < 40:
            waiters = waiting if isinstance(waiting, int) else 0  # a key that somebody else wrote
            owner, _ = split_owner(parts[5])
            found.append(_Row(row.name, row.ends, owner, int(parts[3]), int(parts[4]), waiters))
    return found
