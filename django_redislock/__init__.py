"""Distributed locks for Django, through the Redis connection that the site already has in ``CACHES``."""

from __future__ import annotations

from .base.names import lock_digest, lock_name
from .cached_values import alocked_get_or_set, locked_get_or_set
from .exceptions import LockError, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from .inspection.info import (
    LockInfo,
    LockStatus,
    SuspensionInfo,
    WaiterInfo,
    aforce_release,
    aget_lock,
    force_release,
    get_lock,
)
from .inspection.lists import PoolInfo, PoolSummary, alist_locks, alist_pools, list_locks, list_pools
from .jobs import LockedCommand, locked
from .leader import leader
from .lock import FairLock, Lock
from .lock_set import LockSet
from .pool import LockPool, PoolMember
from .semaphore import Semaphore
from .signals import lock_acquired, lock_force_released, lock_lost, lock_not_acquired, lock_released
from .values import ConditionalValue, Counter
from .web import limited_view, locked_atomic, locked_view

__version__ = "0.1.0"

__all__ = [
    "ConditionalValue",
    "Counter",
    "FairLock",
    "Lock",
    "LockError",
    "LockInfo",
    "LockLost",
    "LockNotAcquired",
    "LockNotOwned",
    "LockPool",
    "LockSet",
    "LockStatus",
    "LockUnavailable",
    "LockedCommand",
    "PoolInfo",
    "PoolMember",
    "PoolSummary",
    "Semaphore",
    "SuspensionInfo",
    "WaiterInfo",
    "aforce_release",
    "aget_lock",
    "alist_locks",
    "alist_pools",
    "alocked_get_or_set",
    "force_release",
    "get_lock",
    "leader",
    "limited_view",
    "list_locks",
    "list_pools",
    "lock_acquired",
    "lock_digest",
    "lock_force_released",
    "lock_lost",
    "lock_name",
    "lock_not_acquired",
    "lock_released",
    "locked",
    "locked_atomic",
    "locked_get_or_set",
    "locked_view",
]
