"""The servers that tests start for themselves: what would go wrong without a test that fails for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from redisserver import RedisServer, redis_server
from tests.helpers.cluster import redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.processes import Worker
from tests.helpers.requirements import require

Eventually = Callable[..., Any]


def test_a_port_that_was_taken_meanwhile_is_not_used() -> None:
    with redis_server() as other:
        other.client().set("key", "theirs")
        server = RedisServer()
        server.port = other.port
        try:
            server.start()
            assert server.port != other.port
            assert server.client().get("key") is None
        finally:
            server.close()


@pytest.mark.complete
def test_a_master_that_is_cut_off_is_served_by_nobody_and_serves_its_clients_until_its_own_timeout(
    eventually: Eventually,
) -> None:
    with redis_cluster(executable=require(find_cluster_server), partitionable=True) as cluster:
        old = cluster.owner_of(6252)  # the slot of the key "{tickets}"
        (replica,) = cluster.replicas_of(old)
        with old.client() as stale, replica.client() as fresh:
            cluster.partition(old)
            eventually(lambda: old.replication()["connected_slaves"] == 0)
            assert stale.set("{tickets}", "never was")
            cluster.wait_for_failover(old)
            assert cluster.owner_of(6252) is replica
            assert fresh.get("{tickets}") is None
            eventually(lambda: b"cluster_state:fail" in old.ask("CLUSTER", "INFO"))
            with pytest.raises(redis.ResponseError, match="The cluster is down"):
                old.ask("GET", "{tickets}")
            cluster.heal()
            cluster.wait_until_ok()
            assert cluster.replicas_of(replica) == [old]
            assert fresh.get("{tickets}") is None


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
