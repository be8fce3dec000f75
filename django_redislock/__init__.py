"""Distributed locks for Django, through the Redis connection that the site already has in ``CACHES``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base.names import lock_digest, lock_name
from .exceptions import LockError, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from .signals import lock_acquired, lock_force_released, lock_lost, lock_not_acquired, lock_released

if TYPE_CHECKING:
    from .cached_values import alocked_get_or_set, locked_get_or_set
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
    from .jobs.locked import locked
    from .jobs.locked_command import LockedCommand
    from .leadership import leader
    from .lock import FairLock, Lock
    from .lock_set import LockSet
    from .pool import LockPool, PoolMember
    from .semaphore import Semaphore
    from .values import ConditionalValue, Counter
    from .web.locked_atomic import locked_atomic
    from .web.locked_view import limited_view, locked_view
else:
    # a module is imported when one of its names is: a site has in memory what it uses
    _NAMES_IN = {
        "cached_values": "alocked_get_or_set locked_get_or_set",
        "inspection.info": "LockInfo LockStatus SuspensionInfo WaiterInfo "
        "aforce_release aget_lock force_release get_lock",
        "inspection.lists": "PoolInfo PoolSummary alist_locks alist_pools list_locks list_pools",
        "jobs.locked": "locked",
        "jobs.locked_command": "LockedCommand",
        "leadership": "leader",
        "lock": "FairLock Lock",
        "lock_set": "LockSet",
        "pool": "LockPool PoolMember",
        "semaphore": "Semaphore",
        "values": "ConditionalValue Counter",
        "web": "limited_view locked_atomic locked_view",
    }

    def __getattr__(name: str) -> Any:
        for module, names in _NAMES_IN.items():
            if name in names.split():
                return globals().setdefault(name, getattr(import_module(f".{module}", __name__), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
