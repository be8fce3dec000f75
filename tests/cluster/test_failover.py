"""Masters that die, hang or are cut off, and replicas that have to acknowledge grants (C2, C3, C5, C6)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from tests.helpers.cluster import Cluster, redis_cluster
from tests.inside import Ears, suspect

from .conftest import Eventually, Queue, key_of, names_on, slot_of, use

pytestmark = pytest.mark.complete


def test_a_dead_master_costs_the_failover_and_no_lock(own_cluster: Cluster, queue: Queue, settings: Any) -> None:
    first = own_cluster.masters()[0]
    names = names_on(own_cluster, first, 3)
    held = [Lock(name, ttl=60) for name in names]
    for lock in held:
        lock.acquire()
    waiting = [queue(Lock(name, ttl=60)) for name in names]
    fences = [lock.fence for lock in held]
    own_cluster.kill(first)
    assert {lock.name for lock in list_locks()} == set(names)
    for lock in held:
        lock.release()  # within RETRY_FOR, at the new master
    assert all(future.result(30) for future in waiting)
    now = {lock.name: lock.fence for lock in list_locks()}
    assert all(now[name] > fence for name, fence in zip(names, fences, strict=True))
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
    for node in own_cluster.reachable():
        own_cluster.kill(node)
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        list_locks()


def test_a_node_that_hangs_delays_no_lease_on_another(own_cluster: Cluster, eventually: Eventually) -> None:
    hangs, lives = own_cluster.masters()[:2]
    (one,), (two,) = names_on(own_cluster, hangs), names_on(own_cluster, lives)
    there, here = Lock(one, ttl=60), Lock(two, ttl=3)
    there.acquire()
    here.acquire()
    own_cluster.pause(hangs)
    for _ in range(3):
        end = time.monotonic() + here.remaining()
        eventually(lambda end=end: time.monotonic() + here.remaining() > end + 0.5)
    assert not here.lost


def test_a_lease_goes_on_at_the_new_master_when_the_old_one_is_cut_off(own_pools: None, eventually: Eventually) -> None:
    """It says CLUSTERDOWN, for as long as it is asked; nothing else in this process asks where the slots are."""
    with redis_cluster(partitionable=True) as cluster, use(cluster, TTL=9):
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


def test_replicas_acknowledge_grants_and_handoffs(
    own_cluster: Cluster, crowd: Any, queue: Queue, eventually: Eventually
) -> None:
    first = own_cluster.masters()[0]
    (name,), (replica,) = names_on(own_cluster, first), own_cluster.replicas_of(first)
    me, you = crowd(), crowd()
    lock, following, plain = Lock(name, replicas=1), Lock(name, replicas=1), Lock(name)
    with use(own_cluster, REPLICAS=2), pytest.raises(LockUnavailable, match="1 of 2 replicas"):
        Lock(name).acquire()
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


def serve_no_more(cluster: Cluster, *names: str) -> None:
    for node in cluster.masters():
        node.ask("CLUSTER", "DELSLOTS", *{slot_of(name) for name in names})


def test_a_slot_that_nobody_serves_fails_its_own_locks_alone(
    own_pools: None, crowd: Any, queue: Queue, eventually: Eventually
) -> None:
    options: dict[str, Any] = {"masters": 2, "replicas": 0, "cluster_require_full_coverage": "no"}
    with redis_cluster(**options) as cluster, use(cluster, TTL=60, RETRY_FOR=0.2):
        first, second = cluster.masters()
        (name, neighbour), (elsewhere,) = names_on(cluster, first, 2), names_on(cluster, second)
        me, held = crowd(), Lock(name)
        refused = pytest.raises(LockUnavailable, match=r"^Redis refuses to serve .*: CLUSTERDOWN Hash slot not served")
        me(held, "acquire")
        waiting = queue(Lock(name), crowd())
        serve_no_more(cluster, name)
        for since in ("before", "it was asked"):
            with refused:
                crowd()(Lock(name), "acquire", blocking_timeout=5)
            with refused:
                list_locks()
            for each in (neighbour, elsewhere):
                you, lock, following = crowd(), Lock(each), Lock(each)
                me(lock, "acquire")
                waiting_there = queue(following, you)
                eventually(lambda each=each: Ears(name=each).hears)
                me(lock, "release")
                assert waiting_there.result(30), since
                you(following, "release")
            suspect(None)
        first.ask("CLUSTER", "ADDSLOTS", slot_of(name))
        eventually(lambda: Lock(name).locked())
        me(held, "release")
        assert waiting.result(30)
        cluster.wait_until_ok()
        serve_no_more(cluster, *(f"order:{number}" for number in range(1000)))
        with use(cluster, RETRY_FOR=0.2), pytest.raises(LockUnavailable, match="cannot be reached"):
            Lock(name).acquire()
