"""Inspecting locks from outside, and force-releasing them."""

from __future__ import annotations

from .info import (
    LockInfo,
    LockStatus,
    SuspensionInfo,
    WaiterInfo,
    aforce_release,
    aget_lock,
    force_release,
    get_lock,
)
from .lists import PoolInfo, PoolSummary, alist_locks, alist_pools, list_locks, list_pools

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
