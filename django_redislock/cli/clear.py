"""``redislocks clear``: force-release locks, after a question, and enter it in the admin's history."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser

from ..base.display import duration, printable
from ..base.log import unprinted
from ..inspection import LockInfo, force_release, get_lock
from .arguments import add_using, find_held, find_stores, label, matching, name_of_lock, none_matches, not_held
from .output import Output, table

HELP = "Force-release locks, whoever holds them. The next waiter gets the lock, the old holder is told at once."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", type=name_of_lock, help="A lock to force-release.")
    parser.add_argument("--match", metavar="PATTERN", help="All held locks whose names match, e.g. 'order:*'.")
    parser.add_argument("--all", action="store_true", help="All held locks.")
    parser.add_argument("--dry-run", action="store_true", help="Only show what would be force-released.")
    parser.add_argument(
        "--noinput", "--no-input", action="store_false", dest="interactive", help="Do not ask for confirmation."
    )
    parser.add_argument(
        "--user",
        metavar="USERNAME",
        help="The site's user under whom the admin's history records this (default: the one with the name of the "
        f"system's user, {_system_user()}).".replace("%", "%%"),
    )
    add_using(parser)


def handle(
    output: Output,
    *,
    names: list[str],
    match: str | None,
    user: str | None,
    using: str | None,
    dry_run: bool,
    interactive: bool,
    **options: Any,
) -> None:
    stores = find_stores(output, using)
    if bool(names) + (match is not None) + options["all"] != 1:
        raise CommandError("Give either names, or --match PATTERN, or --all.", returncode=2)
    if user is not None:
        _check_user(user)
    several = len(stores) > 1
    pattern = "*" if match is None else match
    if names:
        locks = find_held(dict.fromkeys(names), stores)
        missing = [name for name in dict.fromkeys(names) if name not in {lock.name for lock in locks}]
    else:
        locks, missing = matching(pattern, stores), []
    lines: list[str] = []

    if locks and dry_run:
        output.say(f"Would force-release:\n{table(locks, aliases=several)}")
    elif locks:
        if interactive:
            _confirm(output, locks, several)
        left = _release(output, locks, several, user or _system_user())
        stay = [lock for lock in left if get_lock(lock.name, using=lock.alias)]
        missing += [lock.name for lock in left if lock not in stay]
        if stay:
            changed = ", ".join(label(lock, several) for lock in stay)
            lines.append(f"Left alone, since the holder has changed: {changed}")
        elif not names and len(missing) == len(locks):
            lines.append("Nothing was force-released: nobody holds these locks any more.")
    elif not missing:
        output.say(none_matches(pattern))
    if names:
        lines += not_held(missing)
    if lines:
        raise CommandError("\n".join(lines))


def _system_user() -> str:
    """The name of the user as whom this process runs, by the system and not by the environment; else the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in many containers
        return str(os.getuid())


def _confirm(output: Output, locks: Sequence[LockInfo], several: bool) -> None:
    """Go on only if the user says yes."""
    question = (
        f"{table(locks, aliases=several)}\n\nThe holders are notified, but their code keeps running until it checks "
        f"the lock: make sure that they are dead or harmless.\n"
        f"Force-release {len(locks)} lock{'s'[: len(locks) > 1]}? [y/N] "
    )
    try:
        answer = output.ask(question)
    except EOFError:
        raise CommandError("Nothing was force-released: nobody is there to confirm it. Give --noinput.") from None
    except UnicodeDecodeError:
        raise CommandError("Nothing was force-released.") from None
    except KeyboardInterrupt:
        output.warn("\nNothing was force-released.")
        raise
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was force-released.")


def _release(output: Output, locks: Sequence[LockInfo], several: bool, user: str) -> list[LockInfo]:
    """Force-release the locks, but those that were acquired anew since they were seen: return these."""
    by = f"{_system_user()}@{socket.gethostname()} by manage.py redislocks clear"
    released: list[LockInfo] = []
    left: list[LockInfo] = []
    lines: list[str] = []
    try:
        with unprinted():  # it is said here
            for seen in locks:
                lock = force_release(seen.name, using=seen.alias, by=by, fence=seen.fence)
                if lock is None:
                    left.append(seen)
                    continue
                released.append(lock)
                held = f"held for {duration(lock.held_for)} by {printable(lock.owner)}"
                lines.append(
                    f"Force-released {label(lock, several)}, {held}, {lock.waiters + lock.pool_waiters} waiting."
                )
    finally:
        if released and apps.is_installed("django.contrib.admin"):
            _record(output, released, by, user)
        if lines:
            output.say("\n".join(lines))  # last: it ends the command where nobody reads on
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
            history.record(pk, locks, by)
            return
    except Exception as error:  # whatever the database or the site's own user model says
        trouble = error
    output.warn(f"Not recorded in the admin's history: {trouble}")
