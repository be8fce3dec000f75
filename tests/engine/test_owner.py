"""Whose acquisition it is: that of the thread or task that has called, and of nobody else."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from asgiref.sync import AsyncToSync, SyncToAsync, async_to_sync

from django_redislock import Lock, LockError, LockLost, LockNotOwned, LockStatus, force_release
from django_redislock.engine.owners.owner import MANY, current_owner
from tests.helpers.actors import Crowd
from tests.helpers.bridges import aowns, arefuses, owns
from tests.helpers.state import NAME, fence_of, holder, queued
from tests.inside import lease_of

from .children import CHILDREN, Child

Eventually = Callable[..., Any]
AEventually = Callable[..., Awaitable[Any]]


# -- threads and tasks alike -------------------------------------------------------------------------------------------


def test_the_caller_that_acquires_a_lock_owns_it_until_it_is_released(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    assert (me.read(lambda: owns(lock)), me(lock, "owned")) == (False, False)
    assert me(lock, "acquire")
    assert (me.read(lambda: owns(lock)), me(lock, "owned")) == (True, True)
    assert me.read(lambda: lock.token) == holder(client)
    me(lock, "release")
    assert (me.read(lambda: owns(lock)), me(lock, "owned")) == (False, False)
    assert holder(client) == ""


class Locked:
    """asgiref's Local, in whose lock another thread was interrupted: whoever looks waits without end."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("this would wait without end")


@pytest.mark.parametrize("has_run_sync_code", [False, True])
def test_no_lock_waits_for_a_mutex_of_asgiref(has_run_sync_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncToSync, "executors", Locked())
    if has_run_sync_code:  # for a task whose loop has ended since
        loop = asyncio.new_event_loop()
        loop.close()
        monkeypatch.setattr(SyncToAsync.threadlocal, "main_event_loop", loop, raising=False)
    for _ in range(2):
        with Lock(NAME) as lock:
            assert owns(lock)


def test_the_lock_is_busy_for_others_whatever_object_they_use(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    for through in (lock, Lock(NAME)):
        assert not you.read(lambda through=through: owns(through))
        assert not you(through, "owned")
        assert not you(through, "acquire", blocking=False)
        for refused in ("release", "reacquire", "detach"):
            with pytest.raises(LockNotOwned, match=f"Cannot .* the lock '{NAME}': this thread or task") as caught:
                you(through, refused)
            assert not isinstance(caught.value, LockLost)
    assert me.read(lambda: lock.token) == holder(client)


def test_a_holder_owns_the_lock_through_any_object(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    another = Lock(NAME)
    assert me(another, "owned")
    assert me(another, "status") is LockStatus.LOCKED
    with pytest.raises(LockNotOwned):  # but each object gives back what was acquired through it
        me(another, "release")
    me(lock, "release")
    assert not me(another, "owned")


def test_one_object_has_a_separate_acquisition_for_each_caller(crowd: Crowd, eventually: Eventually) -> None:
    lock, tokens = Lock(NAME), set()
    people = [crowd() for _ in range(8)]
    waiting: dict[int, Future[bool]] = {n: person.start(lock, "acquire") for n, person in enumerate(people)}
    while waiting:
        eventually(lambda: any(future.done() for future in waiting.values()))
        (got,) = [n for n, future in waiting.items() if future.done()]
        assert waiting.pop(got).result()
        assert [people[n].read(lambda: owns(lock)) for n in range(8) if n not in waiting].count(True) == 1
        tokens.add(people[got].read(lambda: lock.token))
        people[got](lock, "release")
        assert not people[got].read(lambda: owns(lock))
    assert len(tokens) == 8


@pytest.mark.parametrize("equal", [True, False])
def test_a_lock_is_found_by_the_identity_of_its_object(equal: bool, client: redis.Redis) -> None:
    class Odd(Lock):
        """It has no hash, either."""

        def __eq__(self, other: object) -> bool:
            return equal

    first, second = Odd("first"), Odd("second")
    with first:
        assert owns(first)
        assert not owns(second)
        with second:
            assert (first.name, first.token) == ("first", holder(client, "first"))
            assert (second.name, second.token) == ("second", holder(client, "second"))
        assert owns(first)
        assert not owns(second)
    assert not owns(first)


def test_a_lost_lock_belongs_to_its_owner_until_that_is_told(crowd: Crowd, eventually: Eventually) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    force_release(NAME)
    eventually(lambda: me.read(lambda: lock.lost))
    assert you(lock, "acquire", blocking=False)
    with pytest.raises(LockLost):
        me(lock, "release")
    with pytest.raises(LockNotOwned) as caught:
        me(lock, "release")
    assert not isinstance(caught.value, LockLost)
    assert you(lock, "owned")


def test_a_helper_of_the_holder_sees_its_lease(crowd: Crowd, eventually: Eventually) -> None:
    me, helper, lock = crowd(), crowd(), Lock(NAME, ttl=600)
    assert (helper.read(lambda: lock.lost), helper.read(lock.remaining)) == (False, 0.0)
    me(lock, "acquire")
    assert helper.read(lambda: lock.lost) is False
    assert 500 < helper.read(lock.remaining) <= 600
    assert helper.read(lambda: (lock.token, fence_of(lock))) == (None, None)
    force_release(NAME)
    eventually(lambda: helper.read(lambda: lock.lost))
    assert helper.read(lock.remaining) == 0.0


@pytest.mark.parametrize("again", ["acquire", "enter"])
def test_waiting_without_end_for_oneself_raises(crowd: Crowd, again: str, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    for through in (lock, Lock(NAME)):
        with pytest.raises(LockError, match=f"Cannot wait for the lock '{NAME}'.* would wait for itself without end"):
            me(through, again)
    assert queued(client) == 0
    assert me.read(lambda: lock.token) == holder(client)
    me(lock, "release")


def test_with_a_timeout_a_lock_held_by_oneself_is_busy(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    for through in (lock, Lock(NAME)):
        assert not me(through, "acquire", blocking=False)
        assert not me(through, "acquire", blocking_timeout=0.01)
    assert me.read(lambda: lock.token) == holder(client)
    assert queued(client) == 0


def test_a_reentrant_lock_is_free_after_as_many_releases_as_it_had_acquires(crowd: Crowd, client: redis.Redis) -> None:
    me, you = crowd(), crowd()
    lock, another = Lock(NAME, reentrant=True), Lock(NAME, reentrant=True)
    for through in (lock, another, lock):
        assert me(through, "acquire")
        assert me.read(lambda through=through: through.token) == holder(client)
    assert not you(lock, "acquire", blocking=False)
    for through in (lock, another, lock):
        assert holder(client)
        me(through, "release")
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        me(lock, "release")


def test_a_lock_is_not_renewed_when_its_owner_has_ended(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=1)
    me(lock, "acquire")
    me.end()
    eventually(lambda: f"event=owner-ended name={NAME} " in caplog.text)
    eventually(lambda: not holder(client))


# -- threads -----------------------------------------------------------------------------------------------------------


def test_a_thread_owns_nothing_of_the_thread_that_started_it() -> None:
    found: list[bool] = []

    def ask(lock: Lock) -> None:
        found.append(owns(lock) or lock.owned() or lock.acquire(blocking=False))
        with pytest.raises(LockNotOwned):
            lock.release()

    with Lock(NAME) as lock:
        thread = threading.Thread(target=ask, args=(lock,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, lock).result()
            pool.submit(contextvars.copy_context().run, ask, lock).result()
        assert found == [False] * 3
        assert lock.owned()


async def test_a_thread_owns_nothing_of_the_task_that_started_it() -> None:
    async with Lock(NAME) as lock:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(owns, lock).result() is False
            with pytest.raises(LockNotOwned):
                pool.submit(lock.release).result()
        assert await aowns(lock)


def test_a_loop_that_a_thread_runs_owns_nothing_of_the_thread() -> None:
    async def ask() -> bool:
        return not await aowns(lock) and await arefuses(lock)

    with Lock(NAME) as lock:
        assert asyncio.run(ask())
        assert lock.owned()


def test_a_coroutine_that_a_thread_runs_owns_nothing_of_the_thread_whose_context_it_has() -> None:
    with Lock(NAME) as lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(contextvars.copy_context().run, async_to_sync(arefuses), lock).result()


# -- child tasks -------------------------------------------------------------------------------------------------------

children = pytest.mark.parametrize("child", CHILDREN)


@children
async def test_a_child_task_does_not_own_the_lock_of_its_parent(child: Child, client: redis.Redis) -> None:
    async def ask() -> bool:
        return await aowns(lock) or not await arefuses(lock)

    async with Lock(NAME) as lock:
        assert await child(ask) is False
        assert await aowns(lock)
        assert holder(client) == lock.token


@children
async def test_a_task_does_not_own_what_its_child_has_acquired(child: Child) -> None:
    lock = Lock(NAME)

    async def hold() -> None:
        async with lock:
            assert await aowns(lock)
            taken.set()
            await asked.wait()
            assert await aowns(lock)

    taken, asked = asyncio.Event(), asyncio.Event()
    holding = asyncio.ensure_future(child(hold))
    await taken.wait()
    assert not await aowns(lock)
    assert await arefuses(lock)
    assert not await lock.aacquire(blocking=False)
    asked.set()
    await holding


async def test_a_lock_that_a_child_task_keeps_does_not_affect_those_of_its_parent() -> None:
    async def hold_and_keep() -> None:
        async with second:
            assert (await aowns(first), await aowns(second)) == (False, True)
        await second.aacquire()

    first, second = Lock("first"), Lock("second")
    async with first:
        await asyncio.create_task(hold_and_keep())
        assert (await aowns(first), await aowns(second)) == (True, False)
    assert not await first.alocked()


async def test_a_child_task_may_wait_for_its_parent_without_end(client: redis.Redis, aeventually: AEventually) -> None:
    lock = Lock(NAME)

    async def section() -> bool:
        async with lock:  # and no LockError: it does not wait for itself
            return await aowns(lock)

    await lock.aacquire()
    waiting = asyncio.create_task(section())
    await aeventually(lambda: queued(client))
    await lock.arelease()
    assert await waiting
    assert not await aowns(lock)


async def test_parent_and_child_acquire_through_one_object_without_disturbing_each_other(
    client: redis.Redis, aeventually: AEventually
) -> None:
    lock, theirs = Lock(NAME), []

    async def section() -> None:
        async with lock:
            theirs.append(lock.token)
            go_on.set()
            await done.wait()

    go_on, done = asyncio.Event(), asyncio.Event()
    async with lock:
        mine = lock.token
        waiting = asyncio.create_task(section())  # knows of this acquisition, and has its own after it
        await aeventually(lambda: queued(client))
        assert lock.token == mine
    await go_on.wait()
    assert not await aowns(lock)
    done.set()
    await waiting
    async with lock:
        assert lock.token not in (mine, *theirs)
        assert await aowns(lock)


async def test_reentrance_does_not_extend_to_child_tasks(client: redis.Redis) -> None:
    lock = Lock(NAME, reentrant=True)

    async def take() -> bool:
        return await lock.aacquire(blocking_timeout=0.01) or await Lock(NAME, reentrant=True).aacquire(blocking=False)

    async with lock:
        assert await asyncio.create_task(take()) is False
        assert holder(client) == lock.token


async def test_a_child_task_sees_the_lease_of_its_parent(aeventually: AEventually) -> None:
    async def watch(lock: Lock) -> None:
        assert lock.remaining() > 500
        assert not lock.lost
        watching.set()
        await aeventually(lambda: lock.lost)

    watching, lock = asyncio.Event(), Lock(NAME, ttl=600)
    await lock.aacquire()
    await Lock("another").aacquire()
    child = asyncio.create_task(watch(lock))
    await watching.wait()
    await asyncio.to_thread(force_release, NAME)
    await child


async def test_another_context_is_still_the_same_task() -> None:
    async with Lock(NAME) as lock:
        assert contextvars.copy_context().run(owns, lock)
        assert contextvars.Context().run(owns, lock)


def test_objects_whose_locks_were_lost_and_never_released_do_not_pile_up() -> None:
    def lose_many() -> int:
        for number in range(2 * MANY):
            lock = Lock(f"seat:{number}")
            lock.acquire()
            lease_of(lock).ends = 0.0  # lost
        owner = current_owner()
        return max(len(owner._held), len(owner._leases))

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lose_many).result() <= MANY + 1


def test_disowning_one_section_leaves_the_lease_to_the_others() -> None:
    lock = Lock(NAME, reentrant=True)
    assert lock.acquire()
    assert lock.acquire()
    owner, lease = current_owner(), lease_of(lock)
    inner = owner.section(lock)
    assert inner is not None
    owner.disown(inner, lease)
    assert owner.section(lock) is not inner
    assert owner.lease_on(lease.partition, NAME) is lease
