"""``manage.py redislocks``: see who holds which lock, set locks free, and run programs under a lock."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import SUPPRESS, Action
from collections.abc import Sequence
from copy import copy
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock import Lock, LockInfo, LockPool, LockUnavailable, force_release, get_lock, list_locks
from django_redislock.cli.arguments import (
    SubcommandParser,
    exit_status,
    name_of_lock,
    name_of_pool,
    not_negative,
    positive,
)
from django_redislock.cli.run import run
from django_redislock.cli.text import as_json, pool_as_json, pool_portrait, portrait, table, with_queue
from django_redislock.cli.watch import watch
from django_redislock.commands import BUSY, LOST, UNAVAILABLE, quiet_when_busy
from django_redislock.connection import get_backend
from django_redislock.names import make_keys
from django_redislock.texts import duration, printable

# name and help; what it takes stands in add_<name>_arguments, what it does in handle_<name>
SUBCOMMANDS = {
    "list": "Show the locks that are held: by whom, since when, for how long still, and how many wait.",
    "show": "Show one lock: its holder, and its queue in order. Exits 1 when nobody holds it.",
    "pool": "Show a pool: how many members are free, who holds the others, who waits. Exits 1 when it has none.",
    "clear": "Set locks free, whoever holds them. The next waiter gets the lock, the old holder is told at once.",
    "run": "Run a program under a lock and exit as it does. The lock is renewed while the program runs.",
}
STATUSES = (
    f"Exit status: the program's own; 128 + n when signal n has ended it; {BUSY} when somebody else holds the lock; "
    f"{LOST} when the lock was lost before the program had ended, which is ended then; {UNAVAILABLE} when Redis cannot "
    f"be reached; 127 when there is no such program, 126 when it cannot be executed; 2 when the arguments are wrong."
)


class Command(BaseCommand):
    help = "Shows the locks that are held, sets locks free, and runs programs under a lock."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        base = list(parser._actions)
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="SUBCOMMAND", required=True, parser_class=SubcommandParser
        )
        for name, text in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(name, help=text, description=text, formatter_class=parser.formatter_class)
            getattr(self, f"add_{name}_arguments")(subparser)
            subparser.add_argument(
                "--using", metavar="ALIAS", help="Alias in CACHES; by default the one in REDISLOCK['CACHE']."
            )
            _repeat(base, subparser)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        try:
            backend = get_backend(options["using"])
            if backend.memory:
                self.stderr.write(
                    f"The cache alias {backend.alias!r} is no Redis: its locks live in the memory of each process, and "
                    f"this one sees and guards its own only."
                )
            getattr(self, f"handle_{subcommand}")(**options)
        except LockUnavailable as error:
            raise CommandError(str(error), returncode=UNAVAILABLE) from error  # 1 says that nobody holds a lock
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error

    # -- list -------------------------------------------------------------------------------------------------------

    def add_list_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "pattern", metavar="PATTERN", nargs="?", default="*", help="Shell-style pattern of names, e.g. 'order:*'."
        )
        parser.add_argument("--format", choices=["table", "json"], default="table", help="For people or for programs.")
        parser.add_argument(
            "--watch",
            metavar="SECONDS",
            nargs="?",
            type=positive,
            const=2.0,
            help="Again and again, every so many seconds (2), until interrupted. JSON: one line each time.",
        )

    def handle_list(self, *, pattern: str, format: str, watch: float | None, using: str | None, **options: Any) -> None:
        if watch is None:
            self.say(listing(pattern, format, using, indent=2))
        else:
            self.keep_listing(pattern, format, using, watch)

    def keep_listing(self, pattern: str, format: str, using: str | None, every: float) -> None:
        def show() -> str:
            try:
                return listing(pattern, format, using)
            except LockUnavailable as error:
                if format == "json":
                    raise
                return str(error)  # whoever watches wants to see how it ends

        table = format == "table"
        watch(show, self.say, every, terminal=table and self.stdout.isatty(), head=table)

    # -- show -------------------------------------------------------------------------------------------------------

    def add_show_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to show.")
        parser.add_argument("--format", choices=["table", "json"], default="table", help="For people or for programs.")

    def handle_show(self, *, name: str, format: str, using: str | None, **options: Any) -> None:
        lock = get_lock(name, using=using)
        if lock is None:
            raise CommandError("\n".join(not_held([name], using)))
        self.say(json.dumps(with_queue(lock), indent=2) if format == "json" else portrait(lock))

    # -- pool -------------------------------------------------------------------------------------------------------

    def add_pool_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_of_pool, help="The pool to show.")
        parser.add_argument("--format", choices=["table", "json"], default="table", help="For people or for programs.")

    def handle_pool(self, *, name: str, format: str, using: str | None, **options: Any) -> None:
        pool = LockPool(name, using=using).info()
        if not pool.members and not pool.waiters:
            raise CommandError(f"No members: {printable(name)}")
        self.say(json.dumps(pool_as_json(pool), indent=2) if format == "json" else pool_portrait(pool))

    # -- clear ------------------------------------------------------------------------------------------------------

    def add_clear_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", metavar="NAME", nargs="*", type=name_of_lock, help="A lock to set free.")
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
            found = {name: get_lock(name, using=using) for name in names}
            locks = [lock for lock in found.values() if lock]
            missing = [name for name, lock in found.items() if not lock]
        else:
            locks, missing = list_locks("*" if match is None else match, using=using), []
        changed: list[str] = []

        if locks and dry_run:
            self.say(f"Would be cleared:\n{table(locks)}")
        elif locks:
            if interactive:
                self.confirm(locks)
            left = [lock.name for lock in locks if not self.clear(lock, using)]
            changed = [name for name in left if get_lock(name, using=using)]
            missing += [name for name in left if name not in changed]
        elif not missing:
            self.say("No locks are held." if match is None else f"No lock is held that matches {printable(match)}.")
        lines = [f"Left alone, as the holder has changed: {', '.join(map(printable, changed))}"] if changed else []
        lines += not_held(missing, using) if names else []
        if lines:
            raise CommandError("\n".join(lines))

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
        except KeyboardInterrupt:
            raise CommandError("Nothing was cleared.") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was cleared.")

    def clear(self, seen: LockInfo, using: str | None) -> bool:
        """Whether it was ours to clear: whoever has acquired the lock since it was ``seen`` is spared."""
        lock = force_release(seen.name, using=using, by="manage.py redislocks clear", fence=seen.fence)
        if lock is not None:
            held = f"held for {duration(lock.held_for)} by {printable(lock.owner)}"
            self.say(f"Cleared {printable(lock.name)}, {held}, {lock.waiters} waiting.")
        return lock is not None

    # -- run --------------------------------------------------------------------------------------------------------

    def add_run_arguments(self, parser: CommandParser) -> None:
        assert isinstance(parser, SubcommandParser)
        parser.takes_program = True
        parser.usage = "%(prog)s [OPTIONS] NAME -- PROGRAM [ARGUMENT ...]"
        parser.epilog = STATUSES
        parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to take.")
        parser.add_argument(
            "--ttl", metavar="SECONDS", type=positive, help="Until the lock ends when this process is killed by -9."
        )
        parser.add_argument(
            "--wait", metavar="SECONDS", type=not_negative, default=0.0, help="Wait so long for a busy lock (0)."
        )
        parser.add_argument("--fair", action="store_true", help="Never overtake: a FairLock.")
        parser.add_argument(
            "--at-least",
            metavar="SECONDS",
            type=not_negative,
            default=0.0,
            help="Keep the lock so long from its start, even when the program ends before: more than the clocks of the "
            "machines differ that start it at the same minute.",
        )
        parser.add_argument(
            "--kill-after",
            metavar="SECONDS",
            type=not_negative,
            default=10.0,
            help="From SIGTERM to SIGKILL for a program whose lock is lost (10).",
        )
        parser.add_argument(
            "-E", "--conflict-exit-code", metavar="STATUS", type=exit_status, default=BUSY, help=f"When busy ({BUSY})."
        )

    def handle_run(
        self, *, name: str, program: Sequence[str], conflict_exit_code: int, verbosity: int, **options: Any
    ) -> None:
        known = ("ttl", "wait", "fair", "at_least", "kill_after", "using")
        with quiet_when_busy(self, verbosity):
            status = run(name, program, busy_status=conflict_exit_code, **{option: options[option] for option in known})
        if status:
            sys.exit(status)

    def say(self, text: str) -> None:
        """Print ``text``; what the terminal's encoding lacks stands there escaped."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        try:
            self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stdout.flush()
        except BrokenPipeError:
            if not getattr(self, "_called_from_command_line", False):
                raise
            # "| head" has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            sys.exit(128 + signal.SIGPIPE)


def _repeat(actions: Sequence[Action], parser: CommandParser) -> None:
    """Django's own options, which it knows only before a subcommand, behind it as well."""
    for action in actions:
        if action.dest != "help":
            again = copy(action)
            again.default = SUPPRESS
            parser._add_action(again)


def not_held(names: Sequence[str], using: str | None) -> list[str]:
    """What to say of locks that none of ours holds: nobody does, or somebody else has written the key."""
    backend = get_backend(using)
    foreign = [name for name in names if Lock(name, using=using).locked()]
    free = [printable(name) for name in names if name not in foreign]
    return [f"Not held: {', '.join(free)}"] * bool(free) + [
        f"Not one of our locks: {printable(name)}. Somebody else has written the key "
        f"{make_keys(backend.prefix, name).lock!r}; delete it to set it free."
        for name in foreign
    ]


def listing(pattern: str, format: str, using: str | None, indent: int | None = None) -> str:
    """The held locks that match, as text."""
    locks = list_locks(pattern, using=using)
    if format == "json":
        return json.dumps([as_json(lock) for lock in locks], indent=indent)
    if locks:
        return table(locks)
    return "No locks are held." if pattern == "*" else f"No lock is held that matches {printable(pattern)}."
