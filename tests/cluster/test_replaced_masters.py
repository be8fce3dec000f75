"""C7: a master that was replaced while it was silent answers when it wakes up, and nobody believes it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_redislock import Lock
from tests.helpers.actors import GENEROUS
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.state import count
from tests.helpers.ways import DJANGO_REDIS, alias
from tests.inside import ask_cluster, limit, suspect

from .conftest import key_of, names_on, slot_of

pytestmark = pytest.mark.complete


@pytest.mark.parametrize("how", ["answers late", "has not answered before"])
def test_requests_that_a_replaced_master_had_not_read_are_sent_to_the_new_one(
    how: str, own_pools: None, settings: Any, crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections have much patience, and the nodes can be cut off from each other."""
    with redis_cluster(partitionable=True) as cluster:
        locks = alias(DJANGO_REDIS, [node.url for node in cluster.masters()[:2]], socket_timeout=GENEROUS)
        settings.CACHES = {**settings.CACHES, "locks": locks}
        settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": True, "TTL": 60}
        master, me = cluster.masters()[0], crowd()
        (name,) = names_on(cluster, master)
        lock = Lock(name)
        me(lock, "acquire")
        me(lock, "release")
        if how == "has not answered before":
            limit(monkeypatch, no_failover_within=math.inf)
            suspect(name)
            ask_cluster()  # nobody knows yet what will become of it
        cluster.pause(master)
        cluster.partition(master)  # it does not hear of what happens
        acquired = me.start(lock, "acquire")  # this is read when it runs again
        cluster.wait_for_failover(master)
        cluster.resume(master)
        assert acquired.result(GENEROUS)
        assert cluster.owner_of(slot_of(name)).client().exists(key_of(name)), "the new master knows of it"
        me(lock, "release")


@pytest.mark.parametrize("trouble", ["a lost connection", "late answers"])
def test_a_node_that_was_in_trouble_is_asked_about_until_another_one_has_named_it(
    trouble: str, cluster: Cluster, crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer than that."""

    def use_it(times: int) -> int:
        """How often the nodes were asked by then where the slots are."""
        for _ in range(times):
            me(lock, "acquire")
            me(lock, "release")
        return sum(count(node.client(), "cluster|slots") for node in cluster.nodes)

    limit(monkeypatch, no_failover_within=GENEROUS)
    (name,) = names_on(cluster, cluster.masters()[0])
    me, lock = crowd(), Lock(name)
    before = use_it(1)
    with monkeypatch.context() as patch:
        if trouble == "a lost connection":
            suspect(name)
        else:
            limit(patch, no_failover_within=-1.0)
        use_it(2)
    asked = use_it(1)
    assert asked > before
    assert use_it(3) == asked
