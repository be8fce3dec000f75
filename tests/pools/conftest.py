"""A pool on Redis and in memory, used by threads and by tasks; and helpers that hold its members or wait for them."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import LockPool, PoolMember
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.pools import POOL, TTL, Held, Wait, in_line


@pytest.fixture
def pool(using: str, fresh: None) -> LockPool:
    """An empty pool, on Redis and in memory."""
    return LockPool(POOL, using=using)


@pytest.fixture
def accounts() -> LockPool:
    """A pool with two members, on the session's server."""
    made = LockPool(POOL)
    made.extend(["alice", "bob"])
    return made


@pytest.fixture
def held(accounts: LockPool, crowd: Crowd) -> Held:
    """Hold both members; when called with the key of one, release that."""
    you = crowd()
    members = {member.key: member for member in (you(accounts, "acquire", ttl=TTL) for _ in range(2))}
    return lambda key: you(members[key], "release")


@pytest.fixture
def wait(client: redis.Redis, crowd: Crowd) -> Iterator[Wait]:
    """Another user waits for a member in the queue, and keeps it once it has it."""
    made: list[Future[PoolMember]] = []

    def wait(**options: Any) -> Future[PoolMember]:
        before = len(in_line(client))
        wanted: Future[PoolMember] = crowd().start(LockPool(POOL), "acquire", **{"ttl": TTL, **options})
        made.append(wanted)
        until(lambda: len(in_line(client)) > before)
        return wanted

    yield wait
    LockPool(POOL).extend(f"at the end {number}" for number in range(len(made)))
    for wanted in made:
        wanted.exception(GENEROUS)
