"""``manage.py redislocks``: see who holds which lock, force-release locks, and run programs under a lock."""

from __future__ import annotations

import math
import re
import signal
import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from django_redislock import LockPool, LockUnavailable
from django_redislock.base.names import check_name
from django_redislock.base.times import seconds, ttl_seconds
from django_redislock.cli.locks import clear, prune_fences, show_list, show_lock, show_pool, system_user
from django_redislock.cli.output import Output
from django_redislock.cli.run import run_program
from django_redislock.jobs.locked_command import BUSY, LOST, UNAVAILABLE, quiet_when_busy
from django_redislock.store.aliases import lock_aliases

T = TypeVar("T")

STATUSES = (
    f"Exit status: the program's own; 128 + n if signal n ended it; {BUSY} if somebody else holds the lock; {LOST} if "
    f"the lock was lost while the program ran, which is then ended; {UNAVAILABLE} if Redis cannot be reached; 127 if "
    f"there is no such program, 126 if it cannot be executed; 2 if the arguments or the settings are wrong."
)


class Command(BaseCommand):
    help = "Shows the locks that are held, force-releases locks, and runs programs under a lock."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        _add_subcommands(parser)

    def handle(self, *args: Any, function: Callable[..., None], **options: Any) -> None:
        output = Output(self)
        try:
            with quiet_when_busy(self, options["verbosity"]):
                function(output, **options)
        except LockUnavailable as error:
            more = not options.get("using") and len(lock_aliases()) > 1
            text = f"{error}{' (With --using, only one alias is asked.)' * more}"
            raise CommandError(text, returncode=UNAVAILABLE) from error  # 1 says that nobody holds a lock
        except ImproperlyConfigured as error:  # an alias that is unknown, say
            raise CommandError(str(error), returncode=2) from error
        except KeyboardInterrupt:
            if not output.from_shell:
                raise
            sys.exit(128 + signal.SIGINT)


class SubcommandParser(CommandParser):
    """``takes_program``: what follows ``--`` is a program with its arguments, and is not parsed."""

    takes_program = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.takes_program:
            return super().parse_known_args(args, namespace)
        end = args.index("--") if "--" in args else len(args)
        if args[end + 2 : end + 3] == ["--"] and args[end + 1].startswith("-"):
            end += 2  # a name that begins with a dash
        parsed: Namespace
        parsed, rest = super().parse_known_args(args[:end], namespace)
        parsed.program = args[end + 1 :]
        if not any(parsed.program[:1]) and not any(word.startswith("-") for word in rest):  # argparse reports those
            self.error("the program to run must follow --, as in: run nightly -- make report")
        return parsed, rest


def _valid(check: Callable[[str], T]) -> Callable[[str], T]:
    """``check`` as argparse wants it, which shows the text of no other error than its own."""

    def read(text: str) -> T:
        try:
            return check(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def _seconds(check: Callable[[object, str], float], text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds") from None
    return check(number, "it")


def _age(text: str) -> timedelta:
    found = re.fullmatch(r"([1-9]\d{0,4})d", text)  # calendars begin somewhere
    if found is None:
        raise ValueError(f"must be a number of days such as 30d, not {text!r}")
    return timedelta(days=int(found[1]))


def _number(text: str, least: int = 1, most: float = math.inf) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        bounds = f"from {least} to {most}" if most < math.inf else f"{least} or more"
        raise ValueError(f"must be a whole number, {bounds}, not {text!r}")
    return int(text)


def _add_subcommands(parser: CommandParser) -> None:
    """Add the subcommands. Django's own options may stand after each of them, too."""
    base = [action for action in parser._actions if action.dest != "help"]
    subparsers = parser.add_subparsers(
        dest="subcommand", metavar="SUBCOMMAND", required=True, parser_class=SubcommandParser
    )

    def subcommand(
        name: str, function: Callable[..., None], *, format: bool = False, using: str = "all that have locks"
    ) -> Any:
        """The docstring of ``function`` is the help. ``using``: which aliases it means by default."""
        help = " ".join((function.__doc__ or "").split())
        added = subparsers.add_parser(name, help=help, description=help, formatter_class=parser.formatter_class)
        added.set_defaults(function=function)
        for action in base:
            again = copy(action)
            again.default = SUPPRESS
            added._add_action(again)
        if format:
            added.add_argument(
                "--format", choices=["table", "json"], default="table", help="table: for people; json: for programs."
            )
        if using:
            added.add_argument("--using", metavar="ALIAS", help=f"Alias in CACHES; by default {using}.")
        return added

    lock_name = _valid(check_name)
    time: dict[str, Any] = {"metavar": "SECONDS", "type": _valid(partial(_seconds, partial(seconds, least=0)))}

    add = subcommand("list", show_list, format=True).add_argument
    add("pattern", metavar="PATTERN", nargs="?", default="*", help="Shell-style pattern of names, e.g. 'order:*'.")
    add(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_valid(partial(_seconds, seconds)),
        const=2.0,
        help="Repeat every SECONDS (default 2) until interrupted. JSON: one line each time.",
    )

    add = subcommand("show", show_lock, format=True).add_argument
    add("name", metavar="NAME", type=lock_name, help="The lock to show.")

    add = subcommand("pool", show_pool, format=True).add_argument
    pool_name = _valid(lambda text: LockPool(text).name)
    add("name", metavar="NAME", nargs="?", type=pool_name, help="The pool to show; without it, all are listed.")

    add = subcommand("clear", clear).add_argument
    add("names", metavar="NAME", nargs="*", type=lock_name, help="A lock to force-release.")
    add("--match", metavar="PATTERN", help="All held locks whose names match, e.g. 'order:*'.")
    add("--all", action="store_true", help="All held locks.")
    add(
        "--permit",
        metavar="FENCE",
        type=_valid(_number),
        help="Of one semaphore, only the permit with this fence (see show).",
    )
    add("--dry-run", action="store_true", help="Only show what would be force-released.")
    add("--noinput", "--no-input", action="store_false", dest="interactive", help="Do not ask for confirmation.")
    add(
        "--user",
        metavar="USERNAME",
        help="The site's user under whom the admin's history records this (default: the one with the name of the "
        f"system's user, {system_user()}).".replace("%", "%%"),
    )

    add = subcommand("fences", prune_fences, using="").add_argument
    add("action", choices=["prune"], help="prune: delete the rows of names not claimed for long.")
    add(
        "--older-than",
        metavar="AGE",
        type=_valid(_age),
        required=True,
        help="Days since the latest claim, such as 30d. Give more than the longest time for which a process may be "
        "stopped: a holder that was stopped for longer before its claim could write.",
    )
    add("--dry-run", action="store_true", help="Only say how many rows would be deleted.")
    add(
        "--database",
        metavar="ALIAS",
        choices=tuple(connections),
        default=DEFAULT_DB_ALIAS,
        help=f"Alias in DATABASES; by default {DEFAULT_DB_ALIAS!r}.",
    )

    run = subcommand("run", run_program, using="the one in REDISLOCK['CACHE']")
    run.takes_program, run.epilog = True, STATUSES
    run.usage = "%(prog)s [OPTIONS] NAME -- PROGRAM [ARGUMENT ...]"
    add = run.add_argument
    add("name", metavar="NAME", type=lock_name, help="The lock to acquire.")
    add(
        "--limit",
        metavar="N",
        type=_valid(_number),
        help="Let at most N such programs run at once, under the semaphore NAME; without it, one, under the lock.",
    )
    add(
        "--ttl",
        metavar="SECONDS",
        type=_valid(partial(_seconds, ttl_seconds)),
        help="Seconds until Redis frees the lock if this process is killed (kill -9).",
    )
    add("--blocking-timeout", **time, default=0.0, help="Wait at most this long for a busy lock (default 0).")
    add(
        "--stay",
        action="store_true",
        help="Stand by, in silence and without end, until no other machine runs it, and again after the lock was lost: "
        "of many machines, one runs the program, and the next one takes over when it ends or dies.",
    )
    add(
        "--at-least",
        **time,
        default=0.0,
        help="Hold the lock at least this long, even if the program ends sooner. Choose more than the clock skew "
        "between the machines that start it at the same minute.",
    )
    add(
        "--kill-after",
        **time,
        default=10.0,
        help="Seconds between SIGTERM and SIGKILL for a program whose lock is lost (default 10; with --stay at most a "
        "quarter of the TTL).",
    )
    add(
        "-E",
        "--conflict-exit-code",
        metavar="STATUS",
        type=_valid(partial(_number, least=0, most=255)),
        default=BUSY,
        help=f"Exit status if the lock is busy (default {BUSY}).",
    )
