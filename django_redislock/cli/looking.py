"""``redislocks list``, ``show`` and ``pool``; and which locks are meant."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, TypeVar

from django.core.management.base import CommandError

from ..base.display import printable
from ..exceptions import LockUnavailable
from ..inspection.info import get_lock
from ..inspection.lists import list_everywhere, list_pools
from ..pool import LockPool
from ..store.lock_store import LockStore
from ..store.stores import get_stores
from .output import Output, as_json, locks_table, pool_portrait, pools_table, portrait

T = TypeVar("T")

# home; cut lines at the edge, or wrap them again; clear the rest of a line; clear the screen below the last one
_HOME, _CUT, _WRAP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[?7l", "\x1b[?7h", "\x1b[K", "\x1b[J"


def show_list(
    output: Output, *, pattern: str, format: str, watch: float | None, using: str | None, **options: Any
) -> None:
    """List the held locks: who holds them, for how long, how much lease is left, and how many wait."""
    people = format == "table"
    terminal = watch is not None and people and output.out.isatty()
    several: bool | None = None

    def listing() -> str:
        nonlocal several
        if several is None:  # the client of a cluster may connect for this. Not again: nobody wants a warning twice
            several = len(find_stores(output, using)) > 1
        locks = list_everywhere(pattern, using)
        if not people:
            return as_json(locks, indent=2 if watch is None else None)
        room = get_terminal_size().columns if terminal else None
        return locks_table(locks, aliases=several, room=room) if locks else none_matches(pattern)

    if watch is None:
        output.say(listing())
        return
    with suppress(KeyboardInterrupt):
        while True:
            try:
                text = listing()
            except LockUnavailable as error:
                if not people:
                    raise
                text = str(error)  # keep watching: it may come back
            if people:
                text = f"{datetime.now():%Y-%m-%d %H:%M:%S}, every {watch:g} s\n{text}"
                text = _on_screen(text) if terminal else f"{text}\n\n"
            output.say(text)
            time.sleep(watch)


def _on_screen(text: str) -> str:
    """``text`` in place of what stood on the screen, without flicker, cut where the screen ends."""
    lines = text.splitlines()
    room = max(2, get_terminal_size().lines - 1)
    if len(lines) > room:
        lines[room - 1 :] = [f"... and {len(lines) - room + 1} more lines"]
    return _HOME + _CUT + "\n".join(f"{line}{_CLEAR_LINE}" for line in lines) + _CLEAR_BELOW + _WRAP


def show_lock(output: Output, *, name: str, format: str, using: str | None, **options: Any) -> None:
    """Show one lock: its holder, and its queue in order. Exits 1 if it is free."""
    found = {store.alias: get_lock(name, using=store.alias) for store in find_stores(output, using)}
    held = {alias: lock for alias, lock in found.items() if lock is not None}
    if not held:
        raise CommandError("\n".join(not_held([name])))
    lock = _the_only(held)
    output.say(as_json(lock, queues=True) if format == "json" else portrait(lock))


def show_pool(output: Output, *, name: str | None, format: str, using: str | None, **options: Any) -> None:
    """Show a pool: how many members are free, who holds the others, who waits. Exits 1 if it has no members.

    Without a name: all pools that have members.
    """
    stores = find_stores(output, using)
    if name is None:
        pools = sorted((pool for store in stores for pool in list_pools(using=store.alias)), key=lambda pool: pool.name)
        text = pools_table(pools, aliases=len(stores) > 1) if pools else "There are no pools."
        output.say(as_json(pools) if format == "json" else text)
        return
    found = {store.alias: LockPool(name, using=store.alias).info() for store in stores}
    found = {alias: pool for alias, pool in found.items() if pool.members or pool.waiters or pool.locks}
    if found:
        pool = _the_only(found)
        facts = {"alias": next(iter(found)), **vars(pool)}
        output.say(as_json(facts) if format == "json" else pool_portrait(pool))
    if not any(pool.members for pool in found.values()):
        raise CommandError(f"The pool {printable(name)} has no members.")


def find_stores(output: Output, using: str | None) -> list[LockStore]:
    """That of ``using``; None: those of all aliases that have locks."""
    stores = get_stores(using)
    for store in stores:
        warn_of_memory(output, store)
    return stores


def warn_of_memory(output: Output, store: LockStore) -> None:
    if store.memory:
        output.warn(
            f"The cache alias {store.alias!r} is not Redis: its locks live in the memory of each process, and this one "
            f"sees and guards only its own."
        )


def _the_only(found: Mapping[str, T]) -> T:
    """Return what there is under one alias; CommandError if there are several."""
    if len(found) > 1:
        raise CommandError(f"Found in several cache aliases ({', '.join(found)}): give --using.", returncode=2)
    return next(iter(found.values()))


def none_matches(pattern: str) -> str:
    return "No locks are held." if pattern == "*" else f"No held lock matches {printable(pattern) or repr(pattern)}."


def not_held(names: Iterable[str]) -> list[str]:
    """Return what to say of locks that nobody holds."""
    free = [printable(name) for name in names]
    lines = [f"Not held: {', '.join(free)}"] if free else []
    if any(character in name for name in free for character in "*?["):
        lines.append("NAME is not a pattern: use list PATTERN, or clear --match PATTERN.")
    return lines
