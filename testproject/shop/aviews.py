"""The views of views.py as coroutines. Waiting for a lock blocks no thread; database queries run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import cache as site_cache
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST
from redis.asyncio import Redis, RedisCluster

from django_redislock import locked_view

from .responses import charge_order, crowded, sell_seat
from .settings import CLUSTER, REDIS_URL
from .views import CACHE_LOCK_SECONDS, PATIENCE, index

__all__ = [
    "buy",
    "buy_cache_lock",
    "buy_now",
    "buy_now_cache_lock",
    "buy_unlocked",
    "index",
    "pay",
    "pay_cache_lock",
    "pay_unlocked",
]

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


# -- with our lock ----------------------------------------------------------------------------------------------------


@require_POST
@locked_view("seats:{pk}", blocking_timeout=PATIENCE)
async def buy(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
@locked_view("seats:{pk}")
async def buy_now(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
@locked_view("order:{pk}")
async def pay(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(charge_order, request, pk)


# -- without a lock ---------------------------------------------------------------------------------------------------


@require_POST
async def buy_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
async def pay_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(charge_order, request, pk)


# -- with redis.asyncio's lock: django-redis has none for coroutines --------------------------------------------------


@require_POST
async def buy_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    return await under_redis_lock(f"seats:{pk}", PATIENCE, sell_seat, request, pk)


@require_POST
async def buy_now_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    return await under_redis_lock(f"seats:{pk}", 0, sell_seat, request, pk)


@require_POST
async def pay_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    return await under_redis_lock(f"order:{pk}", 0, charge_order, request, pk)


async def under_redis_lock(
    name: str, patience: float, view: Callable[[HttpRequest, int], HttpResponse], request: HttpRequest, pk: int
) -> HttpResponse:
    lock = redis().lock(site_cache.make_key(name), timeout=CACHE_LOCK_SECONDS, blocking_timeout=patience)
    if not await lock.acquire():
        return crowded(request)
    try:
        return await to_the_end(view, request, pk)
    finally:
        await lock.release()


@cache
def redis() -> Redis | RedisCluster:
    """The connections of this process, which has one event loop."""
    return (RedisCluster if CLUSTER else Redis).from_url(REDIS_URL)
