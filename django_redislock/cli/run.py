"""``redislocks run``: a program under a lock."""

from __future__ import annotations

import os
from collections.abc import Sequence

from django.core.management.base import CommandError

from ..commands import taken
from ..lock import FairLock, Lock
from ..texts import printable
from .program import Program, Relay, has_terminal

CANNOT_RUN, NOT_FOUND = 126, 127  # as shells say it


def run(
    name: str,
    arguments: Sequence[str],
    *,
    ttl: float | None,
    wait: float,
    fair: bool,
    at_least: float,
    kill_after: float,
    busy_status: int,
    using: str | None,
) -> int:
    """Run a program under the lock ``name``; answers its exit status, 128 + n when signal n has ended it.

    Raises CommandError, with a ``returncode`` of its own each, when the lock is busy (LockBusy) or was lost, when Redis
    cannot be reached, and when the program cannot be started.
    """
    relay = Relay()
    lock = (FairLock if fair else Lock)(
        name,
        ttl=ttl,
        blocking_timeout=wait,
        auto_renew=True,
        on_lost=lambda error: relay.look(),
        using=using,
    )
    # not with its arguments, which may hold what is nobody's business
    lock.purpose = f"redislocks run {os.path.basename(arguments[0])}"
    with relay, taken(lock, busy_status=busy_status, at_least=at_least):
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
