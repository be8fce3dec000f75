"""Selling and charging, without a lock and with each way of locking. The locks end after COMMIT: they are outside."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_POST, require_safe

from django_redislock import FairLock, LockNotAcquired, list_locks, lock_name, locked_view

from .answers import buyer, charge_order, crowded, sell_seat, sold
from .models import Event, Order
from .sales import sell

PATIENCE = 5  # seconds for which a buyer waits for a turn


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    context = {
        "events": Event.objects.order_by("-pk")[:10],
        "unpaid": Order.objects.filter(paid=False).select_related("event").order_by("-pk")[:10],
        "locks": list_locks(),
        "said": request.GET.get("said", ""),
    }
    return render(request, "shop/index.html", context)


@require_POST
def buy_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Oversells."""
    return sell_seat(request, pk)


@require_POST
@locked_view("seats:{pk}", blocking_timeout=PATIENCE)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Waits for its turn, with a Lock; 423 when it took too long."""
    return sell_seat(request, pk)


@require_POST
@locked_view("seats:{pk}")
def buy_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Does not wait: 423 when somebody else is at it."""
    return sell_seat(request, pk)


@require_POST
def buy_fair(request: HttpRequest, pk: int) -> HttpResponse:
    """First come, first served. The lock is held for no longer than it must be: not while the answer is made."""
    event = get_object_or_404(Event, pk=pk)
    try:
        with FairLock(lock_name("seats", pk), blocking_timeout=PATIENCE):
            order = sell(event, buyer(request))
    except LockNotAcquired:
        return crowded(request)
    return sold(request, order)


@require_POST
@locked_view("seats:{pk}", fair=True)
def buy_fair_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Never overtakes those who wait: 423 when somebody does."""
    return sell_seat(request, pk)


@require_POST
def pay_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Charges twice after a double click."""
    return charge_order(request, pk)


@require_POST
@locked_view("order:{pk}")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """A double click: the second one gets 423."""
    return charge_order(request, pk)
