"""The views of views.py as coroutines. Waiting for a turn blocks no thread; what asks the database runs in one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.shortcuts import aget_object_or_404
from django.views.decorators.http import require_POST

from django_redislock import FairLock, LockNotAcquired, lock_name, locked_view

from .answers import buyer, charge_order, crowded, sell_seat, sold
from .models import Event
from .sales import sell
from .views import PATIENCE, index

__all__ = ["buy", "buy_fair", "buy_fair_now", "buy_now", "buy_unlocked", "index", "pay", "pay_unlocked"]

P = ParamSpec("P")
R = TypeVar("R")


async def to_the_end(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` in a thread, and wait for its end even when cancelled: the client has gone, the thread has not.

    Without this the lock around it would be released while the thread still sells.
    """
    work = asyncio.ensure_future(sync_to_async(function)(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


@require_POST
async def buy_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
@locked_view("seats:{pk}", blocking_timeout=PATIENCE)
async def buy(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
@locked_view("seats:{pk}")
async def buy_now(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
async def buy_fair(request: HttpRequest, pk: int) -> HttpResponse:
    event = await aget_object_or_404(Event, pk=pk)
    try:
        async with FairLock(lock_name("seats", pk), blocking_timeout=PATIENCE):
            order = await to_the_end(sell, event, buyer(request))
    except LockNotAcquired:
        return crowded(request)
    return sold(request, order)


@require_POST
@locked_view("seats:{pk}", fair=True)
async def buy_fair_now(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(sell_seat, request, pk)


@require_POST
async def pay_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(charge_order, request, pk)


@require_POST
@locked_view("order:{pk}")
async def pay(request: HttpRequest, pk: int) -> HttpResponse:
    return await to_the_end(charge_order, request, pk)
