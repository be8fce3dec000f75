"""The locks that the command line is asked about, wherever they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from django.core.management.base import CommandError

from ..base.display import printable
from ..inspection import LockInfo, get_lock, list_locks
from ..store.lock_store import LockStore
from ..store.stores import get_stores
from .output import Output

T = TypeVar("T")


def find_stores(output: Output, using: str | None) -> list[LockStore]:
    """That of ``using``; None: those of all aliases that have locks."""
    stores = get_stores(using)
    for store in stores:
        warn_of_memory(output, store)
    return stores


def other_aliases(using: str | None) -> str:
    """What to say behind the error of one alias of several."""
    return "" if using or len(get_stores(None)) == 1 else " (With --using, only one alias is asked.)"


def warn_of_memory(output: Output, store: LockStore) -> None:
    if store.memory:
        output.warn(
            f"The cache alias {store.alias!r} is not Redis: its locks live in the memory of each process, and this one "
            f"sees and guards only its own."
        )


def find_held(names: Iterable[str], stores: Sequence[LockStore]) -> list[LockInfo]:
    """The locks of these names that are held, wherever they are."""
    found = [get_lock(name, using=store.alias) for name in names for store in stores]
    return [lock for lock in found if lock is not None]


def the_only(found: Mapping[str, T]) -> T:
    """What there is under one alias; CommandError if there are several."""
    if len(found) > 1:
        raise CommandError(f"Found in several cache aliases ({', '.join(found)}): give --using.", returncode=2)
    return next(iter(found.values()))


def matching(pattern: str, stores: Sequence[LockStore]) -> list[LockInfo]:
    """The held locks whose names match, wherever they are, by name."""
    found = [lock for store in stores for lock in list_locks(pattern, using=store.alias)]
    return sorted(found, key=lambda lock: lock.name)


def none_matches(pattern: str) -> str:
    return "No locks are held." if pattern == "*" else f"No held lock matches {printable(pattern) or repr(pattern)}."


def label(lock: LockInfo, several: bool) -> str:
    """The lock's name, with its alias where there are several."""
    return f"{printable(lock.name)} ({printable(lock.alias)})" if several else printable(lock.name)


def not_held(names: Iterable[str]) -> list[str]:
    """What to say of locks that nobody holds."""
    free = [printable(name) for name in names]
    lines = [f"Not held: {', '.join(free)}"] if free else []
    if any(character in name for name in free for character in "*?["):
        lines.append("NAME is not a pattern: use list PATTERN, or clear --match PATTERN.")
    return lines
