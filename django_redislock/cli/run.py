"""``redislocks run``: a program under a lock."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from ..base.display import printable
from ..jobs.locked_command import BUSY, LOST, UNAVAILABLE, held
from ..lock import Lock
from ..store.stores import get_store
from .arguments import SubcommandParser, add_using, exit_status, name_of_lock, not_negative, ttl_of, warn_of_memory
from .output import Output
from .program import Program, Relay, has_terminal

CANNOT_RUN, NOT_FOUND = 126, 127  # as shells say it

HELP = "Run a program under a lock and exit with its status. The lock is renewed while the program runs."
STATUSES = (
    f"Exit status: the program's own; 128 + n if signal n ended it; {BUSY} if somebody else holds the lock; {LOST} if "
    f"the lock was lost while the program ran, which is then ended; {UNAVAILABLE} if Redis cannot be reached; 127 if "
    f"there is no such program, 126 if it cannot be executed; 2 if the arguments or the settings are wrong."
)


def add_arguments(parser: CommandParser) -> None:
    assert isinstance(parser, SubcommandParser)
    parser.takes_program = True
    parser.usage = "%(prog)s [OPTIONS] NAME -- PROGRAM [ARGUMENT ...]"
    parser.epilog = STATUSES
    parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to acquire.")
    parser.add_argument(
        "--ttl",
        metavar="SECONDS",
        type=ttl_of,
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
    add_using(parser, "the one in REDISLOCK['CACHE']")


def handle(
    output: Output,
    *,
    name: str,
    program: Sequence[str],
    ttl: float | None,
    blocking_timeout: float,
    at_least: float,
    kill_after: float,
    conflict_exit_code: int,
    using: str | None,
    **options: Any,
) -> None:
    store = get_store(using)
    if store.memory and not settings.DEBUG:
        raise CommandError(
            f"Not run: the cache alias {store.alias!r} is not Redis, so the lock would guard this process only. Name "
            f"an alias with a Redis in REDISLOCK['CACHE'], or with --using.",
            returncode=2,
        )
    warn_of_memory(output, store)
    relay = Relay()
    lock = Lock(
        name,
        ttl=ttl,
        blocking_timeout=blocking_timeout,
        auto_renew=True,
        on_lost=lambda error: relay.look(),
        using=using,
        # without its arguments, which may hold secrets
        purpose=f"redislocks run {os.path.basename(program[0])}",
    )
    with relay, held(lock, busy_status=conflict_exit_code, at_least=at_least):
        environment = {**os.environ, "REDISLOCK_NAME": name, "REDISLOCK_FENCE": str(lock.fence)}
        shared = has_terminal()
        try:
            running = relay.start(lambda: Program(program, environment, shared=shared, kill_after=kill_after))
        except OSError as error:
            status = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            raise CommandError(
                f"Cannot run {printable(program[0])}: {error.strerror or error}.", returncode=status
            ) from error
        status = running.wait(lambda: lock.lost, lock.remaining)
    if status:
        sys.exit(status)
