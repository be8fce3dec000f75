"""Selling and charging, without a lock and with each way of locking. The locks end after COMMIT: they are outside."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from django_redislock import FairLock, LockNotAcquired, list_locks, lock_name, locked_view

from .models import Event, Order
from .sales import charge, sell

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
    return _sell(request, get_object_or_404(Event, pk=pk))


@require_POST
@locked_view("seats:{pk}", blocking_timeout=PATIENCE)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Waits for its turn, with a Lock; 423 when it took too long."""
    return _sell(request, get_object_or_404(Event, pk=pk))


@require_POST
@locked_view("seats:{pk}")
def buy_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Does not wait: 423 when somebody else is at it."""
    return _sell(request, get_object_or_404(Event, pk=pk))


@require_POST
def buy_fair(request: HttpRequest, pk: int) -> HttpResponse:
    """First come, first served. The lock is held for no longer than it must be: not while the answer is made."""
    event = get_object_or_404(Event, pk=pk)
    try:
        with FairLock(lock_name("seats", pk), blocking_timeout=PATIENCE):
            order = sell(event, _buyer(request))
    except LockNotAcquired:
        return _answer(request, "Too many buyers. Please try again.", status=423, retry_after=1)
    return _sold(request, order)


@require_POST
@locked_view("seats:{pk}", fair=True)
def buy_fair_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Never overtakes those who wait: 423 when somebody does."""
    return _sell(request, get_object_or_404(Event, pk=pk))


@require_POST
def pay_unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Charges twice after a double click."""
    return _charge(request, pk)


@require_POST
@locked_view("order:{pk}")
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """A double click: the second one gets 423."""
    return _charge(request, pk)


def _sell(request: HttpRequest, event: Event) -> HttpResponse:
    return _sold(request, sell(event, _buyer(request)))


def _sold(request: HttpRequest, order: Order | None) -> HttpResponse:
    if order is None:
        return _answer(request, "Sold out.", status=409)
    return _answer(request, "One seat is yours.", status=201, order=order.pk)


def _charge(request: HttpRequest, pk: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=pk)
    return _answer(request, "Paid." if charge(order) else "It was paid already.", status=200, order=pk)


def _buyer(request: HttpRequest) -> str:
    return request.POST.get("buyer", "")[:100] or "anonymous"


def _answer(
    request: HttpRequest, text: str, *, status: int, order: int | None = None, retry_after: int | None = None
) -> HttpResponse:
    """JSON for programs; people go back to the page and read it there."""
    if request.get_preferred_type(["text/html", "application/json"]) == "text/html":
        return HttpResponseRedirect(f"{reverse('index')}?{urlencode({'said': text})}")
    response = JsonResponse({"detail": text, "order": order}, status=status)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response
