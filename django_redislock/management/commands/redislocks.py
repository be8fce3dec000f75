"""``manage.py redislocks``: see who holds which lock, force-release locks, and run programs under a lock."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from datetime import timedelta
from shutil import get_terminal_size
from typing import Any, TypeVar

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock import Lock, LockInfo, LockPool, LockUnavailable, force_release, get_lock, list_locks, list_pools
from django_redislock.cli import fences
from django_redislock.cli.arguments import (
    SubcommandParser,
    exit_status,
    name_of_lock,
    name_of_pool,
    not_negative,
    positive,
)
from django_redislock.cli.operator import operator, system_user
from django_redislock.cli.run import run
from django_redislock.cli.text import as_json, pool_as_json, pool_portrait, pools_table, portrait, table, with_queue
from django_redislock.cli.watch import watch
from django_redislock.display import duration, printable
from django_redislock.jobs.locked_command import BUSY, LOST, UNAVAILABLE, quiet_when_busy
from django_redislock.log import unprinted
from django_redislock.store.keys import make_keys
from django_redislock.store.place import Place
from django_redislock.store.places import get_backend, get_place, get_places

T = TypeVar("T")

# name and help; what it takes stands in add_<name>_arguments, what it does in handle_<name>
SUBCOMMANDS = {
    "list": "List the held locks: who holds them, for how long, how much lease is left, and how many wait.",
    "show": "Show one lock: its holder, and its queue in order. Exits 1 if it is free.",
    "pool": "Show a pool: how many members are free, who holds the others, who waits. Exits 1 if it has no members. "
    "Without a name: all pools.",
    "clear": "Force-release locks, whoever holds them. The next waiter gets the lock, the old holder is told at once.",
    "fences": "Look after the fences that the database keeps of claimed locks.",
    "run": "Run a program under a lock and exit with its status. The lock is renewed while the program runs.",
}
# those that cover every alias that has locks, unless --using names one
EVERYWHERE = ("list", "show", "pool", "clear")
STATUSES = (
    f"Exit status: the program's own; 128 + n if signal n ended it; {BUSY} if somebody else holds the lock; {LOST} if "
    f"the lock was lost while the program ran, which is then ended; {UNAVAILABLE} if Redis cannot be reached; 127 if "
    f"there is no such program, 126 if it cannot be executed; 2 if the arguments are wrong."
)


class Command(BaseCommand):
    help = "Shows the locks that are held, force-releases locks, and runs programs under a lock."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        base = list(parser._actions)
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="SUBCOMMAND", required=True, parser_class=SubcommandParser
        )
        for name, text in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(name, help=text, description=text, formatter_class=parser.formatter_class)
            getattr(self, f"add_{name}_arguments")(subparser)
            if name != "fences":  # which are in the database
                default = "all that have locks" if name in EVERYWHERE else "the one in REDISLOCK['CACHE']"
                subparser.add_argument("--using", metavar="ALIAS", help=f"Alias in CACHES; by default {default}.")
            _repeat(base, subparser)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        if subcommand == "fences":
            return self.handle_fences(**options)
        try:
            using = options["using"]
            for place in get_places(using) if subcommand in EVERYWHERE else [get_place(using)]:
                if place.memory and subcommand == "run" and not settings.DEBUG:
                    raise CommandError(
                        f"Not run: the cache alias {place.alias!r} is not Redis, so the lock would guard this "
                        f"process only. Name an alias with a Redis in REDISLOCK['CACHE'], or with --using."
                    )
                if place.memory:
                    self.stderr.write(
                        f"The cache alias {place.alias!r} is not Redis: its locks live in the memory of each "
                        f"process, and this one sees and guards only its own."
                    )
            getattr(self, f"handle_{subcommand}")(**options)
        except LockUnavailable as error:
            raise CommandError(str(error), returncode=UNAVAILABLE) from error  # 1 says that nobody holds a lock
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error

    def add_format(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--format", choices=["table", "json"], default="table", help="table: for people; json: for programs."
        )

    # -- list -------------------------------------------------------------------------------------------------------

    def add_list_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "pattern", metavar="PATTERN", nargs="?", default="*", help="Shell-style pattern of names, e.g. 'order:*'."
        )
        self.add_format(parser)
        parser.add_argument(
            "--watch",
            metavar="SECONDS",
            nargs="?",
            type=positive,
            const=2.0,
            help="Repeat every SECONDS (default 2) until interrupted. JSON: one line each time.",
        )

    def handle_list(self, *, pattern: str, format: str, watch: float | None, using: str | None, **options: Any) -> None:
        if watch is None:
            self.say(listing(pattern, format, using, indent=2))
        else:
            self.keep_listing(pattern, format, using, watch)

    def keep_listing(self, pattern: str, format: str, using: str | None, every: float) -> None:
        table = format == "table"
        terminal = table and self.stdout.isatty()

        def show() -> str:
            try:
                return listing(pattern, format, using, room=get_terminal_size().columns if terminal else None)
            except LockUnavailable as error:
                if format == "json":
                    raise
                return str(error)  # keep watching: it may come back

        watch(show, self.say, every, terminal=terminal, head=table)

    # -- show -------------------------------------------------------------------------------------------------------

    def add_show_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to show.")
        self.add_format(parser)

    def handle_show(self, *, name: str, format: str, using: str | None, **options: Any) -> None:
        places = get_places(using)
        locks = find_held([name], places)
        if not locks:
            raise CommandError("\n".join(not_held([name], places)))
        lock = the_only({lock.alias: lock for lock in locks})
        self.say(json.dumps(with_queue(lock), indent=2) if format == "json" else portrait(lock))

    # -- pool -------------------------------------------------------------------------------------------------------

    def add_pool_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "name", metavar="NAME", nargs="?", type=name_of_pool, help="The pool to show; without it, all are listed."
        )
        self.add_format(parser)

    def handle_pool(self, *, name: str | None, format: str, using: str | None, **options: Any) -> None:
        places = get_places(using)
        if name is None:
            self.say(all_pools(format, places))
            return
        found = {place.alias: LockPool(name, using=place.alias).info() for place in places}
        pools = {alias: pool for alias, pool in found.items() if pool.members or pool.waiters}
        if not pools:
            raise CommandError(f"No members: {printable(name)}")
        pool = the_only(pools)
        self.say(json.dumps(pool_as_json(pool), indent=2) if format == "json" else pool_portrait(pool))

    # -- clear ------------------------------------------------------------------------------------------------------

    def add_clear_arguments(self, parser: CommandParser) -> None:
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
            help="The site's user in whose name this stands in the admin's history (default: the one called as the "
            f"system's user, {system_user()}).".replace("%", "%%"),
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
            raise CommandError("Give either names, or --match PATTERN, or --all.")
        if options["user"] is not None:
            self.check_user(options["user"])
        places = get_places(using)
        several = len(places) > 1
        if names:
            locks = find_held(dict.fromkeys(names), places)
            missing = [name for name in dict.fromkeys(names) if name not in {lock.name for lock in locks}]
        else:
            locks, missing = matching("*" if match is None else match, places), []
        changed: list[str] = []

        if locks and dry_run:
            self.say(f"Would force-release:\n{table(locks, aliases=several)}")
        elif locks:
            if interactive:
                self.confirm(locks, several)
            left = self.clear(locks, several, options["user"] or system_user())
            stay = [lock for lock in left if get_lock(lock.name, using=lock.alias)]
            changed = [label(lock, several) for lock in stay]
            missing += [lock.name for lock in left if lock not in stay]
        elif not missing:
            self.say("No locks are held." if match is None else f"No held lock matches {printable(match)}.")
        lines = [f"Left alone, since the holder has changed: {', '.join(changed)}"] if changed else []
        lines += not_held(missing, places) if names else []
        if lines:
            raise CommandError("\n".join(lines))

    def confirm(self, locks: Sequence[LockInfo], several: bool) -> None:
        """Go on only if the user says yes."""
        self.say(
            f"{table(locks, aliases=several)}\n\nThe holders are notified, but their code keeps running until it "
            f"checks the lock: make sure that they are dead or harmless."
        )
        self.stdout.write(f"Force-release {len(locks)} lock{'s'[: len(locks) > 1]}? [y/N] ", ending="")
        self.stdout.flush()
        try:
            answer = input()
        except EOFError:
            raise CommandError("Nothing was force-released: nobody is there to confirm it. Give --noinput.") from None
        except KeyboardInterrupt:
            raise CommandError("Nothing was force-released.") from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was force-released.")

    def clear(self, locks: Sequence[LockInfo], several: bool, user: str) -> list[LockInfo]:
        """Force-release the locks, but those that were acquired anew since they were seen: return these."""
        by = f"{operator()} by manage.py redislocks clear"
        released: list[LockInfo] = []
        left: list[LockInfo] = []
        try:
            with unprinted():  # it is said here
                for seen in locks:
                    lock = force_release(seen.name, using=seen.alias, by=by, fence=seen.fence)
                    if lock is None:
                        left.append(seen)
                        continue
                    released.append(lock)
                    held = f"held for {duration(lock.held_for)} by {printable(lock.owner)}"
                    self.say(f"Force-released {label(lock, several)}, {held}, {lock.waiters} waiting.")
        finally:
            if released and apps.is_installed("django.contrib.admin"):
                self.record(released, by, user)
        return left

    def check_user(self, name: str) -> None:
        """Refuse a name that the site does not know, while there is still something to record."""
        if not apps.is_installed("django.contrib.admin"):
            return
        from django_redislock.admin import history

        try:
            known = history.find_user(name) is not None
        except Exception:
            return  # a database out of reach keeps no lock held; record() says why nothing was recorded
        if not known:
            raise CommandError(f"Nothing was force-released: the site has no user {printable(name)!r}.")

    def record(self, locks: Sequence[LockInfo], by: str, user: str) -> None:
        """Enter the force-release in the admin's history, if that can be: the locks are free in any case."""
        from django_redislock.admin import history

        trouble: object = f"the site has no user {printable(user)!r}. Name one with --user."
        try:
            pk = history.find_user(user)
            if pk is not None:
                history.record(pk, locks, by)
                return
        except Exception as error:  # whatever the database or the site's own user model says
            trouble = error
        self.stderr.write(f"Not recorded in the admin's history: {trouble}")

    # -- run --------------------------------------------------------------------------------------------------------

    def add_run_arguments(self, parser: CommandParser) -> None:
        assert isinstance(parser, SubcommandParser)
        parser.takes_program = True
        parser.usage = "%(prog)s [OPTIONS] NAME -- PROGRAM [ARGUMENT ...]"
        parser.epilog = STATUSES
        parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to acquire.")
        parser.add_argument(
            "--ttl",
            metavar="SECONDS",
            type=positive,
            help="Seconds until Redis frees the lock if this process is killed (kill -9).",
        )
        parser.add_argument(
            "--blocking-timeout",
            metavar="SECONDS",
            type=not_negative,
            default=0.0,
            help="Wait at most this long for a busy lock (default 0).",
        )
        parser.add_argument(
            "--at-least",
            metavar="SECONDS",
            type=not_negative,
            default=0.0,
            help="Hold the lock at least this long, even if the program ends sooner. Choose more than the clock skew "
            "between the machines that start it at the same minute.",
        )
        parser.add_argument(
            "--kill-after",
            metavar="SECONDS",
            type=not_negative,
            default=10.0,
            help="Seconds between SIGTERM and SIGKILL for a program whose lock is lost (default 10).",
        )
        parser.add_argument(
            "-E",
            "--conflict-exit-code",
            metavar="STATUS",
            type=exit_status,
            default=BUSY,
            help=f"Exit status if the lock is busy (default {BUSY}).",
        )

    def handle_run(
        self, *, name: str, program: Sequence[str], conflict_exit_code: int, verbosity: int, **options: Any
    ) -> None:
        known = ("ttl", "blocking_timeout", "at_least", "kill_after", "using")
        with quiet_when_busy(self, verbosity):
            status = run(name, program, busy_status=conflict_exit_code, **{option: options[option] for option in known})
        if status:
            sys.exit(status)

    # -- fences -----------------------------------------------------------------------------------------------------

    def add_fences_arguments(self, parser: CommandParser) -> None:
        fences.add_arguments(parser)

    def handle_fences(self, *, older_than: timedelta, dry_run: bool, database: str, **options: Any) -> None:
        self.say(fences.handle(older_than=older_than, dry_run=dry_run, database=database))

    def say(self, text: str) -> None:
        """Print ``text``; characters that the terminal's encoding lacks are escaped."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        try:
            self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stdout.flush()
        except BrokenPipeError:
            if not getattr(self, "_called_from_command_line", False):
                raise
            # whoever read us, head say, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            sys.exit(128 + signal.SIGPIPE)


def _repeat(actions: Sequence[Action], parser: CommandParser) -> None:
    """Accept Django's own options after the subcommand too, not only before it."""
    for action in actions:
        if action.dest != "help":
            again = copy(action)
            again.default = SUPPRESS
            parser._add_action(again)


def find_held(names: Iterable[str], places: Sequence[Place]) -> list[LockInfo]:
    """The locks of these names that are held, wherever they are."""
    found = [get_lock(name, using=place.alias) for name in names for place in places]
    return [lock for lock in found if lock is not None]


def the_only(found: Mapping[str, T]) -> T:
    """What there is under one alias; CommandError if there are several."""
    if len(found) > 1:
        raise CommandError(f"In several cache aliases ({', '.join(found)}): give --using.", returncode=2)
    return next(iter(found.values()))


def matching(pattern: str, places: Sequence[Place]) -> list[LockInfo]:
    """The held locks whose names match, wherever they are, by name."""
    found = [lock for place in places for lock in list_locks(pattern, using=place.alias)]
    return sorted(found, key=lambda lock: lock.name)


def label(lock: LockInfo, several: bool) -> str:
    """The lock's name, with its alias where there are several."""
    return f"{printable(lock.name)} ({printable(lock.alias)})" if several else printable(lock.name)


def not_held(names: Sequence[str], places: Sequence[Place]) -> list[str]:
    """What to say of locks that are not held by one of us: nobody holds them, or somebody else wrote the key."""
    foreign = {
        name: make_keys(get_backend(place.alias, name).prefix, name).lock
        for name in names
        for place in places
        if Lock(name, using=place.alias).locked()
    }
    free = [printable(name) for name in names if name not in foreign]
    lines = [f"Not held: {', '.join(free)}"] if free else []
    return lines + [
        f"Not a lock of this app: {printable(name)}. Somebody else has written the key {key!r}; delete it to free the "
        f"name."
        for name, key in foreign.items()
    ]


def all_pools(format: str, places: Sequence[Place]) -> str:
    """The pools of these aliases, as text."""
    found = [pool for place in places for pool in list_pools(using=place.alias)]
    pools = sorted(found, key=lambda pool: pool.name)
    if format == "json":
        return json.dumps([asdict(pool) for pool in pools], indent=2)
    return pools_table(pools, aliases=len(places) > 1) if pools else "There are no pools."


def listing(pattern: str, format: str, using: str | None, *, indent: int | None = None, room: int | None = None) -> str:
    """The held locks that match, as text. ``room``: see table()."""
    places = get_places(using)
    locks = matching(pattern, places)
    if format == "json":
        return json.dumps([as_json(lock) for lock in locks], indent=indent)
    if locks:
        return table(locks, aliases=len(places) > 1, room=room)
    return "No locks are held." if pattern == "*" else f"No held lock matches {printable(pattern)}."
