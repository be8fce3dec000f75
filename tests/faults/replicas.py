"""Measures how many grants that a client believes in are lost with a master, with and without ``REPLICAS``.

One server replicates another over a slow link, as between two data centres. The master is killed while clients
acquire locks, what was on the link is lost with it, and the replica is promoted: it has a grant, or has not.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import count
from statistics import median
from time import monotonic, sleep
from typing import NamedTuple

from django.test import override_settings

from django_redislock import Lock, LockLost, LockUnavailable
from redisserver import redis_server
from tests.helpers.proxy import proxy
from tests.helpers.waiting import until
from tests.inside import leases

from .trial import alias

LAG = 0.005  # the least time in seconds that data takes over the link
LOAD_FOR = 0.05  # seconds from the first grant to the death of the master
ALONE, PAIRS = 4, 2  # threads that use locks of their own, and pairs that hand one back and forth
HELD_FOR = 0.002  # seconds, by those


class Losses(NamedTuple):
    replicas: int
    failovers: int
    believed: int  # grants that clients believed in when the master died
    lost: int
    struck: int  # failovers that lost any of them
    takes: float  # seconds to acquire a free lock, the median


class Linked:
    """A master and its replica, which swap roles with each failover."""

    def __init__(self, stack: ExitStack, lag: float) -> None:
        options = {"repl_diskless_sync": "no"}  # with it, nothing is streamed for a second after a full sync
        self.master, self.replica = (stack.enter_context(redis_server(**options)) for _ in range(2))
        self._links = {server.port: stack.enter_context(proxy(server.port)) for server in (self.master, self.replica)}
        for link in self._links.values():
            link.delay_message("", lag, times=10**9)
        self.follow()

    def follow(self) -> None:
        link = self._links[self.master.port]
        link.mend()
        with self.master.client() as client, self.replica.client() as other:
            client.flushall()
            other.replicaof("127.0.0.1", str(link.port))
            until(lambda: other.info("replication")["master_link_status"] == "up")
            client.set("mark", 1)
            assert client.wait(1, 10_000) == 1

    def fail_over(self) -> None:
        self.master.stop()
        self._links[self.master.port].cut()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.master, self.replica = self.replica, self.master


class Client(threading.Thread):
    """Acquires locks until Redis is gone: new ones that it keeps, or (shared) one that it hands on."""

    def __init__(self, label: str, over: threading.Event, *, shared: bool) -> None:
        super().__init__(daemon=True)
        self.label = label
        self.over = over
        self.shared = shared
        self.believed: dict[str, int] = {}  # fences, by name
        self.took: list[float] = []

    def run(self) -> None:
        for number in count():
            name = self.label if self.shared else f"{self.label}:{number}"
            lock, began = Lock(name, ttl=60, auto_renew=False), monotonic()
            try:
                if not lock.acquire(blocking_timeout=0.5):
                    if self.over.is_set():
                        return
                    continue
                self.believed[name] = lock.fence
                if self.shared:
                    sleep(HELD_FOR)
                    if self.over.is_set():
                        return
                    del self.believed[name]
                    lock.release()
                else:
                    self.took.append(monotonic() - began)
            except (LockUnavailable, LockLost):
                if self.over.is_set():
                    return


def one_failover(linked: Linked) -> tuple[list[Client], list[str]]:
    """Run the clients, and count the grants that they believe in and the new master does not have."""
    over = threading.Event()
    clients = [Client(f"alone {number}", over, shared=False) for number in range(ALONE)]
    clients += [Client(f"pair {number // 2}", over, shared=True) for number in range(2 * PAIRS)]
    for client in clients:
        client.start()
    until(lambda: all(client.believed for client in clients[:ALONE]))
    sleep(LOAD_FOR)
    over.set()  # a client that is about to release a lock now keeps it, and so believes in it
    linked.fail_over()
    for client in clients:
        client.join()
    lost = []
    with linked.master.client() as new:
        for client in clients:
            for name, fence in client.believed.items():
                value: bytes | None = new.get(f"redislock{{0}}:lock:{name}")
                if value is None or str(fence).encode() not in value.split():
                    lost.append(f"{name} {fence} {value!r}")
    return clients, lost


def count_losses(replicas: int, failovers: int, lag: float = LAG) -> Losses:
    believed = lost = struck = 0
    took: list[float] = []
    with ExitStack() as stack:
        linked = Linked(stack, lag)
        for _ in range(failovers):
            with override_settings(
                CACHES={"default": alias(linked.master.url)}, REDISLOCK={"REPLICAS": replicas, "RETRY_FOR": 0.0}
            ):
                clients, missing = one_failover(linked)
                for lease in leases():
                    lease.close()
            believed += sum(len(client.believed) for client in clients)
            lost, struck = lost + len(missing), struck + bool(missing)
            took += [seconds for client in clients for seconds in client.took]
            linked.replica.start()
            linked.follow()
    return Losses(replicas, failovers, believed, lost, struck, median(took))
