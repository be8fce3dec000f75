"""``manage.py redislocks``: see who holds which lock, force-release locks, and run programs under a lock."""

from __future__ import annotations

import signal
import sys
from argparse import SUPPRESS, Action
from collections.abc import Sequence
from copy import copy
from types import ModuleType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock import LockUnavailable
from django_redislock.cli import clear, fences, pool, run, show
from django_redislock.cli import list_locks as listing
from django_redislock.cli.arguments import SubcommandParser, other_aliases
from django_redislock.cli.output import Output
from django_redislock.jobs.locked_command import UNAVAILABLE, quiet_when_busy, status_kept

# each has HELP, add_arguments(parser), and handle(output, **options)
SUBCOMMANDS: dict[str, ModuleType] = {
    "list": listing,
    "show": show,
    "pool": pool,
    "clear": clear,
    "fences": fences,
    "run": run,
}


class Command(BaseCommand):
    help = "Shows the locks that are held, force-releases locks, and runs programs under a lock."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        base = list(parser._actions)
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="SUBCOMMAND", required=True, parser_class=SubcommandParser
        )
        for name, module in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(
                name, help=module.HELP, description=module.HELP, formatter_class=parser.formatter_class
            )
            module.add_arguments(subparser)
            _repeat(base, subparser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        with status_kept(self):
            return super().execute(*args, **options)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        output = Output(self)
        try:
            with quiet_when_busy(self, options["verbosity"]):
                SUBCOMMANDS[subcommand].handle(output, **options)
        except LockUnavailable as error:
            text = f"{error}{other_aliases(options.get('using'))}"
            raise CommandError(text, returncode=UNAVAILABLE) from error  # 1 says that nobody holds a lock
        except ImproperlyConfigured as error:  # an alias that is unknown, say
            raise CommandError(str(error), returncode=2) from error
        except KeyboardInterrupt:
            if not output.from_shell:
                raise
            sys.exit(128 + signal.SIGINT)


def _repeat(actions: Sequence[Action], parser: CommandParser) -> None:
    """Accept Django's own options after the subcommand too, not only before it."""
    for action in actions:
        if action.dest != "help":
            again = copy(action)
            again.default = SUPPRESS
            parser._add_action(again)
