"""Redis locks in the admin."""

from __future__ import annotations

from .fence_admin import FenceAdmin
from .lock_admin import LockAdmin

__all__ = ["FenceAdmin", "LockAdmin"]
