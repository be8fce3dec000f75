"""Acquisitions of one Lock object by several threads or tasks, and of several objects by one, where the lock is shared,
lost or ends by itself. See also ``test_whose_object.py``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, fence_of, holder
from tests.inside import HAS_VANISHED


class Sections:
    """Sections under one lock that let others run, so that two could be inside at once."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.seen: list[str | int] = []

    def run(self) -> None:
        for _ in range(10):
            with self.lock:
                self.seen.append(self.lock.fence)
                time.sleep(0.0005)
                self.seen.append("left")

    async def arun(self) -> None:
        for _ in range(10):
            async with self.lock:
                self.seen.append(self.lock.fence)
                await asyncio.sleep(0)
                self.seen.append("left")


def test_threads_or_tasks_that_share_an_object_exclude_each_other(crowd: Crowd, using: str) -> None:
    sections = Sections(Lock(NAME, using=using, blocking_timeout=GENEROUS))
    for future in [crowd().start(sections, "run") for _ in range(8)]:
        future.result(GENEROUS)
    assert sections.seen[1::2] == ["left"] * 80
    fences: list[Any] = sections.seen[::2]
    assert fences == sorted(set(fences))


def test_others_that_share_the_object_see_the_remaining_lease_and_whether_the_lock_is_lost(
    crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    """A helper of the holder may watch the lease, but cannot use the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=3)
    me(lock, "acquire")
    assert you.read(lambda: (lock.lost, lock.token, fence_of(lock))) == (False, None, None)
    assert 0 < you.read(lock.remaining) <= 3
    client.delete(LOCK)
    eventually(lambda: you.read(lambda: lock.lost))
    assert you.read(lock.remaining) == 0.0
    with pytest.raises(LockNotOwned) as caught:
        you.read(lock.check)
    assert not isinstance(caught.value, LockLost)


def test_a_lock_that_is_not_reentrant_is_entered_again_through_an_object_that_is(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, outer, inner = crowd(), Lock(NAME), Lock(NAME, reentrant=True)
    me(outer, "acquire")
    assert me(inner, "acquire")
    me(outer, "release")
    assert me(inner, "owned")
    me(inner, "release")
    assert holder(client) == ""


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lost_lock_is_not_entered_again_or_refused_but_acquired_anew(
    reentrant: bool, crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    """Redis is asked first, before the error about waiting for oneself is raised."""
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, reentrant=reentrant, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    client.delete(LOCK)
    assert me(lock, "acquire")
    assert me.read(lambda: lock.fence) > fence
    eventually(lambda: losses)
    assert (losses[0].reason, losses[0].fence) == (HAS_VANISHED, fence)
    me(lock, "release")
    assert holder(client) == ""


def test_a_caller_can_wait_for_its_own_lock_if_that_ends_by_itself(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=0.5, auto_renew=False)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    assert me(lock, "acquire") is True
    assert me.read(lambda: lock.fence) > fence


def test_whoever_has_lost_many_locks_goes_on_with_new_ones(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me = crowd()
    for ttl in (0.2, 600):
        locks = [Lock(f"seat:{number}", ttl=ttl, auto_renew=False) for number in range(60)]
        for lock in locks:
            me(lock, "acquire", blocking_timeout=GENEROUS)
        eventually(lambda ttl=ttl, lock=lock: ttl > 1 or me.read(lambda: lock.lost))
    for lock in locks:
        me(lock, "release")
