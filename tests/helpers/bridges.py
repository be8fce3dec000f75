"""Sync code that tasks call, and what it is told of a lock."""

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
    """Called in a thread for a task of the running loop, it does not begin before the task has begun to wait for it."""
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
    """Whether this thread or task owns the lock, by what the object says without asking Redis."""
    known = lock.token is not None, fence_of(lock) is not None
    assert len(set(known)) == 1
    return known[0]


async def aowns(lock: Lock) -> bool:
    """The same in a coroutine, where Redis has to agree."""
    assert await lock.aowned() is owns(lock)
    return owns(lock)


def refuses(lock: Lock) -> bool:
    """Whether everything that needs the lock is refused here, as to somebody who never held it."""
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
    with pytest.raises(LockNotOwned):
        lock.check()
    return not await aowns(lock)
