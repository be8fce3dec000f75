"""What the shop does, as real shops do it: read, wait, write. Nothing here locks; the views do."""

from __future__ import annotations

import os
import time

from django.db import transaction

from .models import Event, Order, Payment

# seconds for prices, seat maps and banks, between reading a row and writing it
THINK_SECONDS = float(os.environ.get("SHOP_THINK_SECONDS", "0.004"))


def sell(event: Event, buyer: str) -> Order | None:
    """Sell one seat; None if none is left. Two calls at once may sell the same seat."""
    event.refresh_from_db()
    if event.remaining < 1:
        return None
    time.sleep(THINK_SECONDS)
    event.remaining -= 1
    with transaction.atomic():
        event.save(update_fields=["remaining"])
        order = Order(event=event, buyer=buyer)
        order.save()
    return order


def charge(order: Order) -> bool:
    """Charge an order; False if it is already paid. Two calls at once may charge it twice."""
    order.refresh_from_db()
    if order.paid:
        return False
    time.sleep(THINK_SECONDS)
    with transaction.atomic():
        Payment.objects.create(order=order)
        order.paid = True
        order.save(update_fields=["paid"])
    return True
