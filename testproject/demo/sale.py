"""One sale (many buyers, one event, one kind of lock) and its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from django.db.models import Count
from django.urls import reverse

from shop.models import Event, Order

from .buyers import CONFLICT, LOCKED, Buyer
from .facts import Facts, count_inversions
from .servers import Servers

IMPATIENT = 4  # every fourth buyer does not wait
PAUSE = 0.02  # seconds that a buyer takes, on average, before the next purchase
DEMAND = 1.5  # times the number of seats


@dataclass(frozen=True)
class Way:
    """A way to sell: its title and the names of its views."""

    title: str
    buy: str
    buy_now: str
    pay: str
    locked: bool = True
    ours: bool = False


NO_LOCK = Way("no lock", "buy-unlocked", "buy-unlocked", "pay-unlocked", locked=False)
CACHE_LOCK = Way("cache.lock", "buy-cache-lock", "buy-now-cache-lock", "pay-cache-lock")
CLUSTER_LOCK = replace(CACHE_LOCK, title="redis-py")  # django-redis does not support clusters
ASYNCIO_LOCK = replace(CACHE_LOCK, title="redis.asyncio")  # django-redis has no lock for coroutines
LOCK = Way("Lock", "buy", "buy-now", "pay", ours=True)


class Sale:
    """``buyers`` want 1.5 times as many seats as there are, not counting the impatient ones."""

    def __init__(self, way: Way, servers: Servers, *, buyers: int, seats: int) -> None:
        self.way = way
        self.event = Event(name=f"{seats} seats, {way.title}", seats=seats, remaining=seats)
        self.event.save()
        impatient = {number for number in range(buyers) if number % IMPATIENT == IMPATIENT - 1}
        times = ceil(seats * DEMAND / (buyers - len(impatient)))
        self.total = times * buyers
        start = threading.Barrier(buyers)
        self.buyers = [
            Buyer(
                number,
                servers.ports,
                start,
                buy=reverse(way.buy_now if number in impatient else way.buy, args=[self.event.pk]),
                pay=reverse(way.pay, args=[0]).replace("0", "{order}"),
                times=times,
                pause=PAUSE,
            )
            for number in range(buyers)
        ]
        self.buyers[0].looks = way.ours

    @property
    def done(self) -> int:
        return sum(len(buyer.purchases) for buyer in self.buyers)

    def run(self, on_progress: Callable[[int], object]) -> Facts:
        """Sell until all buyers are done."""
        for buyer in self.buyers:
            buyer.start()
        for buyer in self.buyers:
            while buyer.is_alive():
                buyer.join(0.05)
                on_progress(self.done)
        return self.facts()

    def facts(self) -> Facts:
        self.event.refresh_from_db()
        purchases = [purchase for buyer in self.buyers for purchase in buyer.purchases]
        statuses = [purchase.status for purchase in purchases]
        turns = [purchase.turn for purchase in purchases if purchase.turn is not None]
        pays = [status for buyer in self.buyers for status in buyer.pay_statuses]
        orders = Order.objects.filter(event=self.event)
        errors = [purchase.error for purchase in purchases if purchase.error]
        errors += [f"status {status} to a payment" for status in pays if status not in (200, LOCKED)]
        errors += [
            "a 423 without Retry-After"
            for purchase in purchases
            if purchase.status == LOCKED and not purchase.retry_after
        ]
        return Facts(
            title=self.way.title,
            locked=self.way.locked,
            ours=self.way.ours,
            seats=self.event.seats,
            remaining=self.event.remaining,
            requests=len(purchases),
            sold=orders.count(),
            sold_out=statuses.count(CONFLICT),
            refused=statuses.count(LOCKED),
            charged_twice=orders.annotate(times=Count("payments")).filter(times__gt=1).count(),
            pay_refused=pays.count(LOCKED),
            queued=sum(turn.asked != turn.served for turn in turns),
            waits=sorted(turn.waited for turn in turns),
            inversions=count_inversions((turn.asked, turn.served) for turn in turns) if self.way.locked else None,
            errors=errors,
            listing=self.buyers[0].listing,
        )
