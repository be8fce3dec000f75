"""A job that holds its lock and runs, as the code that it runs finds it."""

from __future__ import annotations

import math
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from ..base.steps import run
from ..engine import detach
from ..exceptions import LockError
from ..lock import Lock


class Running:
    __slots__ = ("id", "kept", "kind", "lock", "marked")

    def __init__(self, kind: Any, id: str, lock: Lock) -> None:
        self.kind, self.id, self.lock = kind, id, lock  # its kind: a JobLock, which makes these
        self.kept = False  # the lock, for the next run
        self.marked = False  # as ended

    def keep_for_next(self, wait: float = 0.0, most: float = math.inf) -> None:
        """Leave the lock to the next run of the same job. See JobLock.enqueue()."""
        if self.kind.from_enqueue and not self.kept:
            with suppress(LockError):  # it is lost, or Redis away: then the next run acquires it like a new one
                leave(self.lock, min(wait + self.kind.queued_ttl, most))
                self.kept = True


def leave(lock: Lock, seconds: float) -> None:
    """Leave the lock to the next run. Nobody is told that it is held, so no replica has to acknowledge that."""
    run(detach(lock._held("detach"), seconds, acknowledged=False))


current: ContextVar[Running | None] = ContextVar("django_redislock.running_job", default=None)


def running_job(id: str | None) -> Running | None:
    """The job of this id, if it runs in this context."""
    found = current.get()
    return found if found is not None and found.id == id else None
