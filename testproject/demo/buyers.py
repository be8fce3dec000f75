"""The buyers. Each is a thread with its own browser that buys over HTTP."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from .observer import HEADER, LOOK, Turn

TIMEOUT = 30  # seconds; longer than any buyer waits
PAUSE = 0.02  # seconds that a buyer takes, on average, before the next purchase
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
        self.connection.request("POST", path, urlencode(form), self.headers | ({LOOK: "yes"} if look else {}))

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
        tabs[0].send(self.buy, look=look, buyer=f"buyer {self.number}")
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
