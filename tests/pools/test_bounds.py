"""Very many members: no script blocks Redis for long.

The bounds are numbers of commands, since the time that they take depends on the machine; where the time counts, it is
the shortest of several, as the server has measured it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.pools import ANY, BUSY, FREE, FRESH, HELD, POOL, TTL, audit, in_line
from tests.inside import after_round_trips

MANY, ALL = 20_000, 100_000
MOST = 3_000  # commands of one script

EVERY_OLD, EVERY_NEW = [f"old-{number:06}" for number in range(ALL)], [f"new-{number:06}" for number in range(ALL)]
OLD, NEW = EVERY_OLD[:MANY], EVERY_NEW[:MANY]


class Meter:
    """The most commands that one script of this process has called. Nothing else may run."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.most = 0
        self.before = self.count()

    def count(self) -> int:
        stats: dict[str, Any] = self.client.info("commandstats")
        return sum(int(stat["calls"]) for name, stat in stats.items() if name != "cmdstat_info")

    def note(self) -> None:
        after = self.count()
        self.most, self.before = max(self.most, after - self.before), after

    def use_all(self) -> None:
        """Hold each member once."""
        self.client.zunionstore(FREE, [FREE, FRESH])
        self.client.delete(FRESH)
        self.before = self.count()


@pytest.fixture
def meter(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter = Meter(client)
    after_round_trips(monkeypatch, lambda commands: meter.note())
    yield meter
    assert 0 < meter.most <= MOST


@pytest.fixture
def pool(meter: Meter) -> LockPool:
    return LockPool(POOL)


@contextmanager
def slow_log(client: redis.Redis) -> Iterator[Callable[[str], list[int]]]:
    """Microseconds that calls with this word have taken since."""
    client.config_set("slowlog-max-len", 10_000)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()

    def took(word: str) -> list[int]:
        log: list[Any] = client.slowlog_get(10_000)
        return [int(entry["duration"]) for entry in log if f" {word} ".encode() in entry["command"]]

    yield took
    client.config_set("slowlog-log-slower-than", 10_000)


def test_many_members_are_replaced_in_many_short_scripts_and_those_that_stay_keep_their_turns(
    pool: LockPool, meter: Meter
) -> None:
    assert pool.assign(OLD) == MANY
    meter.use_all()
    assert pool.assign(OLD) == 0
    assert [pool.acquire(blocking_timeout=0).key for _ in range(3)] == OLD[:3]
    assert pool.assign(NEW) == MANY
    assert pool.acquire(blocking_timeout=0).key == NEW[0]
    pool.clear()
    assert len(pool) == 0


def test_many_members_are_put_in_and_taken_out_in_many_short_scripts(pool: LockPool) -> None:
    assert pool.extend(OLD) == MANY
    assert pool.shrink(OLD[:-1]) == MANY - 1
    assert pool.acquire(blocking_timeout=0).key == OLD[-1]


@pytest.mark.parametrize(("how", "word"), [("extend", "add"), ("shrink", "remove")])
def test_a_change_of_one_member_costs_the_same_however_many_there_are(
    how: str, word: str, pool: LockPool, meter: Meter, client: redis.Redis
) -> None:
    costs = []
    for others in (OLD[:10], OLD):
        pool.assign([*others, "bob"])
        meter.use_all()
        meter.most = 0
        for number in range(5):
            assert getattr(pool, how)([f"alice {number}", "bob"]) == (how == "extend" or number == 0)
        costs.append(meter.most)
    assert costs[1] <= costs[0] + 10
    with slow_log(client) as took:
        for number in range(5):
            getattr(pool, how)([f"zoe {number}"])
        assert min(took(word)) < 2000  # no command goes through all members


def test_a_checkout_skips_former_members(pool: LockPool, client: redis.Redis) -> None:
    pool.extend(["zoe"])
    for key in (FRESH, FREE):
        client.zadd(key, dict.fromkeys(OLD[:5000], 0))
    assert pool.acquire(blocking_timeout=GENEROUS).key == "zoe"


@pytest.mark.parametrize("how", ["assign", "extend"])
def test_many_waiters_are_served_by_many_short_scripts(
    how: str, pool: LockPool, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    there = ghost()
    for number in range(1000):
        there.queue(f"{number:04}".ljust(22, "x"), name=ANY)
    assert getattr(pool, how)(OLD[:2000]) == 2000
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
    """The old set is not deleted, nor the new one copied, while others wait."""
    pool, over, seen, moments = LockPool(POOL), threading.Event(), [], []
    pool.assign(OLD)

    def turns() -> None:
        while not over.is_set():
            with pool.acquire(blocking_timeout=GENEROUS) as member:
                seen.append(member.key)

    with slow_log(client) as took, ThreadPoolExecutor(3) as threads:
        running = [threads.submit(turns) for _ in range(3)]
        for keys in (EVERY_NEW, EVERY_OLD, EVERY_NEW):
            pool.assign(keys)
            moments += took("switch")[:1]
        over.set()
        for turn in running:
            turn.result(GENEROUS)
    assert min(moments) < 5000
    assert set(seen) <= {*EVERY_OLD, *EVERY_NEW}
    assert len(seen) > 30
    found = audit(client)
    assert len(found.members) == ALL
    assert found.free == found.members
