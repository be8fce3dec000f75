"""Selling and charging: without a lock, with django-redis's, and with ours. Each lock is released after COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as kept
from typing import Any, cast

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe
from redis.cluster import RedisCluster
from redis.lock import Lock

from django_redislock import list_locks, locked_view

from .models import Event, Order
from .responses import charge_order, crowded, sell_seat
from .settings import CLUSTER, REDIS_URL

PATIENCE = 5  # seconds that a buyer waits for the lock
CACHE_LOCK_SECONDS = 60  # django-redis's lock ends after this time, as nothing renews it


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    context = {
        "events": Event.objects.order_by("-pk")[:10],
        "unpaid": Order.objects.filter(paid=False).select_related("event").order_by("-pk")[:10],
        "locks": list_locks(),
        "said": request.GET.get("said", ""),
    }
    return render(request, "shop/index.html", context)


# -- with our lock ----------------------------------------------------------------------------------------------------


@require_POST
@locked_view("seats:{pk}", blocking_timeout=PATIENCE)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Waits for the lock, first come, first served. 423 if that takes too long."""
    return sell_seat(request, pk)


@require_POST
@locked_view("seats:{pk}")
def buy_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Does not wait: 423 if somebody else holds the lock or waits for it."""
    return sell_seat(request, pk)


@require_POST
@locked_view("order:{pk}")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """On a double click, the second request gets 423."""
    return charge_order(request, pk)


# -- without a lock ---------------------------------------------------------------------------------------------------


@require_POST
def buy_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Oversells."""
    return sell_seat(request, pk)


@require_POST
def pay_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Charges twice after a double click."""
    return charge_order(request, pk)


# -- with the lock of django-redis, which needs a Redis ---------------------------------------------------------------


@require_POST
def buy_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    """Waits for the lock, in no particular order: waiters try ten times a second."""
    return under_cache_lock(f"seats:{pk}", PATIENCE, sell_seat, request, pk)


@require_POST
def buy_now_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    return under_cache_lock(f"seats:{pk}", 0, sell_seat, request, pk)


@require_POST
def pay_cache_lock(request: HttpRequest, pk: int) -> HttpResponse:
    return under_cache_lock(f"order:{pk}", 0, charge_order, request, pk)


def under_cache_lock(
    name: str, patience: float, view: Callable[[HttpRequest, int], HttpResponse], request: HttpRequest, pk: int
) -> HttpResponse:
    """What sites usually write."""
    lock = cache_lock(name, timeout=CACHE_LOCK_SECONDS, blocking_timeout=patience)
    if not lock.acquire():
        return crowded(request)
    try:
        return view(request, pk)
    finally:
        lock.release()


def cache_lock(name: str, **options: Any) -> Lock:
    """django-redis does not support clusters: there, it is redis-py's own lock."""
    if CLUSTER:
        return cast("Lock", cluster().lock(cache.make_key(name), **options))
    return cast("Any", cache).lock(name, **options)  # type: ignore[no-any-return]


@kept
def cluster() -> RedisCluster:
    """The connections of this process."""
    return RedisCluster.from_url(REDIS_URL)
