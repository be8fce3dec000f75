"""C7: a master that was replaced while it was silent answers when it wakes up; nobody believes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.store.places import get_backend, get_place
from tests.helpers.actors import GENEROUS
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.helpers.ways import DJANGO_REDIS, alias

from .conftest import names_on, slot_of

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


@pytest.mark.parametrize("known", [False, True], ids=["answers late", "has not answered before"])
def test_what_it_still_had_to_read_is_asked_again_elsewhere(
    torn: Cluster, crowd: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, me = torn.masters()[0], crowd()
    (name,) = names_on(torn, master)
    lock = Lock(name)
    me(lock, "acquire")
    me(lock, "release")
    if known:
        monkeypatch.setattr("django_redislock.store.cluster.NO_FAILOVER_WITHIN", math.inf)
        get_place().doubt(get_backend(None, name).node)
        get_place().node_of(0)  # nobody knows yet what will become of it
    torn.pause(master)
    acquired = me.start(lock, "acquire")  # this request is read when it runs again
    torn.wait_for_failover(master)
    torn.partition(master)  # and nobody tells it before
    torn.resume(master)
    assert acquired.result(GENEROUS)
    assert held_at(torn, name)
    me(lock, "release")
    torn.heal()


def held_at(cluster: Cluster, name: str) -> bool:
    """Whether the master of today knows that the lock is held."""
    key = f"{get_backend(None, name).prefix}lock:{name}"
    return bool(cluster.owner_of(slot_of(name)).client().exists(key))
