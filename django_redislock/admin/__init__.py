"""Redis locks in the admin."""

from __future__ import annotations

from .lock_admin import LockAdmin

__all__ = ["LockAdmin"]
