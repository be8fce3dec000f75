"""The responses of the views, sync and async. Those that query the database block."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.http import urlencode

from .models import Event, Order
from .sales import charge, sell


def sell_seat(request: HttpRequest, pk: int) -> HttpResponse:
    order = sell(get_object_or_404(Event, pk=pk), request.POST.get("buyer", "")[:100] or "anonymous")
    if order is None:
        return _respond(request, "Sold out.", status=409)
    return _respond(request, "One seat is yours.", status=201, order=order.pk)


def charge_order(request: HttpRequest, pk: int) -> HttpResponse:
    text = "Paid." if charge(get_object_or_404(Order, pk=pk)) else "It was paid already."
    return _respond(request, text, status=200, order=pk)


def crowded(request: HttpRequest) -> HttpResponse:
    """What locked_view does by default."""
    response = _respond(request, "Too many buyers. Please try again.", status=423)
    response.headers["Retry-After"] = "1"
    return response


def _respond(request: HttpRequest, text: str, *, status: int, order: int | None = None) -> HttpResponse:
    """JSON for programs; browsers are redirected to the page, which shows the result."""
    if request.get_preferred_type(["text/html", "application/json"]) == "text/html":
        return HttpResponseRedirect(f"{reverse('index')}?{urlencode({'said': text})}")
    return JsonResponse({"detail": text, "order": order}, status=status)
