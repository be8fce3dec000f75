"""``manage.py redislocks``: see who holds which lock, force-release locks, and run programs under a lock."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_redislock import LockUnavailable
from django_redislock.cli.arguments import add_arguments
from django_redislock.cli.clear import clear, prune_fences
from django_redislock.cli.looking import show_list, show_lock, show_pool
from django_redislock.cli.output import Output
from django_redislock.cli.run import run_program
from django_redislock.jobs.locked_command import UNAVAILABLE, quiet_when_busy, status_kept
from django_redislock.store.stores import get_stores

SUBCOMMANDS: dict[str, Callable[..., None]] = {
    "list": show_list,
    "show": show_lock,
    "pool": show_pool,
    "clear": clear,
    "fences": prune_fences,
    "run": run_program,
}


class Command(BaseCommand):
    help = "Shows the locks that are held, force-releases locks, and runs programs under a lock."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        with status_kept(self):
            return super().execute(*args, **options)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        output = Output(self)
        try:
            with quiet_when_busy(self, options["verbosity"]):
                SUBCOMMANDS[subcommand](output, **options)
        except LockUnavailable as error:
            more = not options.get("using") and len(get_stores()) > 1
            text = f"{error}{' (With --using, only one alias is asked.)' * more}"
            raise CommandError(text, returncode=UNAVAILABLE) from error  # 1 says that nobody holds a lock
        except ImproperlyConfigured as error:  # an alias that is unknown, say
            raise CommandError(str(error), returncode=2) from error
        except KeyboardInterrupt:
            if not output.from_shell:
                raise
            sys.exit(128 + signal.SIGINT)
