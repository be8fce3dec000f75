"""The buyers. Each is a thread with its own browser that buys over HTTP."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from .observer import HEADER, LOOK, Turn, read

TIMEOUT = 30  # seconds; longer than any buyer waits
CREATED, CONFLICT, LOCKED = 201, 409, 423
DOUBLE_CLICK = 3  # every third payment is clicked twice


class Browser:
    """A persistent connection to one server process, with the cookie that its forms need."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}

    def open(self) -> None:
        """Look at the shop's page."""
        self.connection.request("GET", "/")
        response = self.connection.getresponse()
        response.read()
        token = SimpleCookie(response.headers["Set-Cookie"])["csrftoken"].value
        self.headers |= {"Cookie": f"csrftoken={token}", "X-CSRFToken": token}

    def send(self, path: str, *, look: bool = False, **form: object) -> None:
        more = {LOOK: "yes"} if look else {}
        self.connection.request("POST", path, urlencode(form), self.headers | more)

    def receive(self) -> tuple[HTTPResponse, Any]:
        response = self.connection.getresponse()
        body = response.read()
        return response, json.loads(body) if "json" in response.headers.get("Content-Type", "") else body


@dataclass
class Purchase:
    """One attempt to buy a seat, and the response. Status 0: no response."""

    status: int
    turn: Turn | None = None
    retry_after: str | None = None
    error: str = ""


class Buyer(threading.Thread):
    """Buys ``times`` seats at the path ``buy``, one after the other, and pays at ``pay`` for what it got."""

    def __init__(
        self, number: int, ports: list[int], start: threading.Barrier, *, buy: str, pay: str, times: int, pause: float
    ) -> None:
        super().__init__(name=f"buyer {number}", daemon=True)
        self.number = number
        self.ports = ports
        self.start_together = start
        self.buy_path = buy
        self.pay_path = pay  # "{order}" stands for the order's number
        self.times = times
        self.looks = False  # whether to ask for the list of held locks, half way through
        self.listing = ""
        self.pause = pause  # seconds, on average, between two purchases
        self.purchases: list[Purchase] = []
        self.pay_statuses: list[int] = []

    def run(self) -> None:
        # two tabs, each on another server process if there are several
        tabs = [Browser(self.ports[(self.number + i) % len(self.ports)]) for i in range(2)]
        dice = random.Random(self.number)
        try:
            for tab in tabs:
                tab.open()
            self.start_together.wait(TIMEOUT)
            for turn in range(self.times):
                self.buy(tabs, look=self.looks and turn >= self.times // 2 and not self.listing)
                time.sleep(dice.uniform(0, 2 * self.pause))
        except (OSError, HTTPException, ValueError, KeyError, threading.BrokenBarrierError) as error:
            self.start_together.abort()
            self.purchases.append(Purchase(0, error=f"{type(error).__name__}: {error}"))
        finally:
            for tab in tabs:
                tab.connection.close()

    def buy(self, tabs: list[Browser], *, look: bool) -> None:
        tabs[0].send(self.buy_path, look=look, buyer=self.name)
        response, body = tabs[0].receive()
        if look:
            self.listing = json.loads(response.headers[LOOK] or '""')
        error = "" if response.status in (CREATED, CONFLICT, LOCKED) else f"status {response.status}"
        turn = read(response.headers[HEADER])
        self.purchases.append(Purchase(response.status, turn, response.headers["Retry-After"], error))
        if response.status == CREATED:
            self.pay(tabs, body["order"])

    def pay(self, tabs: list[Browser], order: int) -> None:
        clicks = tabs if order % DOUBLE_CLICK == 0 else tabs[:1]
        for tab in clicks:
            tab.send(self.pay_path.replace("{order}", str(order)))
        for tab in clicks:
            response, _ = tab.receive()
            self.pay_statuses.append(response.status)
