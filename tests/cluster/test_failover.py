"""Masters that die, hang or are cut off, and replicas that have to acknowledge grants (C2, C3, C5, C6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from django_redislock.engine.runtime import runtime
from django_redislock.store.stores import get_partition, make_store
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.inside import counter_of, lease_of

from .conftest import Eventually, names_on, port_of, slot_of, use

pytestmark = pytest.mark.complete


def test_a_dead_master_costs_the_failover_and_no_lock(own_cluster: Cluster, other: Any, eventually: Eventually) -> None:
    first = own_cluster.masters()[0]
    names = names_on(own_cluster, first, 3)
    held = [Lock(name, ttl=60) for name in names]
    for lock in held:
        lock.acquire()
    waiting = [other().start(Lock(name, ttl=60).acquire) for name in names]
    for name in names:
        eventually(lambda name=name: (info := get_lock(name)) is not None and info.waiters == 1)
    fences = [lock.fence for lock in held]
    own_cluster.kill(first)
    for lock in held:
        lock.release()  # within RETRY_FOR, at the new master
    assert all(future.result(30) for future in waiting)
    for name, fence in zip(names, fences, strict=True):
        info = get_lock(name)
        assert info is not None
        assert info.fence > fence


def test_a_node_that_hangs_delays_no_lease_on_another(own_cluster: Cluster, eventually: Eventually) -> None:
    hangs, lives = own_cluster.masters()[:2]
    (one,), (two,) = names_on(own_cluster, hangs), names_on(own_cluster, lives)
    there, here = Lock(one, ttl=60), Lock(two, ttl=3)
    there.acquire()
    here.acquire()
    own_cluster.pause(hangs)
    try:
        for _ in range(3):
            end = lease_of(here).ends
            eventually(lambda end=end: lease_of(here).ends > end)
        assert not here.lost
    finally:
        own_cluster.resume(hangs)


def test_a_lease_goes_on_at_the_new_master_when_the_old_one_is_cut_off(own_pools: None, eventually: Eventually) -> None:
    """It says CLUSTERDOWN, for as long as it is asked; nothing else in this process asks where the slots are."""
    with redis_cluster(partitionable=True, executable=require(find_cluster_server)) as cluster, use(cluster, TTL=9):
        first = cluster.masters()[0]
        (name,) = names_on(cluster, first)
        lock = Lock(name)
        lock.acquire()
        cluster.partition(first)
        cluster.wait_for_failover(first)
        new = cluster.owner_of(slot_of(name)).client()
        key = f"{get_partition(None, name).prefix}lock:{name}"
        left = new.pttl(key)
        eventually(lambda: lock.lost or int(new.pttl(key)) > left)
        assert not lock.lost
        lock.release()
        cluster.heal()


def test_a_handoff_by_a_replaced_master_that_wakes_up_is_ignored(
    own_cluster: Cluster, crowd: Any, eventually: Eventually
) -> None:
    """It works off a renewal of before, finds the lease at its end, and is heard through the new master."""
    first = own_cluster.masters()[0]
    names = names_on(own_cluster, first, 4)
    held = [Lock(name, ttl=9) for name in names]
    me = crowd()
    for lock in held:
        me(lock, "acquire")
    waiting = [crowd().start(Lock(name, ttl=9), "acquire") for name in names]
    for name in names:
        eventually(lambda name=name: (info := get_lock(name)) is not None and info.waiters == 1)
    over = time.monotonic() + first.client().pttl(f"{get_partition(None, names[0]).prefix}lock:{names[0]}") / 1000 + 3
    own_cluster.pause(first)
    own_cluster.wait_for_failover(first)
    listeners = [runtime().listener(get_partition(None, name)) for name in names]
    eventually(lambda: all(one.hears and one.partition.subscribed_at is one.partition.node for one in listeners))
    eventually(lambda: time.monotonic() > over and all(lock.remaining() > 5 for lock in held))
    own_cluster.resume(first)
    eventually(lambda: first.replication()["role"] == "slave" and first.replication()["master_link_status"] == "up")
    assert not any(future.done() for future in waiting)
    assert not any(lock.lost for lock in held)
    for lock in held:
        me(lock, "release")
    assert all(future.result(30) for future in waiting)


def test_replicas_acknowledge_grants_and_handoffs(own_cluster: Cluster, crowd: Any, eventually: Eventually) -> None:
    first = own_cluster.masters()[0]
    (name,) = names_on(own_cluster, first)
    (replica,) = own_cluster.replicas_of(first)
    me, you = crowd(), crowd()
    lock, following = Lock(name, replicas=1), Lock(name, replicas=1)
    me(lock, "acquire")
    waiting = you.start(following, "acquire")
    eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
    me(lock, "release")
    assert waiting.result(30)
    offset = first.replication()["slave0"]["offset"]
    assert offset > 0
    you(following, "release")
    own_cluster.kill(replica)
    with pytest.raises(LockUnavailable, match=r"0 of 1 replicas acknowledged it within 0\.5 s\.$"):
        me(lock, "acquire")
    eventually(lambda: get_lock(name) is None)  # it was withdrawn
    plain = Lock(name)
    me(plain, "acquire")
    me(plain, "release")


def test_a_handoff_that_no_replica_acknowledges_is_passed_on(
    own_cluster: Cluster, other: Any, eventually: Eventually
) -> None:
    first = own_cluster.masters()[0]
    (name,) = names_on(own_cluster, first)
    (replica,) = own_cluster.replicas_of(first)
    held = Lock(name)
    held.acquire()
    waiting = other().start(Lock(name, replicas=1).acquire)
    eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
    own_cluster.kill(replica)
    held.release()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        waiting.result(30)
    eventually(lambda: get_lock(name) is None)


def test_replicas_of_the_settings(own_cluster: Cluster) -> None:
    with use(own_cluster, REPLICAS=2), pytest.raises(LockUnavailable, match="1 of 2 replicas"):
        Lock("order:1").acquire()
    with use(own_cluster, REPLICAS=1), Lock("order:1"):
        pass


def test_locks_are_listed_through_a_failover_and_not_without_a_cluster(own_cluster: Cluster, settings: Any) -> None:
    names = [name for node in own_cluster.masters() for name in names_on(own_cluster, node)]
    for name in names:
        Lock(name, ttl=60).acquire()
    own_cluster.kill(own_cluster.masters()[0])
    assert {lock.name for lock in list_locks()} == set(names)
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    for node in own_cluster.nodes:
        if node.process:
            own_cluster.kill(node)
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        list_locks()


@pytest.fixture
def partial_cluster(own_pools: None) -> Iterator[Cluster]:
    """One that goes on without some of its slots."""
    executable = require(find_cluster_server)
    options = {"masters": 2, "replicas": 0, "cluster_require_full_coverage": "no"}
    with redis_cluster(executable=executable, **options) as cluster, use(cluster, TTL=60, RETRY_FOR=0.2):
        yield cluster


def test_a_slot_that_nobody_serves_fails_its_own_locks_alone(
    partial_cluster: Cluster, other: Any, eventually: Eventually
) -> None:
    first, second = partial_cluster.masters()
    (name, neighbour), (elsewhere,) = names_on(partial_cluster, first, 2), names_on(partial_cluster, second)

    def wait_for(held: Lock) -> Any:
        held.acquire()
        waiting = other().start(Lock(held.name).acquire)
        eventually(lambda: (info := get_lock(held.name)) is not None and info.waiters == 1)
        return waiting

    held = Lock(name)
    waiting = wait_for(held)
    for node in (first, second):
        node.ask("CLUSTER", "DELSLOTS", slot_of(name))
    refused = pytest.raises(LockUnavailable, match=r"^Redis refuses to serve .*: CLUSTERDOWN Hash slot not served")
    with refused:
        Lock(name).acquire(blocking_timeout=5)
    with refused:
        asyncio.run(Lock(name).aacquire(blocking_timeout=5))
    with refused:
        list_locks()
    for lock in (Lock(neighbour), Lock(elsewhere)):
        waiting_there = wait_for(lock)
        eventually(lambda lock=lock: runtime().listener(get_partition(None, lock.name)).hears)
        lock.release()
        assert waiting_there.result(30)
    fresh = make_store("locks", "redislock")  # as a process that starts now
    ports = [fresh.node_of(counter_of(each)).origin.keywords["port"] for each in (neighbour, elsewhere)]
    assert ports == [first.port, second.port]
    assert fresh.node_of(counter_of(name))
    first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
    eventually(lambda: Lock(name).locked())
    held.release()
    assert waiting.result(30)


def test_a_slot_that_nobody_serves_is_subscribed_to_when_somebody_waits_there(
    partial_cluster: Cluster, eventually: Eventually
) -> None:
    """Until then, nobody tries again and again."""
    first, second = partial_cluster.masters()
    (name, neighbour), (elsewhere,) = names_on(partial_cluster, first, 2), names_on(partial_cluster, second)
    for node in (first, second):
        node.ask("CLUSTER", "DELSLOTS", slot_of(name))
    unserved, *served = (runtime().listener(get_partition(None, each)) for each in (name, neighbour, elsewhere))
    for listener in served:
        listener.start()
    eventually(lambda: all(listener.hears and listener.receiver is not None for listener in served))
    subscriber = unserved._want.__self__  # type: ignore[attr-defined]
    eventually(lambda: subscriber._thread is None)
    assert not unserved.ready
    unserved.start()
    eventually(lambda: unserved in subscriber._pauses)
    first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
    eventually(lambda: unserved.hears)


def test_waiters_whose_master_hangs_are_subscribed_to_the_new_one(
    own_cluster: Cluster, other: Any, eventually: Eventually
) -> None:
    """C3: nothing tells them. Their looks, and those of others, are answered by another node."""
    first = own_cluster.masters()[0]
    (name,) = names_on(own_cluster, first)
    held = Lock(name, ttl=60)
    held.acquire()
    waiting = other().start(Lock(name, ttl=60).acquire)
    listener = runtime().listener(get_partition(None, name))
    eventually(lambda: listener.hears and (info := get_lock(name)) is not None and info.waiters == 1)
    own_cluster.pause(first)
    own_cluster.wait_for_failover(first)
    node = own_cluster.owner_of(slot_of(name))
    eventually(lambda: port_of(listener) == node.port)
    held.release()
    assert waiting.result(30)
    own_cluster.resume(first)
