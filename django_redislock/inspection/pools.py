"""The pools there are, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..names import known_as, matcher
from ..steps import Steps, arun, run_blocking
from ..store.keys import make_keys, pools_key
from ..store.place import Backend
from ..store.places import get_place
from ..store.reading import read_all
from ..store.together import together
from ..store.wire import Command


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
    found = yield from together([_summaries(backend, matches) for backend in get_place(using).everywhere()])
    return sorted((one for some in found for one in some if one.members), key=lambda one: one.name)


def _summaries(backend: Backend, matches: Callable[[str], object]) -> Steps[list[PoolSummary]]:
    us, (found,) = yield from read_all(backend, [("ZRANGE", pools_key(backend.prefix), "0", "-1")])
    pools = [raw.decode(errors="replace") for raw in found]
    known = [(*known_as(pool), pool) for pool in pools]
    wanted = {name: pool for noun, name, pool in known if noun == "pool" and matches(name)}
    if not wanted:
        return []
    _, counts = yield from read_all(backend, [one for pool in wanted.values() for one in _counts(backend, pool, us)])
    rows: list[Sequence[int]] = [counts[start : start + 3] for start in range(0, len(counts), 3)]
    return [PoolSummary(name, backend.alias, *row) for name, row in zip(wanted, rows, strict=True)]


def _counts(backend: Backend, pool: str, us: int) -> list[Command]:
    """Members, those that are held, and those who wait."""
    keys = make_keys(backend.prefix, pool)
    return [("ZCARD", keys.members), ("ZCOUNT", keys.busy, f"({us}", "+inf"), ("ZCARD", keys.line)]
