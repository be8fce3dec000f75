"""Inspecting locks from outside, and force-releasing them."""

from __future__ import annotations

from .info import LockInfo, LockStatus, SuspensionInfo, WaiterInfo, aget_lock, get_lock
from .intervention import aforce_release, force_release
from .listing import alist_locks, list_locks
from .pools import PoolInfo, PoolSummary, alist_pools, list_pools

__all__ = [
    "LockInfo",
    "LockStatus",
    "PoolInfo",
    "PoolSummary",
    "SuspensionInfo",
    "WaiterInfo",
    "aforce_release",
    "aget_lock",
    "alist_locks",
    "alist_pools",
    "force_release",
    "get_lock",
    "list_locks",
    "list_pools",
]
