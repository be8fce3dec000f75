"""R11: any call that finds the lock at the very end of its lease passes it on to the waiters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockPool
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, holder, queued
from tests.inside import Ears
from tests.protocol.scene import LONG, Eventually, Line, vanish

pytestmark = pytest.mark.usefixtures("nobody_looks")

BUSY = "redislock{0}:busy:pool:accounts:"


@pytest.fixture
def held(crowd: Crowd, listening: Callable[[], Ears]) -> tuple[Any, Lock]:
    """A holder and its lock."""
    listening()
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    return me, lock


@pytest.mark.parametrize("call", [("release",), ("extend", 1), ("detach",)], ids=lambda call: call[0])
def test_a_holder_that_finds_its_lease_ended_passes_the_lock_on(
    call: tuple[Any, ...], held: tuple[Any, Lock], line: Line, client: redis.Redis
) -> None:
    me, lock = held
    waiting = line.join(Lock(NAME))
    vanish(client, NAME)
    with pytest.raises(LockLost):
        me(lock, *call)
    assert holder(client)
    assert waiting.result()
    assert holder(client) == waiting.id


@pytest.fixture
def last_moment() -> Iterator[None]:
    """Pretend that every lease is in its last millisecond."""
    inside.change_scripts(["lease-left"])
    yield
    inside.change_scripts()


@pytest.mark.usefixtures("last_moment")
@pytest.mark.parametrize("flag", ["c", "h"])
def test_a_holder_that_comes_in_the_last_millisecond_still_holds_the_lock(flag: str, client: redis.Redis) -> None:
    here = inside.own_process()
    request = here.request("i" * 22, name=NAME, ttl=0.001)
    client.set(LOCK, f"{request.id} - {flag} 1 1 - me", px=60_000)
    assert here.renew(request, "confirm", 0.001).state == inside.HELD


@pytest.mark.usefixtures("last_moment")
def test_an_adopter_that_gives_up_in_the_last_millisecond_leaves_the_lock(client: redis.Redis) -> None:
    here = inside.own_process()
    request = here.request("i" * 22, name=NAME, ttl=0.001)
    client.set(LOCK, f"{request.id} - a 1 1 - me", px=60_000)
    assert here.release(request, how=inside.WITHDRAWAL).state == inside.DETACHED


@pytest.mark.usefixtures("held")
def test_the_watchdog_that_finds_a_lease_ended_passes_the_lock_on(
    line: Line, client: redis.Redis, renew_all: Callable[..., None]
) -> None:
    """The same for a renewal in the background."""
    waiting = line.join(Lock(NAME))
    vanish(client, NAME)
    renew_all()
    assert waiting.result()
    assert holder(client) == waiting.id


@pytest.mark.usefixtures("held")
def test_a_waiter_that_leaves_a_free_lock_behind_passes_it_on(line: Line, client: redis.Redis) -> None:
    stays = line.join(Lock(NAME))
    leaves = line.join(Lock(NAME, blocking_timeout=1))
    assert queued(client) == 2
    vanish(client, NAME)
    assert not leaves.result()
    assert stays.result()
    assert holder(client) == stays.id


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(listening: Callable[[], Ears]) -> LockPool:
    listening()
    pool = LockPool("accounts")
    pool.extend(["alice"])
    return pool


@pytest.mark.parametrize("call", [("release",), ("extend", 1)], ids=lambda call: call[0])
def test_a_holder_that_finds_the_lease_of_its_member_ended_passes_it_on(
    call: tuple[Any, ...], pool: LockPool, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, you = crowd(), crowd()
    member = me(pool, "acquire", ttl=LONG)
    future = you.start(pool, "acquire")
    eventually(lambda: pool.info().waiters == 1)
    client.zadd(BUSY, {"alice": 1})
    with pytest.raises(LockLost):
        me(member, *call)
    assert future.result(GENEROUS).key == "alice"


def test_a_waiter_that_leaves_the_queue_of_a_pool_passes_on_members_whose_lease_has_ended(
    pool: LockPool, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, stays, leaves = crowd(), crowd(), crowd()
    me(pool, "acquire", ttl=LONG)
    future = stays.start(pool, "acquire", blocking_timeout=3)
    eventually(lambda: pool.info().waiters == 1)
    left = leaves.start(pool, "acquire", blocking_timeout=1)
    eventually(lambda: pool.info().waiters == 2)
    client.zadd(BUSY, {"alice": 1})
    assert left.exception(GENEROUS)
    assert future.result(GENEROUS).key == "alice"
