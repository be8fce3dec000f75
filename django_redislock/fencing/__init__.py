"""The fence of a lock, checked by the database: an older holder of a name cannot write behind a younger one's back."""

from __future__ import annotations

from .claim import Pruned, begin, claim, is_missing, open_together, prune
from .field import FencedManager, FencedQuerySet, FenceField
from .table import MARK, TABLE, remedy

__all__ = [
    "MARK",
    "TABLE",
    "FenceField",
    "FencedManager",
    "FencedQuerySet",
    "Pruned",
    "begin",
    "claim",
    "is_missing",
    "open_together",
    "prune",
    "remedy",
]
