"""How many connections a process has, by what the servers say (docs/limits.rst, "One process")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from django_redislock import Lock
from redisserver import RedisServer
from tests.helpers.cluster import Cluster
from tests.helpers.ways import DJANGO_REDIS, NAME, alias, connections
from tests.inside import limit

from .conftest import Eventually, names_on, waiters

BOUND = 4


@pytest.fixture(params=["one server", "a cluster"])
def nodes(request: pytest.FixtureRequest, server: RedisServer) -> list[tuple[redis.Redis, list[str]]]:
    """Each node, and names of locks there."""
    clustered = request.param == "a cluster"
    if clustered:
        cluster: Cluster = request.getfixturevalue("cluster")
        masters = cluster.masters()
        found = [(node.client(), names_on(cluster, node, 4)) for node in masters]
        location: Any = [node.url for node in masters]
    else:
        request.getfixturevalue("own_pools")
        found = [(server.client(), [f"order:{number}" for number in range(12)])]
        location = server.url
    settings = request.getfixturevalue("settings")  # after the cluster's, which end in the opposite order
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, location, client_name=NAME)}
    settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": clustered, "MAX_CONNECTIONS": BOUND, "TTL": 60}
    return found


def count(nodes: Sequence[tuple[redis.Redis, object]]) -> int:
    return sum(len(connections(client)) for client, _ in nodes)


@pytest.mark.complete
def test_a_process_has_as_many_connections_as_the_documentation_says(
    nodes: Any, other: Callable[[], Any], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers = []
    for _, names in nodes:
        held, lock, keeper = Lock(names[0]), Lock(names[0]), other()
        held.acquire()
        waiting = keeper.start(lock.acquire)
        eventually(lambda lock=lock: waiters(lock.name) == 1)
        held.release()
        assert waiting.result(30)
        eventually(lambda keeper=keeper, lock=lock: keeper(lock.remaining) > 30)  # confirmed by the sender
        keepers.append((keeper, lock))
    threads = [(other(), Lock(name)) for _, names in nodes for name in names[1:]]
    for client, _ in nodes:
        client.client_pause(60_000, all=False)
    asking = [thread.start(lock.acquire) for thread, lock in threads]
    try:
        eventually(lambda: count(nodes) == BOUND + 2 * len(nodes))
    finally:
        for client, _ in nodes:
            client.client_unpause()
    assert all(future.result(30) for future in asking)
    assert count(nodes) <= BOUND + 2 * len(nodes)
    limit(monkeypatch, idle_for_threads=0.0, idle_look=0.05)
    eventually(lambda: count(nodes) == 1 + 2 * len(nodes))
    for thread, lock in keepers + threads:
        thread(lock.release)


@pytest.mark.complete
async def test_an_event_loop_has_connections_of_its_own(
    nodes: Any, aeventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = [Lock(name) for _, names in nodes for name in names]
    for client, _ in nodes:
        client.client_pause(60_000, all=False)
    asking = [asyncio.create_task(lock.aacquire()) for lock in locks]
    try:
        await aeventually(lambda: count(nodes) == BOUND)
    finally:
        for client, _ in nodes:
            client.client_unpause()
    assert all(await asyncio.gather(*asking))
    await aeventually(lambda: count(nodes) == BOUND + 2 * len(nodes))  # it listens, and has renewed what it holds
    limit(monkeypatch, idle_for_loops=0.0, idle_look=0.05)
    await aeventually(lambda: count(nodes) == 1 + 2 * len(nodes))
    for lock in locks:
        await lock.arelease()
