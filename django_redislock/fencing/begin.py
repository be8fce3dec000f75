"""BEGIN and claim as one step: what begins here is a transaction that nobody younger has overtaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from django.db import DatabaseError, transaction

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
            return _open(aliases, durable, claim_there)
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


def _open(aliases: Sequence[str], durable: bool, begun: Callable[[str], object]) -> ExitStack:
    """Open the transactions; ``begun`` is told of each before the next one. If it raises, all are rolled back."""
    with ExitStack() as opened:
        for alias in aliases:
            opened.enter_context(transaction.atomic(using=alias, durable=durable))
            begun(alias)
        return opened.pop_all()
