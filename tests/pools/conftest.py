"""A pool on Redis and in memory, used by threads and by tasks; and those who hold its members or wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import LockPool, PoolMember
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.pools import POOL, TTL, Held, Wait, in_line
from tests.helpers.state import listener

Eventually = Callable[..., Any]


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest, settings: Any) -> str:
    settings.CACHES = {**settings.CACHES}  # a memory that holds nothing
    return str(request.param)


@pytest.fixture
def pool(using: str) -> LockPool:
    """Empty, on either."""
    return LockPool(POOL, using=using)


@pytest.fixture
def accounts() -> LockPool:
    """On the session's server, with two members."""
    made = LockPool(POOL)
    made.extend(["alice", "bob"])
    return made


@pytest.fixture
def me(crowd: Crowd) -> Any:
    """Somebody who uses pools: a thread, or a task."""
    return crowd()


# -- to wait ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks at the end of a lease, and else not unless it is told."""
    monkeypatch.setattr("django_redislock.engine.listener.LOOK_EVERY", 1000.0)


@pytest.fixture
def listening(settings: Any, eventually: Eventually) -> None:
    """Whoever queues does so at once; and no test meets what another one has left over."""
    settings.CACHES = {**settings.CACHES}
    ears = listener()
    ears.start()
    eventually(lambda: ears.ready)


@pytest.fixture
def held(accounts: LockPool, crowd: Crowd) -> Held:
    """Somebody holds both members; called with the key of one, gives that back."""
    you = crowd()
    members = {member.key: member for member in (you(accounts, "acquire", ttl=TTL) for _ in range(2))}
    return lambda key: you(members[key], "release")


@pytest.fixture
def wait(client: redis.Redis, eventually: Eventually, crowd: Crowd) -> Iterator[Wait]:
    """Somebody more wants a member and stands in line; once it has one, it goes on holding it."""
    made: list[Future[PoolMember]] = []

    def wait(**options: Any) -> Future[PoolMember]:
        before = len(in_line(client))
        wanted: Future[PoolMember] = crowd().start(LockPool(POOL), "acquire", **{"ttl": TTL, **options})
        made.append(wanted)
        eventually(lambda: len(in_line(client)) > before)
        return wanted

    yield wait
    LockPool(POOL).extend(f"at the end {number}" for number in range(len(made)))
    for wanted in made:
        wanted.exception(GENEROUS)
