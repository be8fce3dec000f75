"""Helpers for sync code that is called by tasks: how it is called, and whether it owns a lock."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async

from django_redislock import Lock, LockLost, LockNotOwned

from .actors import GENEROUS
from .state import fence_of

T = TypeVar("T")
InThread = Callable[..., Awaitable[Any]]


def settled(function: Callable[..., T]) -> Callable[..., T]:
    """When called in a thread for a task, ``call`` begins only after the task has begun to wait for it."""
    loop = asyncio.get_running_loop()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        waits = threading.Event()
        loop.call_soon_threadsafe(waits.set)
        assert waits.wait(GENEROUS)
        return function(*args, **kwargs)

    return call


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function in asgiref's one thread, on behalf of the task that awaits this."""
    return await sync_to_async(settled(function))(*args, **kwargs)


async def in_any_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The same in one of several threads."""
    return await sync_to_async(settled(function), thread_sensitive=False)(*args, **kwargs)


async def to_thread(function: Callable[..., T], *args: Any) -> T:
    """The same as asyncio does it."""
    return await asyncio.to_thread(settled(function), *args)


def owns(lock: Lock) -> bool:
    """Whether this thread or task owns the lock, as far as the object can tell without asking Redis."""
    assert (lock.token is None) == (fence_of(lock) is None)
    return lock.token is not None


async def aowns(lock: Lock) -> bool:
    """The same in a coroutine; Redis must agree."""
    assert await lock.aowned() is owns(lock)
    return owns(lock)


def refuses(lock: Lock) -> bool:
    """Whether all methods that need the lock are refused here, as if this caller had never held it."""
    for call in (lock.release, lambda: lock.extend(1), lock.reacquire, lock.detach, lock.check):
        with pytest.raises(LockNotOwned) as caught:
            call()
        assert not isinstance(caught.value, LockLost)
    return not owns(lock) and not lock.owned()


async def arefuses(lock: Lock) -> bool:
    """The same for a coroutine."""
    for call in (lock.arelease, lambda: lock.aextend(1), lock.areacquire, lock.adetach):
        with pytest.raises(LockNotOwned) as caught:
            await call()
        assert not isinstance(caught.value, LockLost)
    return not await aowns(lock)
