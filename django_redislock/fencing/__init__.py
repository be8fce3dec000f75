"""The fence of a lock, checked by the database: an older holder of a name cannot write behind a younger one's back."""

from __future__ import annotations

from .begin import begin, open_together
from .claim import claim, is_missing
from .field import FencedManager, FencedQuerySet, FenceField
from .prune import Pruned, prune
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
