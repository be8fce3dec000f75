"""Masters that die, hang or are cut off, and replicas that have to acknowledge grants (C2, C3, C5, C6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.inside import Subscription, suspect

from .conftest import Eventually, Queue, key_of, names_on, slot_of, use

pytestmark = pytest.mark.complete


def test_a_dead_master_costs_the_failover_and_no_lock(own_cluster: Cluster, queue: Queue) -> None:
    first = own_cluster.masters()[0]
    held = [Lock(name, ttl=60) for name in names_on(own_cluster, first, 3)]
    for lock in held:
        lock.acquire()
    waiting = [queue(Lock(lock.name, ttl=60)) for lock in held]
    fences = [lock.fence for lock in held]
    own_cluster.kill(first)
    for lock in held:
        lock.release()  # within RETRY_FOR, at the new master
    assert all(future.result(30) for future in waiting)
    for lock, fence in zip(held, fences, strict=True):
        info = get_lock(lock.name)
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
            end = time.monotonic() + here.remaining()
            eventually(lambda end=end: time.monotonic() + here.remaining() > end + 0.5)
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
        left = new.pttl(key_of(name))
        eventually(lambda: lock.lost or int(new.pttl(key_of(name))) > left)
        assert not lock.lost
        lock.release()
        cluster.heal()


def test_a_handoff_by_a_replaced_master_that_wakes_up_is_ignored(
    own_cluster: Cluster, crowd: Any, queue: Queue, eventually: Eventually
) -> None:
    """It works off a renewal of before, finds the lease at its end, and is heard through the new master: C3, nothing
    told the waiters to subscribe there but their looks."""
    first, me = own_cluster.masters()[0], crowd()
    held = [Lock(name, ttl=9) for name in names_on(own_cluster, first, 4)]
    for lock in held:
        me(lock, "acquire")
    waiting = [queue(Lock(lock.name, ttl=9), crowd()) for lock in held]
    over = time.monotonic() + first.client().pttl(key_of(held[0].name)) / 1000 + 3
    own_cluster.pause(first)
    own_cluster.wait_for_failover(first)
    ears = [Subscription(lock.name) for lock in held]
    eventually(lambda: all(each.used_for_handovers for each in ears))
    eventually(lambda: time.monotonic() > over and me.read(lambda: all(lock.remaining() > 5 for lock in held)))
    own_cluster.resume(first)
    eventually(lambda: first.replication()["role"] == "slave" and first.replication()["master_link_status"] == "up")
    assert not any(future.done() for future in waiting)
    assert not any(lock.lost for lock in held)
    for lock in held:
        me(lock, "release")
    assert all(future.result(30) for future in waiting)


def test_replicas_acknowledge_grants_and_handoffs(
    own_cluster: Cluster, crowd: Any, queue: Queue, eventually: Eventually
) -> None:
    first = own_cluster.masters()[0]
    (name,), (replica,) = names_on(own_cluster, first), own_cluster.replicas_of(first)
    me, you = crowd(), crowd()
    lock, following, plain = Lock(name, replicas=1), Lock(name, replicas=1), Lock(name)
    me(lock, "acquire")
    waiting = queue(following, you)
    me(lock, "release")
    assert waiting.result(30)
    you(following, "release")

    me(plain, "acquire")
    waiting = queue(following, you)
    own_cluster.kill(replica)
    me(plain, "release")
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        waiting.result(30)
    eventually(lambda: get_lock(name) is None)  # the handoff was passed on, or withdrawn
    with pytest.raises(LockUnavailable, match=r"0 of 1 replicas acknowledged it within 0\.5 s\.$"):
        me(lock, "acquire")
    eventually(lambda: get_lock(name) is None)
    me(plain, "acquire")
    me(plain, "release")


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
    for node in own_cluster.reachable():
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


def serve_no_more(cluster: Cluster, *names: str) -> None:
    for node in cluster.masters():
        node.ask("CLUSTER", "DELSLOTS", *{slot_of(name) for name in names})


def test_a_slot_that_nobody_serves_fails_its_own_locks_alone(
    partial_cluster: Cluster, crowd: Any, queue: Queue, eventually: Eventually
) -> None:
    first, second = partial_cluster.masters()
    (name, neighbour), (elsewhere,) = names_on(partial_cluster, first, 2), names_on(partial_cluster, second)
    me, held = crowd(), Lock(name)
    refused = pytest.raises(LockUnavailable, match=r"^Redis refuses to serve .*: CLUSTERDOWN Hash slot not served")
    me(held, "acquire")
    waiting = queue(Lock(name), crowd())
    serve_no_more(partial_cluster, name)
    for since in ("before", "it was asked"):
        with refused:
            crowd()(Lock(name), "acquire", blocking_timeout=5)
        with refused:
            list_locks()
        for each in (neighbour, elsewhere):
            you, lock, following = crowd(), Lock(each), Lock(each)
            me(lock, "acquire")
            waiting_there = queue(following, you)
            eventually(lambda each=each: Subscription(each).hears)
            me(lock, "release")
            assert waiting_there.result(30), since
            you(following, "release")
        suspect(None)
    first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
    eventually(lambda: Lock(name).locked())
    me(held, "release")
    assert waiting.result(30)


def test_a_cluster_that_serves_no_slot_of_ours_is_away(partial_cluster: Cluster) -> None:
    serve_no_more(partial_cluster, *(f"order:{number}" for number in range(1000)))
    with pytest.raises(LockUnavailable, match="cannot be reached"):
        Lock("order:1").acquire()


def test_a_slot_that_nobody_serves_is_subscribed_to_when_somebody_waits_there(
    partial_cluster: Cluster, eventually: Eventually
) -> None:
    """Until then, nobody tries again and again."""
    first, second = partial_cluster.masters()
    (name, neighbour), (elsewhere,) = names_on(partial_cluster, first, 2), names_on(partial_cluster, second)
    serve_no_more(partial_cluster, name)
    unserved, *served = map(Subscription, (name, neighbour, elsewhere))
    for ears in served:
        ears.start()
    eventually(lambda: all(ears.hears for ears in served))
    eventually(lambda: unserved.is_quiet)
    assert not unserved.ready
    unserved.start()
    eventually(lambda: unserved.is_refused)
    first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
    eventually(lambda: unserved.hears)
