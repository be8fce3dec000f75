"""Redis locks in the admin."""

from __future__ import annotations

from .lock_admin import FenceAdmin, LockAdmin

__all__ = ["FenceAdmin", "LockAdmin"]
