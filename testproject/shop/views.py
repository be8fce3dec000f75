"""Selling and charging, as real shops do it: read, wait, write. Locks are put around them in urls.py, so that each is
released after COMMIT."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache as kept
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe
from redis.asyncio import Redis

from .models import Event, Order, Payment
from .settings import REDIS_URL

# seconds for prices, seat maps and banks, between reading a row and writing it
THINK_SECONDS = float(os.environ.get("SHOP_THINK_SECONDS", "0.004"))
CACHE_LOCK_SECONDS = 60  # django-redis's lock ends after this time, as nothing renews it

P = ParamSpec("P")
R = TypeVar("R")
View = Callable[[HttpRequest, int], Any]


@require_safe
@ensure_csrf_cookie
def index(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"events": list(Event.objects.values("pk", "name", "seats", "remaining"))})


def sell(request: HttpRequest, pk: int) -> HttpResponse:
    """Sell one seat, if one is left. Without a lock, two requests at once may buy the same seat."""
    event = get_object_or_404(Event, pk=pk)
    if event.remaining < 1:
        return JsonResponse({"detail": "Sold out."}, status=409)
    time.sleep(THINK_SECONDS)
    event.remaining -= 1
    with transaction.atomic():
        event.save(update_fields=["remaining"])
        order = Order.objects.create(event=event)
    return JsonResponse({"detail": "One seat is yours.", "order": order.pk}, status=201)


def charge(request: HttpRequest, pk: int) -> HttpResponse:
    """Charge an order, unless it is paid. Without a lock, a double click may charge it twice."""
    order = get_object_or_404(Order, pk=pk)
    if order.paid:
        return JsonResponse({"detail": "It was paid already."})
    time.sleep(THINK_SECONDS)
    with transaction.atomic():
        Payment.objects.create(order=order)
        order.paid = True
        order.save(update_fields=["paid"])
    return JsonResponse({"detail": "Paid."})


def crowded() -> HttpResponse:
    """What locked_view does by default."""
    return JsonResponse({"detail": "Please try again."}, status=423, headers={"Retry-After": "1"})


def cache_locked(name: str, *, blocking_timeout: float) -> Callable[[View], View]:
    """What sites usually write, with the lock of django-redis. Those who wait try ten times a second."""

    def decorate(view: View) -> View:
        def locked(request: HttpRequest, pk: int) -> HttpResponse:
            store: Any = cache
            lock = store.lock(name.format(pk=pk), timeout=CACHE_LOCK_SECONDS, blocking_timeout=blocking_timeout)
            if not lock.acquire():
                return crowded()
            try:
                return view(request, pk)  # type: ignore[no-any-return]
            finally:
                lock.release()

        return locked

    return decorate


# -- the same as coroutines: waiting for a lock blocks no thread; database queries run in threads ---------------------


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


async def asell(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell, request, pk)


async def acharge(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(charge, request, pk)


def acache_locked(name: str, *, blocking_timeout: float) -> Callable[[View], View]:
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
