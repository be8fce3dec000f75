"""The cluster helper of the tests does what it is told, while clients can use the cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterDownError

from django_redislock.store.wire import classified
from rediscluster import SLOTS
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import Node, find_cluster_server
from tests.helpers.processes import Worker
from tests.helpers.requirements import require

SLOT = 6252  # of the key "{tickets}"

Eventually = Callable[..., Any]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with redis_cluster(executable=require(find_cluster_server), partitionable=True, requirepass="p@ss w/o#") as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Each test must leave as many nodes as it found, all of them working."""
    count = len(running.nodes)
    yield running
    running.wait_until_ok()
    assert len(running.nodes) == count


@pytest.fixture
def site(cluster: Cluster) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster.from_url(cluster.nodes[0].url) as client:
        client.flushall()
        yield client


def replicated(master: Node) -> None:
    """Wait until the node's replica has everything written so far."""
    with master.client() as client:
        client.set("{tickets}mark", 1)
        assert client.wait(1, 10_000) == 1


@contextmanager
def refused(kind: type[redis.ResponseError]) -> Iterator[None]:
    """The block ends with this error, for which redis-py 5 has a class of its own in its cluster client only."""
    with pytest.raises(redis.ResponseError) as caught:
        yield
    assert isinstance(classified(caught.value), kind)


@pytest.mark.complete
def test_every_slot_has_an_owner_and_every_owner_a_replica(cluster: Cluster, site: redis.RedisCluster) -> None:
    masters = cluster.masters()
    assert len(masters) == 3
    assert sorted(cluster.owners()) == list(range(SLOTS))
    assert set(cluster.owners().values()) == set(masters)
    replicas = [replica for master in masters for replica in cluster.replicas_of(master)]
    assert {*masters, *replicas} == set(cluster.nodes)
    for number in range(100):
        assert site.set(f"key:{number}", number)
    sizes = [master.ask("DBSIZE") for master in masters]
    assert sum(sizes) == 100
    assert min(sizes) > 10


@pytest.mark.complete
def test_a_slot_moves_while_a_client_uses_it(cluster: Cluster, site: redis.RedisCluster) -> None:
    counted = 0
    over = threading.Event()

    def count() -> None:
        nonlocal counted
        while not over.is_set():
            site.incr("{tickets}sold")
            counted += 1

    for number in range(500):
        site.set(f"{{tickets}}{number}", number)
    source, target, *_ = sorted(cluster.masters(), key=lambda node: node is not cluster.owner_of(SLOT))
    thread = threading.Thread(target=count)
    thread.start()
    try:
        cluster.move(SLOT, to=target)
        assert cluster.owner_of(SLOT) is target
        cluster.begin_move(SLOT, to=source)
        with refused(AskError):
            target.ask("GET", "{tickets}no-such-key")
        cluster.migrate_keys(SLOT)
        cluster.finish_move(SLOT)
        assert cluster.owner_of(SLOT) is source
    finally:
        over.set()
        thread.join()
    assert counted > 0
    assert int(site.get("{tickets}sold")) == counted  # type: ignore[arg-type]
    assert all(site.get(f"{{tickets}}{number}") == b"%d" % number for number in range(500))


@pytest.mark.complete
def test_a_replica_is_made_master_and_nothing_is_lost(cluster: Cluster, site: redis.RedisCluster) -> None:
    site.set("{tickets}", "kept")
    old = cluster.owner_of(SLOT)
    (replica,) = cluster.replicas_of(old)
    cluster.failover(replica)
    assert cluster.owner_of(SLOT) is replica
    assert cluster.replicas_of(replica) == [old]
    assert site.get("{tickets}") == b"kept"


@pytest.mark.complete
def test_a_master_that_is_killed_or_paused_is_replaced_and_comes_back_as_a_replica(
    cluster: Cluster, site: redis.RedisCluster
) -> None:
    for hurt, heal in (cluster.kill, cluster.start), (cluster.pause, cluster.resume):
        old = cluster.owner_of(SLOT)
        (replica,) = cluster.replicas_of(old)
        hurt(old)
        cluster.wait_for_failover(old)
        assert cluster.owner_of(SLOT) is replica
        assert old not in cluster.masters()
        heal(old)
        cluster.wait_until_ok()
        assert cluster.replicas_of(replica) == [old]


@pytest.mark.complete
def test_a_master_that_is_cut_off_serves_its_clients_until_its_own_timeout(
    cluster: Cluster, eventually: Eventually
) -> None:
    old = cluster.owner_of(SLOT)
    (replica,) = cluster.replicas_of(old)
    with old.client() as stale, replica.client() as fresh:
        replicated(old)
        cluster.partition(old)
        eventually(lambda: old.replication()["connected_slaves"] == 0)
        assert stale.set("{tickets}", "never was")
        cluster.wait_for_failover(old)
        assert cluster.owner_of(SLOT) is replica
        assert fresh.get("{tickets}") is None
        eventually(lambda: b"cluster_state:fail" in old.ask("CLUSTER", "INFO"))
        with refused(ClusterDownError):
            stale.get("{tickets}")
        cluster.heal()
        cluster.wait_until_ok()
        assert cluster.replicas_of(replica) == [old]
        assert fresh.get("{tickets}") is None


@pytest.mark.complete
def test_a_replica_that_is_cut_off_catches_up(cluster: Cluster, eventually: Eventually) -> None:
    master = cluster.owner_of(SLOT)
    (replica,) = cluster.replicas_of(master)
    cluster.partition(replica)
    eventually(lambda: replica.replication()["master_link_status"] == "down")
    cluster.wait_until_ok()
    assert cluster.owner_of(SLOT) is master
    cluster.heal()
    cluster.wait_until_ok()
    replicated(master)


@pytest.mark.complete
def test_a_master_joins_and_one_leaves(cluster: Cluster, site: redis.RedisCluster) -> None:
    for number in range(100):
        site.set(f"key:{number}", number)
    new = cluster.add_master()
    assert new in cluster.masters()
    owners = cluster.owners()
    slots = [slot for slot, owner in owners.items() if owner is owners[SLOT]][:50]
    cluster.move(*slots, to=new)
    assert cluster.owner_of(slots[0]) is new
    cluster.remove(new)
    assert new.process is None
    assert new not in cluster.owners().values()
    assert all(site.get(f"key:{number}") == b"%d" % number for number in range(100))


@pytest.mark.complete
def test_servers_end_and_their_folders_go_when_the_tests_are_killed(eventually: Eventually) -> None:
    worker = Worker("""
from redisserver import RedisServer
from tests.helpers.guard import Guard
guard, servers = Guard(), [RedisServer(), RedisServer()]
for server in servers:
    guard.watch(server.folder)
servers[0].start()
say("server", servers[0].process.pid, *[server.folder for server in servers])
hear()
""")
    pid, *folders = worker.expect("server")
    os.kill(int(pid), 0)
    worker.signal(signal.SIGKILL)
    worker.kill()
    eventually(lambda: not any(Path(folder).exists() for folder in folders))
    eventually(lambda: not Path("/proc", pid, "cwd").is_symlink())
