"""The sentinels that tests run on do what they are told, and agree on it."""

from __future__ import annotations

import pytest
import redis

from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.helpers.sentinels import NAME, redis_sentinels

pytestmark = pytest.mark.complete


def test_three_sentinels_replace_a_master_that_is_told_to_go_and_one_that_dies() -> None:
    # one before Redis 7 does the same, in a minute
    with redis_sentinels(executable=require(find_cluster_server), requirepass="p@ss w/o#") as group:
        assert len(group.sentinel_addresses) == 3
        first = group.master_server()
        group.failover()
        second = group.master_server()
        assert second is not first
        assert group.kill_master() is second
        group.wait_for_failover(second)
        third = group.master_server()
        assert third is not second
        second.start()
        group.wait_until_ok()
        assert group.master_server() is third
        sentinels = redis.Sentinel(group.sentinel_addresses)
        assert sentinels.discover_master(NAME)[1] == third.port
        for client in sentinels.sentinels:
            client.close()
