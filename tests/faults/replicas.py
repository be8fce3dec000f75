"""Measures how many grants that a client believes in are lost with a master, with and without ``REPLICAS``.

One server replicates another over a slow link, as between two data centres. The master is killed while clients
acquire locks, what was on the link is lost with it, and the replica is promoted: it has a grant, or has not.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from statistics import median
from time import monotonic, sleep

from django.test import override_settings

from django_redislock import Lock, LockUnavailable
from redisserver import RedisServer, redis_server
from tests.helpers.actors import until
from tests.helpers.proxy import Proxy, proxy
from tests.inside import leases

from .trial import alias

LAG = 0.005  # the least time in seconds that data takes over the link
LOAD_FOR = 0.1  # seconds until the death of the master
CLIENTS = 8

Grant = tuple[str, int, float]  # the name, the fence, seconds from the request to the grant


def acquire_locks(client: int) -> list[Grant]:
    """New ones, until Redis is gone."""
    found: list[Grant] = []
    for number in count():
        lock, began = Lock(f"{client}:{number}", ttl=60, auto_renew=False), monotonic()
        try:
            lock.acquire()
        except LockUnavailable:
            break
        found.append((lock.name, lock.fence or 0, monotonic() - began))
    return found


def follow(master: RedisServer, replica: RedisServer, link: Proxy) -> None:
    link.mend()
    with master.client() as client, replica.client() as other:
        client.flushall()
        other.replicaof("127.0.0.1", str(link.port))
        until(lambda: other.info("replication")["master_link_status"] == "up")
        client.set("mark", 1)
        assert client.wait(1, 10_000) == 1


def fail_over(master: RedisServer, replica: RedisServer, link: Proxy) -> tuple[list[Grant], int]:
    """What the clients believe in, and how much of it the new master does not have."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        running = [threads.submit(acquire_locks, client) for client in range(CLIENTS)]
        sleep(LOAD_FOR)
        master.stop()
        link.cut()
    believed = [grant for one in running for grant in one.result()]
    with replica.client() as new:
        new.replicaof("NO", "ONE")
        there = new.mget([f"redislock{{0}}:lock:{name}" for name, *_ in believed])
    kept = sum(
        str(fence).encode() in (value or b"").split() for (_, fence, _), value in zip(believed, there, strict=True)
    )
    return believed, len(believed) - kept


def count_losses(replicas: int, failovers: int) -> tuple[Counter[str], float]:
    """How many grants were believed and lost, in how many failovers; median of the seconds to acquire a free lock."""
    found, took = Counter[str](), list[float]()
    with ExitStack() as stack:
        options = {"repl_diskless_sync": "no"}  # with it, nothing is streamed for a second after a full sync
        pair = [stack.enter_context(redis_server(**options)) for _ in range(2)]
        links = {server: stack.enter_context(proxy(server.port)) for server in pair}
        for link in links.values():
            link.delay_message("", LAG, times=10**9)
        for _ in range(failovers):
            master, replica = pair
            follow(master, replica, links[master])
            settings = {"REPLICAS": replicas, "RETRY_FOR": 0.0}
            with override_settings(CACHES={"default": alias(master.url)}, REDISLOCK=settings):
                believed, lost = fail_over(master, replica, links[master])
                for lease in leases():
                    lease.close()
            found += Counter(believed=len(believed), lost=lost, struck=lost > 0)
            took += [seconds for *_, seconds in believed]
            master.start()
            pair.reverse()
    return found, median(took)
