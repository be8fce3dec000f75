"""``redislocks run``: a program under a lock."""

from __future__ import annotations

import os
from collections.abc import Sequence

from django.core.management.base import CommandError

from ..display import printable
from ..jobs.locked_command import held
from ..lock import Lock
from .program import Program, Relay, has_terminal

CANNOT_RUN, NOT_FOUND = 126, 127  # as shells say it


def run(
    name: str,
    arguments: Sequence[str],
    *,
    ttl: float | None,
    blocking_timeout: float,
    at_least: float,
    kill_after: float,
    busy_status: int,
    using: str | None,
) -> int:
    """Run a program under the lock ``name``; return its exit status, 128 + n if signal n ended it.

    Raises CommandError, with a ``returncode`` of its own each, when the lock is busy (LockBusy) or was lost, when Redis
    cannot be reached, and when the program cannot be started.
    """
    relay = Relay()
    lock = Lock(
        name,
        ttl=ttl,
        blocking_timeout=blocking_timeout,
        auto_renew=True,
        on_lost=lambda error: relay.look(),
        using=using,
        # without its arguments, which may hold secrets
        purpose=f"redislocks run {os.path.basename(arguments[0])}",
    )
    with relay, held(lock, busy_status=busy_status, at_least=at_least):
        environment = {**os.environ, "REDISLOCK_NAME": name, "REDISLOCK_FENCE": str(lock.fence)}
        shared = has_terminal()
        try:
            program = relay.start(lambda: Program(arguments, environment, shared=shared, kill_after=kill_after))
        except OSError as error:
            status = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            raise CommandError(
                f"Cannot run {printable(arguments[0])}: {error.strerror or error}.", returncode=status
            ) from error
        return program.wait(lambda: lock.lost, lock.remaining)
