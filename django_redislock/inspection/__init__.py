"""Inspecting locks from outside, and force-releasing them."""

from __future__ import annotations

from .force import aforce_release, force_release
from .info import LockInfo, LockStatus, SuspensionInfo, WaiterInfo, aget_lock, get_lock
from .listing import alist_locks, list_locks

__all__ = [
    "LockInfo",
    "LockStatus",
    "SuspensionInfo",
    "WaiterInfo",
    "aforce_release",
    "aget_lock",
    "alist_locks",
    "force_release",
    "get_lock",
    "list_locks",
]
