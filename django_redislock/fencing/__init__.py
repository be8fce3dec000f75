"""The fence of a lock, checked by the database: an older holder of a name cannot write behind a younger one's back."""

from __future__ import annotations

from .claim import prune
from .field import FencedManager, FencedQuerySet, FencedRows, FenceField

__all__ = ["FenceField", "FencedManager", "FencedQuerySet", "FencedRows", "prune"]
