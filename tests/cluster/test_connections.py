"""How many connections a process has, by what the servers say (docs/limits.rst, "One process")."""

from __future__ import annotations

from typing import Any

import pytest

from django_redislock import Lock
from tests.helpers.cluster import Cluster
from tests.helpers.ways import DJANGO_REDIS, NAME, alias, connections
from tests.inside import limit

from .conftest import Eventually, names_on, waiters

BOUND = 4


@pytest.mark.complete
def test_a_process_or_event_loop_has_as_many_connections_as_the_documentation_says(
    cluster: Cluster, crowd: Any, settings: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> int:
        return sum(len(connections(client)) for client, _ in nodes)

    nodes = [(node.client(), names_on(cluster, node, 4)) for node in cluster.masters()]
    location = [node.url for node in cluster.masters()]
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO_REDIS, location, client_name=NAME)}
    settings.REDISLOCK = {**settings.REDISLOCK, "MAX_CONNECTIONS": BOUND, "TTL": 60}
    for _, names in nodes:
        me, you, held, lock = crowd(), crowd(), Lock(names[0]), Lock(names[0])
        me(held, "acquire")
        waiting = you.start(lock, "acquire")
        eventually(lambda lock=lock: waiters(lock.name) == 1)
        me(held, "release")
        assert waiting.result(30)
        eventually(lambda you=you, lock=lock: you.read(lock.remaining) > 30)  # confirmed by the sender
    for client, _ in nodes:
        client.client_pause(60_000, all=False)
    asking = [crowd().start(Lock(name), "acquire") for _, names in nodes for name in names[1:]]
    try:
        # besides: those that listen, and those that have renewed what is held
        eventually(lambda: count() >= BOUND + 2 * len(nodes))
    finally:
        for client, _ in nodes:
            client.client_unpause()
    assert all(future.result(30) for future in asking)
    # this thread has asked who waits
    assert count() <= BOUND + 2 * len(nodes) + crowd.awaits * len(nodes)
    limit(monkeypatch, idle_for_threads=0.0, idle_for_loops=0.0, idle_look=0.05)
    eventually(lambda: count() <= 1 + 2 * len(nodes) + crowd.awaits)
