"""Forgetting names that nobody has claimed for long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .begin import TRIES
from .claim import is_conflict
from .table import MARK, MARK_NAME, bounded, fences, insert

BATCH = 1000  # rows that are deleted in one transaction
WITHIN = 10.0  # seconds to wait for those who claim a name for the first time just now


class Pruned(NamedTuple):
    """How many rows were (or would be) deleted, and how many are left."""

    deleted: int
    left: int


def prune(older_than: timedelta, *, using: str = "default", dry_run: bool = False) -> Pruned:
    """Delete the rows of names whose latest claim is longer ago; return how many, and how many are left.

    What must not happen: A stalls before its claim, B claims and commits, B's row is deleted, A wakes, finds no row,
    and writes. So the highest fence of all deleted rows stays behind in a row of its own, and a name without a row is
    open only to higher fences (see write_fence()). Whoever looks at that row for a new name keeps it shared until
    COMMIT, and this waits for them; those who come later see it raised. So A is refused, however long it stalled.
    """
    rows = fences().using(using).exclude(key=MARK)
    old = rows.filter(claimed__lt=timezone.now() - older_than)
    if dry_run:
        count = old.count()
        return Pruned(count, rows.count() - count)
    deleted = tries = 0
    insert(connections[using], MARK, MARK_NAME, 0)
    while True:
        try:
            count = _prune_batch(old, using)
        except DatabaseError as error:  # somebody has claimed one of the names since the transaction began
            tries += 1
            if tries == TRIES or not is_conflict(error):
                raise
        else:
            deleted += count
            if count < BATCH:
                return Pruned(deleted, rows.count())


def _prune_batch(old: QuerySet[Any], using: str) -> int:
    skips = connections[using].features.has_select_for_update_skip_locked  # those that are being claimed just now
    with transaction.atomic(using=using), bounded(connections[using], WITHIN):
        marked = fences().using(using).filter(key=MARK)
        marked.update(claimed=timezone.now())  # first: SQLite lets nobody write who has read before others wrote
        highest = marked.select_for_update().get().fence
        # locked, so that nobody claims them between the look and the deletion
        batch = dict(old.select_for_update(skip_locked=skips).order_by("key").values_list("key", "fence")[:BATCH])
        marked.update(fence=max([highest, *batch.values()]))
        deleted: int = fences().using(using).filter(key__in=batch).delete()[0]
        return deleted
