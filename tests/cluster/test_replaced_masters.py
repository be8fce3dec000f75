"""C7: a master that was replaced while it was silent answers when it wakes up, and nobody believes it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from django_redislock import Lock
from tests.helpers.actors import GENEROUS
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.helpers.ways import DJANGO_REDIS, alias, kill
from tests.inside import ask_cluster, limit, suspect

from .conftest import key_of, names_on, slot_of

pytestmark = pytest.mark.complete


@pytest.fixture
def torn(own_pools: None, settings: Any) -> Iterator[Cluster]:
    """A cluster whose nodes can be cut off from each other, and connections with much patience."""
    with redis_cluster(partitionable=True, executable=require(find_cluster_server)) as cluster:
        locks = alias(DJANGO_REDIS, [node.url for node in cluster.masters()[:2]])
        locks["OPTIONS"] = {**locks.get("OPTIONS", {}), "SOCKET_TIMEOUT": GENEROUS}
        settings.CACHES = {**settings.CACHES, "locks": locks}
        settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": True, "TTL": 60}
        yield cluster


@pytest.mark.parametrize("how", ["answers late", "has not answered before", "is connected to late"])
def test_requests_that_a_replaced_master_had_not_read_are_sent_to_the_new_one(
    torn: Cluster, crowd: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, me = torn.masters()[0], crowd()
    (name,) = names_on(torn, master)
    lock = Lock(name)
    me(lock, "acquire")
    me(lock, "release")
    if how == "is connected to late":
        kill(master.client())
    if how == "has not answered before":
        limit(monkeypatch, no_failover_within=math.inf)
        suspect(name)
        ask_cluster()  # nobody knows yet what will become of it
    torn.pause(master)
    torn.partition(master)  # it does not hear of what happens
    acquired = me.start(lock, "acquire")  # this is read when it runs again
    torn.wait_for_failover(master)
    torn.resume(master)
    assert acquired.result(GENEROUS)
    assert torn.owner_of(slot_of(name)).client().exists(key_of(name)), "the new master knows of it"
    me(lock, "release")
    torn.heal()


def test_an_answer_that_a_busy_process_reads_late_counts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    send = AbstractConnection.send_packed_command
    stalls: list[float] = []

    async def send_and_stand_still(self: Any, *args: Any, **options: Any) -> None:
        await send(self, *args, **options)
        while stalls:
            time.sleep(stalls.pop())

    async def section() -> bool:
        async with Lock("order:1"):
            pass
        stalls.append(0.5)
        return await Lock("order:1").aacquire(blocking_timeout=0)

    limit(monkeypatch, answer_grace=0.25)
    monkeypatch.setattr(AbstractConnection, "send_packed_command", send_and_stand_still)
    assert asyncio.run(section())
    assert stalls == []
