"""The views of views.py as coroutines. Waiting for a lock blocks no thread; database queries run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache as kept
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from redis.asyncio import Redis

from . import views
from .settings import REDIS_URL
from .views import CACHE_LOCK_SECONDS, View, crowded

P = ParamSpec("P")
R = TypeVar("R")


async def to_the_end(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` in a thread, and wait for its end even when cancelled: the client is gone, but the thread still
    runs.

    Without this, the lock around it would be released while the thread is still selling.
    """
    work = asyncio.ensure_future(sync_to_async(function)(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def sell(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(views.sell, request, pk)


async def charge(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(views.charge, request, pk)


def cache_locked(name: str, *, blocking_timeout: float) -> Callable[[View], View]:
    """With redis.asyncio's lock: django-redis has none for coroutines."""

    def decorate(view: View) -> View:
        async def locked(request: HttpRequest, pk: int) -> HttpResponse:
            key = cache.make_key(name.format(pk=pk))
            lock = redis().lock(key, timeout=CACHE_LOCK_SECONDS, blocking_timeout=blocking_timeout)
            if not await lock.acquire():
                return crowded()
            try:
                return await view(request, pk)  # type: ignore[no-any-return]
            finally:
                await lock.release()

        return locked

    return decorate


@kept
def redis() -> Redis:
    """The connections of this process, which has one event loop."""
    return Redis.from_url(REDIS_URL)
