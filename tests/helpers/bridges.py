"""How tasks call sync code: in asgiref's one thread, in one of its others, or as asyncio does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async

from .actors import GENEROUS

InThread = Callable[..., Awaitable[Any]]


def settled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Begins only after the task has begun to wait for it."""
    loop, waits = asyncio.get_running_loop(), threading.Event()

    def call() -> Any:
        loop.call_soon_threadsafe(waits.set)
        assert waits.wait(GENEROUS)
        return function(*args, **kwargs)

    return call


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await sync_to_async(settled(function, *args, **kwargs))()


async def in_any_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await sync_to_async(settled(function, *args, **kwargs), thread_sensitive=False)()


async def to_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(settled(function, *args))
