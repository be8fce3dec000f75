"""BEGIN and claim as one step: what begins here is a transaction that nobody younger has overtaken."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from django.db import DatabaseError, transaction

from ..engine import Lease, raise_fence
from ..steps import run
from .claim import Overtaken, claim, claims_on, is_conflict

TRIES = 10  # a stale transaction makes one try more necessary; more come from first claims of neighbouring rows


def begin(
    aliases: Sequence[str],
    lease: Lease | None,
    *,
    beside: Sequence[str] = (),
    durable: bool = False,
    required: bool = False,
) -> ExitStack:
    """Open a transaction on each alias, the first outermost, and claim the lock where it is fenced.

    ``beside``: where somebody else has begun already. ``required``: it must be fenced somewhere; see claims_on().

    Nothing of the block has run: where the database refuses a claim that has waited, all is begun again.
    Where it is ahead of Redis (after a restore, say), the lock takes a new fence, once. Raises LockLost otherwise;
    LockUnavailable where a stale transaction stands still. Closing the result commits, or rolls back.
    """
    claiming = [] if lease is None else claims_on(lease, [*beside, *aliases], required=required)
    for alias in beside:
        if lease is not None and alias in claiming:
            claim(lease, alias)
    tries, raised = 0, False
    while True:
        tries += 1
        try:
            with ExitStack() as opened:
                for alias in aliases:
                    opened.enter_context(transaction.atomic(using=alias, durable=durable))
                    if alias in claiming and lease is not None:
                        claim(lease, alias, first=True)
                return opened.pop_all()
        except Overtaken:
            if raised or lease is None:
                raise
            raised = True
            run(raise_fence(lease))
        except DatabaseError as error:
            if tries >= TRIES or not is_conflict(error):
                raise
