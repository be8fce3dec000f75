"""One sale (many buyers, one event, one kind of lock), its result, and the verdict on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from django.db.models import Count
from django.urls import reverse

from bench.figures import Figures, overtaking, percentile
from shop.models import Event, Order

from .buyers import CONFLICT, LOCKED, Buyer

IMPATIENT = 4  # every fourth buyer does not wait
DEMAND = 1.5  # times the number of seats


@dataclass(frozen=True)
class Way:
    """A way to sell: its title, and what the names of its views end with."""

    title: str
    suffix: str

    @property
    def locked(self) -> bool:
        return self.suffix != "-unlocked"

    @property
    def ours(self) -> bool:
        return not self.suffix


def sell(way: Way, ports: list[int], *, buyers: int, seats: int, on_progress: Callable[[int, int], object]) -> Figures:
    """Sell until all buyers are done. They want 1.5 times as many seats as there are, not counting the impatient
    ones."""
    event = Event.objects.create(name=f"{seats} seats, {way.title}", seats=seats, remaining=seats)
    impatient = range(IMPATIENT - 1, buyers, IMPATIENT)
    times = ceil(seats * DEMAND / (buyers - len(impatient)))
    together = threading.Barrier(buyers)
    crowd = [
        Buyer(
            number,
            ports,
            together,
            times,
            buy=reverse(f"{'buy-now' if number in impatient else 'buy'}{way.suffix}", args=[event.pk]),
            pay=reverse(f"pay{way.suffix}", args=[0]).replace("0", "{order}"),
            looks=way.ours and number == 0,
        )
        for number in range(buyers)
    ]
    threads = [threading.Thread(target=buyer.run, daemon=True) for buyer in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.05)
            on_progress(sum(len(buyer.statuses) for buyer in crowd), times * buyers)
    event.refresh_from_db()
    return judge(way, event, crowd)


def judge(way: Way, event: Event, crowd: list[Buyer]) -> Figures:
    """Without a lock, overselling is expected."""
    orders = Order.objects.filter(event=event)
    sold, twice = orders.count(), orders.annotate(times=Count("payments")).filter(times__gt=1).count()
    statuses = [status for buyer in crowd for status in buyer.statuses]
    turns = sorted((turn for buyer in crowd for turn in buyer.turns), key=lambda turn: turn.served)
    errors = [error for buyer in crowd for error in buyer.errors]
    sold_out, oversold = statuses.count(CONFLICT), max(0, sold - event.seats)
    waits = [turn.waited * 1000 for turn in turns]
    inversions = overtaking([turn.asked for turn in turns]) if way.locked else None
    problems = []
    if way.locked:
        if oversold:
            problems.append(f"oversold {oversold} seats")
        if event.remaining != event.seats - sold:
            problems.append(
                f"sold {sold} of {event.seats} seats, yet the shop counts {event.remaining} as left: "
                f"two buyers were inside at once"
            )
        if twice:
            problems.append(f"charged {twice} orders twice")
        if not errors and len(turns) != sold + sold_out:
            problems.append(f"only {len(turns)} of {sold + sold_out} told when they asked for the lock")
    if way.ours and inversions:
        problems.append(f"{inversions} buyers were served while one that had asked earlier still waited")
    if errors:
        problems.append(f"{len(errors)} requests failed, the first with: {errors[0]}")
    return {
        "title": way.title,
        "problems": [f"{way.title}: {problem}." for problem in problems],
        "errors": errors,
        "seats": event.seats,
        "remaining": event.remaining,  # seats, according to the shop
        "requests": len(statuses),
        "sold": sold,
        "sold_out": sold_out,
        "refused": statuses.count(LOCKED),
        "oversold": oversold,
        "charged_twice": twice,
        "wait_p50_ms": percentile(waits, 50),
        "wait_p99_ms": percentile(waits, 99),
        "inversions": inversions,
        "listing": "".join(buyer.listing for buyer in crowd),
    }
