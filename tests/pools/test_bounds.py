"""Very many members: no script calls very many commands, so none blocks Redis for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from tests.helpers.actors import GENEROUS
from tests.helpers.pools import FREE, FRESH, POOL
from tests.inside import note_round_trips

OLD, NEW = [f"old-{number:05}" for number in range(20_000)], [f"new-{number:05}" for number in range(20_000)]


@pytest.fixture
def used(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """No script of this process calls many commands; nothing else may run. When called, it lets each member be used."""

    def count() -> int:
        stats: dict[str, Any] = client.info("commandstats")
        return sum(int(stat["calls"]) for name, stat in stats.items() if name != "cmdstat_info")

    counts = [count()]
    note_round_trips(monkeypatch, after=lambda *_: counts.append(count()))

    def used() -> None:
        client.zunionstore(FREE, [FREE, FRESH])
        client.delete(FRESH)
        counts[-1] = count()

    yield used
    assert 0 < max(after - before for before, after in pairwise(counts)) <= 3000


def test_many_members_are_replaced_in_short_scripts_and_those_that_stay_keep_their_turns(
    used: Callable[[], None], client: redis.Redis
) -> None:
    pool = LockPool(POOL)
    assert pool.assign(OLD) == 20_000
    used()
    assert pool.assign(OLD) == 0
    assert pool.extend(["zoe", OLD[0]]) == pool.shrink(["zoe"]) == 1
    assert [pool.acquire(blocking_timeout=0).key for _ in range(3)] == OLD[:3]
    assert pool.assign(NEW) == 20_000
    assert pool.acquire(blocking_timeout=0).key == NEW[0]
    assert pool.shrink(NEW[:-1]) == 20_000 - 1
    client.zadd(FRESH, dict.fromkeys(OLD[:5000], 0))  # which a checkout skips
    assert pool.acquire(blocking_timeout=GENEROUS).key == NEW[-1]
