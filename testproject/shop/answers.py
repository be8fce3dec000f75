"""What the views answer, sync and async ones alike. What asks the database blocks."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.http import urlencode

from .models import Event, Order
from .sales import charge, sell


def sell_seat(request: HttpRequest, pk: int) -> HttpResponse:
    return sold(request, sell(get_object_or_404(Event, pk=pk), buyer(request)))


def charge_order(request: HttpRequest, pk: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=pk)
    return _answer(request, "Paid." if charge(order) else "It was paid already.", status=200, order=pk)


def sold(request: HttpRequest, order: Order | None) -> HttpResponse:
    if order is None:
        return _answer(request, "Sold out.", status=409)
    return _answer(request, "One seat is yours.", status=201, order=order.pk)


def crowded(request: HttpRequest) -> HttpResponse:
    return _answer(request, "Too many buyers. Please try again.", status=423, retry_after=1)


def buyer(request: HttpRequest) -> str:
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
