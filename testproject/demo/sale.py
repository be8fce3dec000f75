"""One sale (many buyers, one event, one kind of lock), its result, and the verdict on it.

Each buyer is a thread with its own browser that buys over HTTP.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.cookies import SimpleCookie
from math import ceil
from typing import Any

from django.db.models import Count
from django.urls import reverse

from bench.figures import Figures, overtaking, percentile
from shop.models import Event, Order

from .observer import HEADER, LOOK, Turn

IMPATIENT = 4  # every fourth buyer does not wait
DEMAND = 1.5  # times the number of seats
TIMEOUT = 30  # seconds; longer than any buyer waits
PAUSE = 0.02  # seconds that a buyer takes, on average, before the next purchase
CREATED, CONFLICT, LOCKED = 201, 409, 423
DOUBLE_CLICK = 3  # every third payment is clicked twice


class Browser:
    """A persistent connection to one server process, with the cookie that its forms need."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.headers = {"Accept": "application/json"}

    def open(self) -> None:
        """Look at the shop's page."""
        self.connection.request("GET", "/")
        response = self.connection.getresponse()
        response.read()
        token = SimpleCookie(response.headers["Set-Cookie"])["csrftoken"].value
        self.headers |= {"Cookie": f"csrftoken={token}", "X-CSRFToken": token}

    def send(self, path: str, *, look: bool = False) -> None:
        self.connection.request("POST", path, headers=self.headers | ({LOOK: "yes"} if look else {}))

    def receive(self) -> tuple[HTTPResponse, Any]:
        response = self.connection.getresponse()
        body = response.read()
        return response, json.loads(body) if "json" in response.headers.get("Content-Type", "") else body


@dataclass
class Buyer:
    """Buys ``times`` seats at the path ``buy``, one after the other, and pays at ``pay`` for what it got."""

    number: int
    ports: list[int]
    together: threading.Barrier
    times: int
    buy: str
    pay: str  # "{order}" stands for the order's number
    looks: bool  # asks for the list of held locks, half way through
    listing: str = ""
    statuses: list[int] = field(default_factory=list)  # of attempts to buy a seat
    turns: list[Turn] = field(default_factory=list)  # of those that got the lock
    errors: list[str] = field(default_factory=list)

    def run(self) -> None:
        # two tabs, each on another server process if there are several
        tabs = [Browser(self.ports[(self.number + i) % len(self.ports)]) for i in range(2)]
        dice = random.Random(self.number)
        try:
            for tab in tabs:
                tab.open()
            self.together.wait(TIMEOUT)
            for turn in range(self.times):
                self._buy(tabs, look=self.looks and turn >= self.times // 2 and not self.listing)
                time.sleep(dice.uniform(0, 2 * PAUSE))
        except (OSError, HTTPException, ValueError, KeyError, threading.BrokenBarrierError) as error:
            self.together.abort()
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            for tab in tabs:
                tab.connection.close()

    def _buy(self, tabs: list[Browser], *, look: bool) -> None:
        tabs[0].send(self.buy, look=look)
        response, body = tabs[0].receive()
        if look:
            self.listing = json.loads(response.headers[LOOK] or '""')
        if response.headers[HEADER]:
            self.turns.append(Turn(*json.loads(response.headers[HEADER])))
        self.statuses.append(response.status)
        if response.status not in (CREATED, CONFLICT, LOCKED):
            self.errors.append(f"status {response.status}")
        if response.status == LOCKED and not response.headers["Retry-After"]:
            self.errors.append("a 423 without Retry-After")
        if response.status == CREATED:
            self._pay(tabs, body["order"])

    def _pay(self, tabs: list[Browser], order: int) -> None:
        clicks = tabs if order % DOUBLE_CLICK == 0 else tabs[:1]
        for tab in clicks:
            tab.send(self.pay.replace("{order}", str(order)))
        for tab in clicks:
            response, _ = tab.receive()
            if response.status not in (200, LOCKED):
                self.errors.append(f"status {response.status} to a payment")


@dataclass(frozen=True)
class Way:
    """A way to sell. ``suffix``: what the names of its views end with."""

    title: str
    suffix: str
    locked: bool = True
    ours: bool = False


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
    untold = not errors and len(turns) != sold + sold_out
    checks = [
        (way.locked and oversold, f"oversold {oversold} seats"),
        (
            way.locked and event.remaining != event.seats - sold,
            f"sold {sold} of {event.seats} seats, yet the shop counts {event.remaining} as left: "
            f"two buyers were inside at once",
        ),
        (way.locked and twice, f"charged {twice} orders twice"),
        (way.locked and untold, f"only {len(turns)} of {sold + sold_out} told when they asked for the lock"),
        (way.ours and inversions, f"{inversions} buyers were served while one that had asked earlier still waited"),
        (errors, f"{len(errors)} requests failed, the first with: {next(iter(errors), '')}"),
    ]
    return {
        "title": way.title,
        "problems": [f"{way.title}: {text}." for is_so, text in checks if is_so],
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
