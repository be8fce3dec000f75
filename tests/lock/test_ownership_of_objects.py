"""One Lock object for several threads or tasks, and several objects for one: sharing, reentrance, waiting for
oneself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockError, LockLost, LockNotOwned
from django_redislock.engine.leases.lease import VANISHED
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, fence_of, holder, queued

from .blocks import Block

Eventually = Callable[..., Any]


# -- sharing ----------------------------------------------------------------------------------------------------------


def test_a_shared_object_has_a_separate_acquisition_for_each_thread_or_task(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using, blocking_timeout=GENEROUS)

    def known(who: Any) -> tuple[str | None, int | None]:
        return who.read(lambda: (lock.token, fence_of(lock)))  # type: ignore[no-any-return]

    me(lock, "acquire")
    mine = known(me)
    assert None not in mine
    waiting = you.start(lock, "acquire")
    assert known(me) == mine
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert known(me) == (None, None)
    token, fence = known(you)
    assert token not in (None, mine[0])
    assert (fence or 0) > (mine[1] or 0)
    assert (me(lock, "owned"), you(lock, "owned")) == (False, True)
    with pytest.raises(LockNotOwned):
        me(lock, "release")
    you(lock, "release")
    assert not me(lock, "locked")


class Sections:
    """Sections under one lock that let others run, so that two could be inside at once."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.inside = 0
        self.most: list[int] = []
        self.fences: list[int] = []

    def enter(self) -> None:
        self.inside += 1
        self.most.append(self.inside)
        self.fences.append(self.lock.fence)

    def leave(self) -> None:
        self.most.append(self.inside)
        self.inside -= 1

    def run(self) -> None:
        for _ in range(10):
            with self.lock:
                self.enter()
                time.sleep(0.0005)
                self.leave()

    async def arun(self) -> None:
        for _ in range(10):
            async with self.lock:
                self.enter()
                await asyncio.sleep(0)
                self.leave()


def test_threads_or_tasks_that_share_an_object_exclude_each_other(crowd: Crowd, using: str) -> None:
    sections = Sections(Lock(NAME, using=using, blocking_timeout=GENEROUS))
    for future in [crowd().start(sections, "run") for _ in range(8)]:
        future.result(GENEROUS)
    assert set(sections.most) == {1}
    assert len(sections.fences) == 80
    assert sections.fences == sorted(set(sections.fences))


def test_others_that_share_the_object_see_the_remaining_lease_and_whether_the_lock_is_lost(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """A helper of the holder may watch the lease, but cannot use the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=3)
    assert you.read(lambda: (lock.lost, lock.remaining())) == (False, 0.0)
    me(lock, "acquire")
    assert you.read(lambda: (lock.lost, lock.token, fence_of(lock))) == (False, None, None)
    assert 0 < you.read(lock.remaining) <= 3
    client.delete(LOCK)
    eventually(lambda: you.read(lambda: lock.lost))
    assert you.read(lock.remaining) == 0.0
    with pytest.raises(LockNotOwned) as caught:
        you.read(lock.check)
    assert not isinstance(caught.value, LockLost)


def test_a_thread_owns_what_it_has_acquired_in_another_context(client: redis.Redis) -> None:
    lock = Lock(NAME)
    assert Context().run(lock.acquire)
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


# -- reentrance -------------------------------------------------------------------------------------------------------


def test_a_reentrant_lock_is_free_after_as_many_releases_as_acquires(crowd: Crowd, using: str) -> None:
    me, lock = crowd(), Lock(NAME, reentrant=True, using=using)
    assert me(lock, "acquire")
    first = me.read(lambda: (lock.token, lock.fence))
    assert me(lock, "acquire", blocking=False)
    assert me(lock, "acquire")
    inner: list[object] = []
    me(Block(lock, lambda: inner.append((lock.token, lock.fence))), "run")
    assert inner == [first]
    me(lock, "release")
    me(lock, "release")
    assert me(lock, "owned")
    me(lock, "release")
    assert not me(lock, "locked")
    with pytest.raises(LockNotOwned):
        me(lock, "release")


def test_reentrance_works_across_objects_but_not_across_threads_or_tasks(crowd: Crowd, client: redis.Redis) -> None:
    me, you, outer, inner = crowd(), crowd(), Lock(NAME), Lock(NAME, reentrant=True)
    me(outer, "acquire")
    assert me(inner, "acquire")
    assert me.read(lambda: inner.token == outer.token)
    assert not you(Lock(NAME, reentrant=True), "acquire", blocking=False)
    me(outer, "release")
    assert me(inner, "owned")
    assert holder(client)
    with pytest.raises(LockNotOwned):
        me(outer, "release")
    me(inner, "release")
    assert holder(client) == ""


def test_a_lost_lock_is_not_entered_again_but_acquired_anew(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, reentrant=True, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    client.delete(LOCK)
    me(lock, "acquire")
    assert me.read(lambda: lock.fence) > fence
    eventually(lambda: losses)
    assert (losses[0].reason, losses[0].fence) == (VANISHED, fence)
    me(lock, "release")
    assert holder(client) == ""


# -- waiting for oneself ----------------------------------------------------------------------------------------------


def test_waiting_without_end_for_oneself_raises(crowd: Crowd, using: str) -> None:
    me, lock = crowd(), Lock(NAME, using=using)
    me(lock, "acquire")
    for again in (lock, Lock(NAME, using=using)):
        with pytest.raises(LockError, match=r"Cannot wait for the lock .* would wait for itself") as caught:
            me(again, "acquire")
        assert type(caught.value) is LockError
        assert caught.value.name == NAME
    assert me(lock, "owned")
    me(lock, "release")
    assert not me(lock, "locked")


def test_with_a_bound_a_lock_held_by_oneself_is_simply_not_acquired(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    assert me(lock, "acquire", blocking=False) is False
    assert me(Lock(NAME), "acquire", blocking_timeout=0.05) is False
    assert me(Lock(NAME, poll=True, attempts=2), "acquire") is False
    assert me(lock, "owned")
    assert queued(client) == 0
    me(lock, "release")
    assert holder(client) == ""


def test_a_caller_that_has_lost_a_lock_may_wait_for_it_without_end(crowd: Crowd, client: redis.Redis) -> None:
    """Redis is asked first, before the error about waiting for oneself is raised."""
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    client.delete(LOCK)
    assert me(Lock(NAME), "acquire") is True
    assert me.read(lambda: lock.lost)


def test_a_caller_can_wait_for_its_own_lock_if_that_ends_by_itself(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=0.5, auto_renew=False)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    assert me(lock, "acquire") is True
    assert me.read(lambda: lock.fence) > fence
