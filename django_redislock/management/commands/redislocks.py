"""``manage.py redislocks``: see who holds which lock, and set locks free."""

from __future__ import annotations

import json
import unicodedata
from argparse import SUPPRESS, Action
from collections.abc import Sequence
from copy import copy
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock import LockInfo, LockUnavailable, force_release, get_lock, list_locks
from django_redislock.texts import duration, printable

# name and help; what it takes stands in add_<name>_arguments, what it does in handle_<name>
SUBCOMMANDS = {
    "list": "Show the locks that are held: by whom, since when, for how long still, and how many wait.",
    "clear": "Set locks free, whoever holds them. The next waiter gets the lock, the old holder is told at once.",
}


class Command(BaseCommand):
    help = "Shows the locks that are held, and sets locks free."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        base = list(parser._actions)
        subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        for name, text in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(name, help=text, description=text, formatter_class=parser.formatter_class)
            getattr(self, f"add_{name}_arguments")(subparser)
            subparser.add_argument(
                "--using", metavar="ALIAS", help="Alias in CACHES; by default the one in REDISLOCK['CACHE']."
            )
            _repeat(base, subparser)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        try:
            getattr(self, f"handle_{subcommand}")(**options)
        except (LockUnavailable, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error

    # -- list -------------------------------------------------------------------------------------------------------

    def add_list_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "pattern", metavar="PATTERN", nargs="?", default="*", help="Shell-style pattern of names, e.g. 'order:*'."
        )
        parser.add_argument("--format", choices=["table", "json"], default="table", help="For people or for programs.")

    def handle_list(self, *, pattern: str, format: str, using: str | None, **options: Any) -> None:
        locks = list_locks(pattern, using=using)
        if format == "json":
            self.stdout.write(json.dumps([as_json(lock) for lock in locks], indent=2))
        elif locks:
            self.say(table(locks))
        else:
            self.say("No locks are held." if pattern == "*" else f"No lock is held that matches {printable(pattern)}.")

    # -- clear ------------------------------------------------------------------------------------------------------

    def add_clear_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", metavar="NAME", nargs="*", help="A lock to set free.")
        parser.add_argument("--match", metavar="PATTERN", help="All held locks whose names match, e.g. 'order:*'.")
        parser.add_argument("--all", action="store_true", help="All held locks.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be cleared.")
        parser.add_argument(
            "--noinput", "--no-input", action="store_false", dest="interactive", help="Do not ask before clearing."
        )

    def handle_clear(
        self,
        *,
        names: list[str],
        match: str | None,
        using: str | None,
        dry_run: bool,
        interactive: bool,
        **options: Any,
    ) -> None:
        if bool(names) + (match is not None) + options["all"] != 1:
            raise CommandError("Say what to clear: either names, or --match PATTERN, or --all.")
        if names:
            found = {name: _named(name, using) for name in names}
            locks = [lock for lock in found.values() if lock]
            missing = [name for name, lock in found.items() if not lock]
        else:
            locks, missing = list_locks("*" if match is None else match, using=using), []

        if locks and dry_run:
            self.say(f"Would be cleared:\n{table(locks)}")
        elif locks:
            if interactive:
                self.confirm(locks)
            missing += [lock.name for lock in locks if not self.clear(lock.name, using)]
        elif not missing:
            self.say("No locks are held." if match is None else f"No lock is held that matches {printable(match)}.")
        if names and missing:
            raise CommandError(f"Not held: {', '.join(map(printable, missing))}")

    def confirm(self, locks: Sequence[LockInfo]) -> None:
        """Go on only if somebody says yes."""
        self.say(
            f"{table(locks)}\n\nTheir holders will be told, but go on until they look: make sure they are harmless."
        )
        self.stdout.write(f"Clear {len(locks)} lock{'s'[: len(locks) > 1]}? [y/N] ", ending="")
        self.stdout.flush()
        try:
            answer = input()
        except EOFError:
            raise CommandError("Nobody is there to ask, nothing was cleared. Give --noinput to clear anyway.") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was cleared.")

    def clear(self, name: str, using: str | None) -> bool:
        lock = force_release(name, using=using, by="manage.py redislocks clear")
        if lock is not None:
            held = f"held for {duration(lock.held_for)} by {printable(lock.owner)}"
            self.say(f"Cleared {printable(name)}, {held}, {lock.waiters} waiting.")
        return lock is not None

    def say(self, text: str) -> None:
        """Print ``text``; what the terminal's encoding lacks stands there escaped."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _repeat(actions: Sequence[Action], parser: CommandParser) -> None:
    """Django's own options, which it knows only before a subcommand, behind it as well."""
    for action in actions:
        if action.dest != "help":
            again = copy(action)
            again.default = SUPPRESS
            parser._add_action(again)


def _named(name: str, using: str | None) -> LockInfo | None:
    try:
        return get_lock(name, using=using)
    except ValueError as error:
        raise CommandError(str(error)) from error


def as_json(lock: LockInfo) -> dict[str, Any]:
    """Times in ISO 8601, durations in seconds."""
    return {
        "name": lock.name,
        "owner": lock.owner,
        "since": lock.since.isoformat(timespec="microseconds"),
        "held_for": lock.held_for,
        "lease_left": lock.lease_left,
        "expires": lock.expires.isoformat(timespec="microseconds"),
        "fence": lock.fence,
        "waiters": lock.waiters,
    }


def table(locks: Sequence[LockInfo]) -> str:
    rows = [("NAME", "OWNER", "HELD FOR", "LEASE LEFT", "FENCE", "WAITERS")]
    for lock in locks:
        times = duration(lock.held_for), duration(lock.lease_left)
        rows.append((printable(lock.name), printable(lock.owner), *times, str(lock.fence), str(lock.waiters)))
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(_pad, row, widths)).rstrip() for row in rows)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
