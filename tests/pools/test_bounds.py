"""Very many members: no script blocks Redis for long.

The bounds are numbers of commands, since the time that they take depends on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from django_redislock.store.lock_store import Partition
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.pools import ANY, BUSY, FREE, FRESH, HELD, POOL, TTL, audit, in_line

MANY, ALL = 20_000, 100_000
MOST = 3_000  # commands of one script

EVERY_OLD, EVERY_NEW = [f"old-{number:06}" for number in range(ALL)], [f"new-{number:06}" for number in range(ALL)]
OLD, NEW = EVERY_OLD[:MANY], EVERY_NEW[:MANY]


class Meter:
    """The most commands that one script of this process has called. Nothing else may run."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.most = 0
        self.scripts = 0
        self.before = self.count()

    def count(self) -> int:
        stats: dict[str, Any] = self.client.info("commandstats")
        return sum(int(stat["calls"]) for name, stat in stats.items() if name != "cmdstat_info")


@pytest.fixture
def meter(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Meter:
    meter, exchange = Meter(client), Partition.exchange

    def measured(self: Partition, commands: Any, *args: Any) -> Any:
        answer = exchange(self, commands, *args)
        after = meter.count()
        meter.most, meter.before = max(meter.most, after - meter.before), after
        meter.scripts += 1
        return answer

    monkeypatch.setattr(Partition, "exchange", measured)
    return meter


@pytest.fixture
def pool(meter: Meter) -> Iterator[LockPool]:
    yield LockPool(POOL)
    print(f"{meter.scripts} scripts with at most {meter.most} commands")
    assert 0 < meter.most <= MOST


def use_all(client: redis.Redis, meter: Meter) -> None:
    """Hold each member once."""
    client.zunionstore(FREE, [FREE, FRESH])
    client.delete(FRESH)
    meter.before = meter.count()


def test_an_assign_of_many_members_is_many_short_scripts(pool: LockPool, meter: Meter, client: redis.Redis) -> None:
    assert pool.assign(OLD) == MANY
    use_all(client, meter)
    assert pool.assign(NEW) == MANY
    assert pool.acquire(blocking_timeout=0).key == NEW[0]
    pool.clear()
    assert len(pool) == 0


def test_assigning_the_same_used_members_again_keeps_their_turns(
    pool: LockPool, meter: Meter, client: redis.Redis
) -> None:
    pool.assign(OLD)
    use_all(client, meter)
    assert pool.assign(OLD) == 0
    assert [pool.acquire(blocking_timeout=0).key for _ in range(3)] == OLD[:3]


def test_an_extend_and_a_shrink_of_many_members_are_many_short_scripts(pool: LockPool) -> None:
    assert pool.extend(OLD) == MANY
    assert pool.shrink(OLD[:-1]) == MANY - 1
    assert pool.acquire(blocking_timeout=0).key == OLD[-1]


@pytest.mark.parametrize("how", ["extend", "shrink"])
def test_a_change_of_one_member_costs_the_same_however_many_there_are(
    how: str, pool: LockPool, meter: Meter, client: redis.Redis
) -> None:
    costs = []
    for others in (OLD[:10], OLD):
        pool.assign([*others, "bob"])
        use_all(client, meter)
        meter.most = 0
        for number in range(5):
            assert getattr(pool, how)([f"alice {number}", "bob"]) == (how == "extend" or number == 0)
        costs.append(meter.most)
    few, many = costs
    assert many <= few + 10
    client.config_set("slowlog-max-len", 10_000)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    for number in range(5):
        getattr(pool, how)([f"zoe {number}"])
    client.config_set("slowlog-log-slower-than", 10_000)
    log: list[Any] = client.slowlog_get(1000)
    took = [int(entry["duration"]) for entry in log if entry["command"].startswith(b"EVALSHA")]
    assert len(took) == 5
    assert min(took) < 2000  # microseconds: no command goes through all members


def test_a_checkout_skips_former_members(pool: LockPool, client: redis.Redis) -> None:
    pool.extend(["zoe"])
    for key in (FRESH, FREE):
        client.zadd(key, dict.fromkeys(OLD[:5000], 0))
    assert pool.acquire(blocking_timeout=GENEROUS).key == "zoe"


def test_many_waiters_are_served_by_many_short_scripts(
    pool: LockPool, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    there = ghost()
    for number in range(1000):
        there.queue(f"{number:04}".ljust(22, "x"), name=ANY)
    pool.extend(OLD[:2000])
    assert in_line(client) == []
    assert len(audit(client).held) == 1000


@pytest.mark.complete
def test_many_leases_that_end_at_once_are_taken_back_by_many_short_scripts(
    pool: LockPool, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    there, count = ghost(), 1000
    pool.extend(OLD[:count])
    for number in range(count):
        there.queue(f"{number:04}".ljust(22, "x"), name=ANY, ttl=TTL)
    client.zadd(BUSY, dict.fromkeys(OLD[:count], 1), xx=True)
    for number in range(count):
        there.queue(f"{number:04}".ljust(22, "y"), name=ANY, ttl=TTL)
    assert client.hlen(HELD) == count
    assert in_line(client) == []


@pytest.mark.complete
def test_others_check_members_out_while_all_are_assigned_and_the_moment_of_that_is_short(client: redis.Redis) -> None:
    """Also measured in time: the old set is not deleted, nor the new one copied, while others wait."""
    pool, over, seen = LockPool(POOL), threading.Event(), []
    pool.assign(OLD)
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 10_000)

    def turns() -> None:
        while not over.is_set():
            with pool.acquire(blocking_timeout=GENEROUS) as member:
                seen.append(member.key)

    moments = []
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(turns) for _ in range(3)]
        for keys in (EVERY_NEW, EVERY_OLD, EVERY_NEW):
            pool.assign(keys)
            moments.append(last_switch(client))
        over.set()
        for turn in running:
            turn.result(GENEROUS)
    client.config_set("slowlog-log-slower-than", 10_000)
    assert min(moments) < 5000
    assert set(seen) <= {*EVERY_OLD, *EVERY_NEW}
    assert len(seen) > 30
    found = audit(client)
    assert len(found.members) == ALL
    assert found.free == found.members


def last_switch(client: redis.Redis) -> int:
    """Microseconds that the last change of all members has taken."""
    log: list[Any] = client.slowlog_get(10_000)
    return next(int(entry["duration"]) for entry in log if b" switch " in entry["command"])
