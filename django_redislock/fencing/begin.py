"""BEGIN and claim as one step: what begins here is a transaction that nobody younger has overtaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..base.steps import run
from ..engine import Lease, draw_new_fence
from ..exceptions import LockLost
from .claim import Overtaken, claim, claims_on, is_conflict

TRIES = 10  # a stale transaction makes one try more necessary; more come from first claims of neighbouring rows


def begin(
    aliases: Sequence[str],
    lease: Lease,
    *,
    beside: Sequence[str] = (),
    durable: bool = False,
    required: bool = False,
) -> ExitStack:
    """Open a transaction on each alias, the first outermost, and claim the lock where it is fenced.

    ``beside``: where somebody else has begun already. ``required``: it must be fenced somewhere; see claims_on().

    Nothing of the block has run yet, so when the database refuses a claim that has waited, this starts over. If the
    database is ahead of Redis (after a restore, for instance), the lock draws a new fence, once. Otherwise raises
    LockLost, or LockUnavailable if a stale transaction does not end. Closing the result commits, or rolls back.
    """
    claiming = claims_on(lease, [*beside, *aliases], required=required)
    for alias in beside:
        if alias in claiming:
            claim(lease, alias)

    def claim_there(alias: str) -> None:
        if alias in claiming:
            claim(lease, alias, first=True)

    tries, raised = 0, False
    while True:
        tries += 1
        try:
            return open_together(aliases, durable, claim_there)
        except Overtaken as refusal:
            if raised:
                raise
            raised = True
            try:
                run(draw_new_fence(lease))
            except LockLost:
                raise refusal from None
        except DatabaseError as error:
            if tries >= TRIES or not is_conflict(error):
                raise


def open_together(
    aliases: Sequence[str], durable: bool = False, begun: Callable[[str], object] = lambda alias: None
) -> ExitStack:
    """Open the transactions; ``begun`` is told of each before the next one. If it raises, all are rolled back.

    Their callbacks of ``on_commit()`` run when all have committed. (Where Django nests transactions, one that raises
    comes between two COMMITs, and rolls back what is not committed yet.)
    """
    with ExitStack() as opened:
        for alias in aliases:
            opened.enter_context(transaction.atomic(using=alias, durable=durable))
            begun(alias)
        opened.callback(_leave_callbacks_to_the_last, [connections[alias] for alias in aliases])
        return opened.pop_all()


def _leave_callbacks_to_the_last(opened: list[BaseDatabaseWrapper]) -> None:
    for connection in opened[1:]:
        if _will_commit(connection) and _will_commit(opened[0]):
            opened[0].run_on_commit[:0] = connection.run_on_commit
            connection.run_on_commit = []


def _will_commit(connection: BaseDatabaseWrapper) -> bool:
    """False in a test case, after ``set_rollback()``, and with autocommit off."""
    return connection.commit_on_exit and not (connection.savepoint_ids or connection.needs_rollback)
