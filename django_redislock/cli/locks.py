"""``redislocks list``, ``show`` and ``pool``; ``clear``: force-release locks, after a question, and enter it in the
admin's history; and ``fences``.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import product
from shutil import get_terminal_size
from typing import Any, TypeVar

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from ..base.display import duration, printable
from ..base.log import unprinted
from ..exceptions import LockUnavailable
from ..fencing.claim import is_missing, prune
from ..fencing.table import remedy
from ..inspection.info import LockInfo, force_release, get_lock
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
            several = len(_find_stores(output, using)) > 1
        locks = list_everywhere(pattern, using)
        if not people:
            return as_json(locks, indent=2 if watch is None else None)
        room = get_terminal_size().columns if terminal else None
        return locks_table(locks, aliases=several, room=room) if locks else _none_matches(pattern)

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
    found = {store.alias: get_lock(name, using=store.alias) for store in _find_stores(output, using)}
    held = {alias: lock for alias, lock in found.items() if lock is not None}
    if not held:
        raise CommandError("\n".join(_not_held([name])))
    lock = _the_only(held)
    output.say(as_json(lock, queues=True) if format == "json" else portrait(lock))


def show_pool(output: Output, *, name: str | None, format: str, using: str | None, **options: Any) -> None:
    """Show a pool: how many members are free, who holds the others, who waits. Exits 1 if it has no members.

    Without a name: all pools that have members.
    """
    stores = _find_stores(output, using)
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


def clear(
    output: Output,
    *,
    names: list[str],
    match: str | None,
    permit: int | None,
    user: str | None,
    using: str | None,
    dry_run: bool,
    interactive: bool,
    **options: Any,
) -> None:
    """Force-release locks, whoever holds them. The next waiter gets the lock, the old holder is told at once."""
    stores = _find_stores(output, using)
    if bool(names) + (match is not None) + options["all"] != 1:
        raise CommandError("Give either names, or --match PATTERN, or --all.", returncode=2)
    if permit is not None and len(names) != 1:
        raise CommandError("--permit takes the name of one semaphore, such as semaphore:export.", returncode=2)
    if user is not None:
        _check_user(user)
    names, several = list(dict.fromkeys(names)), len(stores) > 1
    pattern = "*" if match is None else match
    found = (get_lock(name, using=store.alias) for name, store in product(names, stores))
    locks = list(filter(None, found)) if names else list_everywhere(pattern, using)
    if locks and permit is not None:
        locks = [each for lock in locks for each in lock.permits if each.fence == permit]
        if not locks:
            raise CommandError(f"{printable(names[0])} is held, but has no permit with the fence {permit}.")
    lines = _not_held(name for name in names if name not in {lock.name for lock in locks})
    if locks and dry_run:
        output.say(f"Would force-release:\n{locks_table(locks, aliases=several)}")
    elif locks:
        if interactive:
            _confirm(output, locks, several)
        left = _release(output, locks, several, user or system_user(), permit)
        if left:
            lines.append(f"Left alone, since the holder has changed or is gone: {', '.join(left)}")
    elif not names:
        output.say(_none_matches(pattern))
    if lines:
        raise CommandError("\n".join(lines))


def system_user() -> str:
    """The name of the user as whom this process runs, by the system and not by the environment; else the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in many containers
        return str(os.getuid())


def _confirm(output: Output, locks: Sequence[LockInfo], several: bool) -> None:
    """Go on only if the user says yes."""
    question = (
        f"{locks_table(locks, aliases=several)}\n\nThe holders are notified, but their code keeps running until it "
        f"checks the lock: make sure that they are dead or harmless.\n"
        f"Force-release {len(locks)} lock{'s'[: len(locks) > 1]}? [y/N] "
    )
    try:
        answer = output.ask(question)
    except EOFError:
        raise CommandError("Nothing was force-released: nobody is there to confirm it. Give --noinput.") from None
    except KeyboardInterrupt:
        output.warn("\nNothing was force-released.")
        raise
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was force-released.")


def _release(output: Output, locks: Sequence[LockInfo], several: bool, user: str, permit: int | None) -> list[str]:
    """Force-release the locks, but those that have changed hands since they were seen: return their names."""
    by = f"{system_user()}@{socket.gethostname()} by manage.py redislocks clear"
    released: list[LockInfo] = []
    left: list[str] = []
    lines: list[str] = []
    try:
        with unprinted():  # it is said here
            for seen in locks:
                label = printable(seen.name) + f" ({printable(seen.alias)})" * several
                lock = force_release(seen.name, using=seen.alias, by=by, fence=seen.fence, permit=permit)
                if lock is None:
                    left.append(label)
                    continue
                released.append(lock)
                held = f"held for {duration(lock.held_for)} by {printable(lock.owner)}"
                lines.append(f"Force-released {label}, {held}, {lock.waiters + lock.pool_waiters} waiting.")
    finally:
        try:
            if lines:
                output.say("\n".join(lines))  # before the database is asked, which may hang
        finally:  # also where nobody reads on, which ends the command
            if released and apps.is_installed("django.contrib.admin"):
                _record(output, released, by, user)
    return left


def _check_user(name: str) -> None:
    """Refuse a name that the site does not know, while there is still something to record."""
    if not apps.is_installed("django.contrib.admin"):
        problem = "there is no history without django.contrib.admin: leave out --user"
        raise CommandError(f"Nothing was force-released: {problem}.", returncode=2)
    from ..admin import changelist as history

    try:
        known = history.find_user(name) is not None
    except Exception:
        return  # a database out of reach keeps no lock held; _record() says why nothing was recorded
    if not known:
        raise CommandError(f"Nothing was force-released: the site has no user {printable(name)!r}.", returncode=2)


def _record(output: Output, locks: Sequence[LockInfo], by: str, user: str) -> None:
    """Enter the force-release in the admin's history, if that can be: the locks are free in any case."""
    from ..admin import changelist as history

    trouble: object = f"the site has no user {printable(user)!r}. Name one with --user."
    try:
        pk = history.find_user(user)
        if pk is not None:
            _commit(history.record(pk, locks, by))
            return
    except Exception as error:  # whatever the database or the site's own user model says
        trouble = error
    output.warn(f"Not recorded in the admin's history: {trouble}")


def _commit(database: str) -> None:
    """End the transaction that Django has begun by itself where autocommit is off."""
    connection = connections[database]
    if not (connection.in_atomic_block or connection.get_autocommit()):
        connection.commit()


def prune_fences(output: Output, *, older_than: timedelta, dry_run: bool, database: str, **options: Any) -> None:
    """Delete old fences that the database keeps of claimed locks."""
    try:
        deleted, left = prune(older_than, using=database, dry_run=dry_run)
        _commit(database)
    except DatabaseError as error:
        hint = f". {remedy(database)}" if is_missing(error) else ""
        raise CommandError(f"Could not prune the fences of the database {database!r}: {error}{hint}") from error
    fences = f"{deleted} fence" if deleted == 1 else f"{deleted} fences"
    done = f"Would delete {fences}, and keep {left}" if dry_run else f"Deleted {fences}, kept {left}"
    output.say(f"{done} (database {database}).")


def _find_stores(output: Output, using: str | None) -> list[LockStore]:
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


def _none_matches(pattern: str) -> str:
    return "No locks are held." if pattern == "*" else f"No held lock matches {printable(pattern) or repr(pattern)}."


def _not_held(names: Iterable[str]) -> list[str]:
    """Return what to say of locks that nobody holds."""
    free = [printable(name) for name in names]
    lines = [f"Not held: {', '.join(free)}"] if free else []
    if any(character in name for name in free for character in "*?["):
        lines.append("NAME is not a pattern: use list PATTERN, or clear --match PATTERN.")
    return lines
