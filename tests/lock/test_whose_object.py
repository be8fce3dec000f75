"""A Lock object speaks of its own acquisition, in all its methods; and how long that is renewed."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_redislock import Lock, LockError, LockNotAcquired, LockNotOwned, LockStatus, get_lock
from tests.helpers.actors import GENEROUS
from tests.helpers.state import NAME

from .kin import BOTH, RUNS, Kin, both, owner_rule

# -- of which acquisition ----------------------------------------------------------------------------------------------

Ask = Callable[[Kin, Lock], Coroutine[Any, Any, Any]]


def method(name: str, *args: Any, **options: Any) -> Ask:
    return lambda kin, lock: kin(lock, name, *args, **options)


def read(look: Callable[[Lock], Any]) -> Ask:
    async def ask(kin: Kin, lock: Lock) -> Any:
        return look(lock)

    return ask


async def block(kin: Kin, lock: Lock) -> None:
    if kin.tasks:
        async with lock:
            raise AssertionError("not reached")
    with lock:
        raise AssertionError("not reached")


async def leave_block(kin: Kin, lock: Lock) -> None:
    """The end of a block that was never entered."""
    if kin.tasks:
        await type(lock).__aexit__(lock, None, None, None)
    else:
        type(lock).__exit__(lock, None, None, None)


# what is asked, and what an object answers that holds nothing while the lock is held
ANSWERS: dict[str, tuple[Ask, Any]] = {
    "owned": (method("owned"), False),
    "status": (method("status"), LockStatus.UNAVAILABLE),
    "locked": (method("locked"), True),  # by anybody
    "lost": (read(lambda lock: lock.lost), False),
    "remaining": (read(lambda lock: lock.remaining()), 0.0),
    "token": (read(lambda lock: lock.token), None),
    "acquire": (method("acquire", blocking=False), False),
}
REFUSED: dict[str, Ask] = {
    "release": method("release"),
    "extend": method("extend", 1),
    "reacquire": method("reacquire"),
    "detach": method("detach"),
    "check": read(lambda lock: lock.check()),
    "fence": read(lambda lock: lock.fence),
    "exit": leave_block,
}


async def untouched(kin: Kin, lock: Lock, known: tuple[int, str | None]) -> None:
    """The object that holds the lock still speaks of it, in all its methods."""
    assert (lock.fence, lock.token) == known
    assert await kin(lock, "owned")
    assert await kin(lock, "status") is LockStatus.LOCKED
    assert not lock.lost
    assert lock.remaining() > 0
    lock.check()
    assert await kin(lock, "extend", 1)
    assert await kin(lock, "reacquire")
    await kin(lock, "release")
    assert await kin.info() is None


def each(names: Any, *, fails: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "what", [pytest.param(name, marks=owner_rule if name in fails else ()) for name in names]
    )


@each(ANSWERS, fails=("owned", "status"))
@both()
async def test_another_object_of_the_name_in_the_same_thread_or_task_holds_nothing(kin: Kin, what: str) -> None:
    mine, other = Lock(NAME), Lock(NAME)
    ask, answer = ANSWERS[what]
    await kin(mine, "acquire")
    known = mine.fence, mine.token
    assert await ask(kin, other) == answer
    await untouched(kin, mine, known)


@each(REFUSED)
@both(fails=BOTH)
async def test_another_object_is_refused_and_told_that_an_object_here_holds_the_lock(kin: Kin, what: str) -> None:
    """With the very words: another ... object. (An end of a block by hand that was not entered included.)"""
    mine, other = Lock(NAME), Lock(NAME)
    await kin(mine, "acquire")
    known = mine.fence, mine.token
    with pytest.raises(LockNotOwned, match=r"(?i)another\b.*\bobject"):
        await REFUSED[what](kin, other)
    await untouched(kin, mine, known)


@pytest.mark.parametrize("what", REFUSED)
@both()
async def test_an_object_is_refused_in_other_words_where_nobody_here_holds_the_lock(kin: Kin, what: str) -> None:
    with pytest.raises(LockNotOwned) as caught:
        await REFUSED[what](kin, Lock(NAME))
    assert "another" not in str(caught.value).lower()
    assert await kin.info() is None


@both()
async def test_another_object_that_would_wait_without_end_gets_an_error(kin: Kin) -> None:
    mine = Lock(NAME)
    await kin(mine, "acquire")
    known = mine.fence, mine.token
    for wait in (method("acquire"), block):
        with pytest.raises(LockError, match=r"(?i)this (very )?(thread|task)"):
            await wait(kin, Lock(NAME))
    with pytest.raises(LockNotAcquired):
        await block(kin, Lock(NAME, blocking_timeout=0))
    await untouched(kin, mine, known)


@both(fails=BOTH)
async def test_if_owned_then_reacquire_works_with_whichever_object_is_asked(kin: Kin) -> None:
    """Code that guards itself so must never be refused."""
    mine, other = Lock(NAME), Lock(NAME)
    await kin(mine, "acquire")
    for lock in (mine, other):
        if await kin(lock, "owned"):
            assert await kin(lock, "reacquire")
    await kin(mine, "release")
    for lock in (mine, other):
        assert not await kin(lock, "owned")
        assert await kin(lock, "status") is LockStatus.FREE


@pytest.mark.parametrize("who", ["child", "stranger"])
@each(ANSWERS, fails=("remaining",))
@both()
async def test_an_object_that_another_thread_or_task_has_acquired_holds_nothing_here(
    kin: Kin, who: str, what: str
) -> None:
    shared = Lock(NAME)
    ask, answer = ANSWERS[what]
    await kin(shared, "acquire")
    known = shared.fence, shared.token
    assert await getattr(kin, who)(lambda: ask(kin, shared)).result() == answer
    await untouched(kin, shared, known)


@pytest.mark.parametrize("who", ["child", "stranger"])
@pytest.mark.parametrize("what", REFUSED)
@both()
async def test_an_object_that_another_thread_or_task_has_acquired_is_refused_here(
    kin: Kin, who: str, what: str
) -> None:
    shared = Lock(NAME)
    await kin(shared, "acquire")
    known = shared.fence, shared.token
    with pytest.raises(LockNotOwned):
        await getattr(kin, who)(lambda: REFUSED[what](kin, shared)).result()
    await untouched(kin, shared, known)


@both()
async def test_an_object_speaks_of_the_acquisition_of_whoever_asks(kin: Kin) -> None:
    """One object on two names is two; one object, whose holder is another by now, says nothing of the new one."""
    shared = Lock(NAME)
    await kin(shared, "acquire")
    first = shared.fence, shared.token

    async def next_one() -> tuple[int, str | None]:
        assert await kin(shared, "acquire", blocking_timeout=GENEROUS)
        has.set()
        await kin.until(leave.is_set)
        known = shared.fence, shared.token
        await kin(shared, "release")
        return known

    has, leave = threading.Event(), threading.Event()
    child = kin.child(next_one)
    await kin.queued()
    await kin(shared, "release")
    await kin.until(has.is_set)
    assert not await kin(shared, "owned")
    assert shared.token is None
    with pytest.raises(LockNotOwned):
        await kin(shared, "release")
    leave.set()
    fence, token = await child.result()
    assert fence > first[0]
    assert token != first[1]
    assert await kin.info() is None


@pytest.mark.parametrize("objects", ["one object", "two objects"])
@both()
async def test_reentrant_objects_count_their_own_acquisitions(kin: Kin, objects: str) -> None:
    """As ``threading.RLock`` does for each, and the lock is free after the last."""
    first = Lock(NAME, reentrant=True)
    second = first if objects == "one object" else Lock(NAME, reentrant=True)
    for lock in (first, second, second):
        assert await kin(lock, "acquire")
    assert first.fence == second.fence
    for lock in (second, first, second):
        assert await kin(lock, "owned")
        await kin(lock, "release")
    for lock in (first, second):
        with pytest.raises(LockNotOwned):
            await kin(lock, "release")
    assert await kin.info() is None


# -- how long it is renewed --------------------------------------------------------------------------------------------

TTL = 2.0


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("django_redislock")
        and record.levelno >= logging.WARNING
        and NAME in record.getMessage()
    ]


@both()
async def test_a_lock_is_renewed_while_its_object_and_its_thread_or_task_live(kin: Kin) -> None:
    lock = Lock(NAME, ttl=TTL)
    await kin(lock, "acquire")
    assert await kin.renewed(TTL)
    assert not lock.lost
    await kin(lock, "release")


@owner_rule
def test_a_lock_whose_task_has_ended_is_renewed_while_its_object_and_its_event_loop_live() -> None:
    """The event loop may still give it back: in a tear-down, say."""

    async def main() -> None:
        lock, kin = Lock(NAME, ttl=TTL), Kin(tasks=True)

        async def acquire() -> None:
            await lock.aacquire()

        await asyncio.create_task(acquire())
        assert await kin.renewed(TTL)
        assert await kin.renewed(TTL)

    Kin(tasks=True).live(main())


@pytest.mark.parametrize("renewed", [False, True], ids=["at once", "after it was renewed"])
@both(fails=BOTH)
async def test_a_lock_whose_object_is_dropped_ends_with_its_ttl_and_is_not_released(
    kin: Kin, renewed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, if it was renewed until then."""
    lock = Lock(NAME, ttl=TTL)
    await kin(lock, "acquire")
    assert not renewed or await kin.renewed(TTL)
    del lock
    gc.collect()
    assert await kin.info() is not None
    assert not await kin.renewed(TTL)
    assert await kin.info() is None
    if renewed:
        await kin.until(lambda: warnings_of(caplog))
    assert len(warnings_of(caplog)) == renewed


@pytest.mark.parametrize("renewed", [False, True], ids=["at once", "after it was renewed"])
def test_a_lock_whose_thread_has_ended_ends_with_its_ttl(renewed: bool) -> None:
    lock = Lock(NAME, ttl=TTL)

    async def acquire() -> None:
        lock.acquire()
        assert not renewed or await Kin(tasks=False).renewed(TTL)

    async def look_on() -> None:
        await kin.child(acquire).result()
        assert not await kin.renewed(TTL)
        assert await kin.info() is None

    kin = Kin(tasks=False)
    kin.live(look_on())


@pytest.mark.parametrize("renewed", [False, True], ids=["at once", "after it was renewed"])
def test_a_lock_whose_event_loop_has_ended_ends_with_its_ttl(renewed: bool) -> None:
    lock = Lock(NAME, ttl=TTL)

    async def acquire() -> None:
        await lock.aacquire()
        assert not renewed or await Kin(tasks=True).renewed(TTL)

    async def look_on() -> None:
        assert not await Kin(tasks=False).renewed(TTL)

    Kin(tasks=True).live(acquire())
    Kin(tasks=False).live(look_on())
    assert get_lock(NAME) is None


def test_a_lock_that_sync_code_of_a_task_has_acquired_is_renewed_after_that_code_has_ended() -> None:
    async def main() -> None:
        for how in ("one thread", "any thread"):
            lock = Lock(NAME, ttl=TTL)
            await RUNS[how](lock.acquire)
            assert await Kin(tasks=True).renewed(TTL)
            await lock.arelease()

    Kin(tasks=True).live(main())


def test_a_lock_that_a_coroutine_of_sync_code_has_acquired_is_renewed_after_its_event_loop_has_ended() -> None:
    """The sync code may still give it back."""
    lock, kin = Lock(NAME, ttl=TTL), Kin(tasks=False)

    async def code() -> None:
        assert async_to_sync(lock.aacquire)()
        assert await kin.renewed(TTL)
        lock.release()

    kin.live(code())


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.complete)])
@both()
async def test_many_locks_are_held_and_released_in_one_thread_or_task(kin: Kin, number: int) -> None:
    """What one costs more than another is for ``lockbench``."""
    locks = [Lock(f"seat:{seat}", ttl=600) for seat in range(number)]
    for lock in locks:
        assert await kin(lock, "acquire")
    assert len({lock.token for lock in locks}) == number
    random.Random(7).shuffle(locks)
    for lock in locks[:50]:
        assert await kin(lock, "owned")
        assert not await kin(Lock(lock.name), "acquire", blocking=False)

    async def child() -> list[bool]:
        return [await kin(Lock(lock.name), "acquire", blocking=False) for lock in locks[:50]]

    assert not any(await kin.child(child).result())
    for lock in locks:
        lock.check()
        await kin(lock, "release")
    assert not any([await kin(lock, "locked") for lock in locks[:50]])
    with pytest.raises(LockNotOwned):
        await kin(locks[0], "release")
