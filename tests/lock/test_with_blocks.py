"""``with`` and ``async with``: what a block raises, and that its end releases whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redislock.engine.acquiring.acquisition import Acquisition
from django_redislock.engine.owners.with_block import _leave
from django_redislock.engine.renewal.watchdog import REMEMBER_FOR
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.interrupts import Interrupt, interrupted_in
from tests.helpers.proxy import Proxy, Trouble
from tests.helpers.state import LOCK, NAME, holder, leftovers
from tests.inside import pending_releases, undo_interrupted

from .blocks import Block

Eventually = Callable[..., Any]


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("body", [lambda: None, fail])
def test_a_lock_is_held_within_its_block_and_released_at_its_end(
    crowd: Crowd, body: Callable[[], None], client: redis.Redis
) -> None:
    me, lock, seen = crowd(), Lock(NAME), []

    def section() -> None:
        seen.append(holder(client))
        body()

    with contextlib.suppress(ZeroDivisionError):
        me(Block(lock, section), "run")
    assert seen != [""]
    assert leftovers(client) == []


def test_a_block_whose_lock_is_not_acquired_in_time_raises_and_does_not_run(crowd: Crowd, using: str) -> None:
    me, you, ran = crowd(), crowd(), []
    me(Lock(NAME, using=using), "acquire")
    with pytest.raises(LockNotAcquired, match=NAME) as caught:
        you(Block(Lock(NAME, blocking_timeout=0.05, using=using), lambda: ran.append(1)), "run")
    assert caught.value.name == NAME
    assert ran == []


def test_the_end_of_a_block_tells_that_the_lock_was_lost(crowd: Crowd, client: redis.Redis) -> None:
    me = crowd()
    with pytest.raises(LockLost):
        me(Block(Lock(NAME), lambda: client.delete(LOCK)), "run")


def test_an_exception_in_the_block_matters_more_than_the_loss(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def section() -> None:
        client.delete(LOCK)
        fail()

    me = crowd()
    with pytest.raises(ZeroDivisionError):
        me(Block(Lock(NAME), section), "run")
    eventually(lambda: caplog.text.count("event=lost") == 1)
    assert "event=not-released" not in caplog.text  # which would tell the same again


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_that_has_released_its_lock_itself_is_told_so_unless_it_raises(
    crowd: Crowd, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    me(lock, "release")
    if fails:
        assert not me(lock, "exit", ZeroDivisionError, ZeroDivisionError(), None)
    else:
        with pytest.raises(LockNotOwned):
            me(lock, "exit", None, None, None)
    assert "event=not-released" not in caplog.text


@pytest.mark.parametrize("how", ["well", "with an error"])
def test_a_block_releases_what_it_has_acquired_last(how: str, client: redis.Redis) -> None:
    lock = Lock(NAME)
    with contextlib.suppress(ZeroDivisionError), lock:
        lock.release()
        assert holder(client) == ""
        assert lock.acquire()
        assert holder(client)
        if how == "with an error":
            fail()
    assert holder(client) == ""


async def test_an_async_block_releases_what_it_has_acquired_last(client: redis.Redis) -> None:
    lock = Lock(NAME)
    async with lock:
        await lock.arelease()
        assert await lock.aacquire()
    assert holder(client) == ""


def test_an_inner_block_tells_of_the_loss_as_well(client: redis.Redis) -> None:
    told: list[str] = []

    def inner() -> None:
        with Lock(NAME, reentrant=True) as lock:
            client.delete(LOCK)
            told.append(f"lost: {lock.remaining() == 0.0}")
            with contextlib.suppress(LockLost):
                lock.extend(1)
            told.append(f"lost: {lock.remaining() == 0.0}")

    def outer() -> None:
        with Lock(NAME, reentrant=True):
            with pytest.raises(LockLost):
                inner()
            told.append("inner block has told")

    with pytest.raises(LockLost):
        outer()
    assert told == ["lost: False", "lost: True", "inner block has told"]


def test_a_thread_enters_again_at_once_after_the_end_of_an_inner_block_was_interrupted() -> None:
    def inner() -> None:
        with interrupted_in(_leave), Lock(NAME, reentrant=True):
            pass

    with Lock(NAME, reentrant=True) as lock:
        with pytest.raises(Interrupt):
            inner()
        with Lock(NAME, reentrant=True, blocking_timeout=0):
            assert lock.owned()


def test_an_exit_stack_whose_end_was_interrupted_leaves_no_lock(client: redis.Redis, eventually: Eventually) -> None:
    def section() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(Lock(NAME))

    with pytest.raises(Interrupt) as kept, interrupted_in(Acquisition.give_back):
        section()
    eventually(lambda: not holder(client))
    assert kept.value.__traceback__ is not None  # and with it the stack


def test_an_exit_stack_that_has_released_its_lock_has_nothing_to_give_back(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise Interrupt

    def section() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(Lock(NAME)).release()

    monkeypatch.setattr("django_redislock.engine.owners.with_block.run_blocking", interrupted)
    with pytest.raises(Interrupt):
        section()
    assert holder(client) == ""


@pytest.mark.parametrize("remembered", [REMEMBER_FOR, 0.0])
def test_what_a_block_that_raised_could_not_release_is_released_in_the_background(
    remembered: float, crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As long as the lease may last: what is given up sooner is what was abandoned in a queue."""
    monkeypatch.setattr("django_redislock.engine.renewal.watchdog.REMEMBER_FOR", remembered)

    def section() -> None:
        network.cut()
        fail()

    me = crowd()
    with pytest.raises(ZeroDivisionError):
        me(Block(Lock(NAME, ttl=600, using="far"), section), "run")
    assert holder(client)
    assert f"event=not-released name={NAME} error=" in caplog.text
    eventually(lambda: "event=renewal-failed" in caplog.text)
    network.mend()
    eventually(lambda: not holder(client))


def test_the_end_of_a_block_that_finds_redis_down_says_so(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me = crowd()
    with pytest.raises(LockUnavailable, match="not released") as caught:
        me(Block(Lock(NAME), own.stop), "run")
    assert 0 < caught.value.lease_left <= 30


def test_one_object_can_be_entered_again_after_its_block(crowd: Crowd, client: redis.Redis) -> None:
    me, lock, fences = crowd(), Lock(NAME), []
    me(Block(lock, lambda: fences.append(lock.fence), times=3), "run")
    assert len(set(fences)) == 3
    assert holder(client) == ""


def test_one_object_can_be_entered_by_hand_while_the_error_of_its_last_exit_is_kept(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.__enter__()
    client.delete(LOCK)
    with pytest.raises(LockLost) as kept:
        lock.__exit__(None, None, None)
    lock.__enter__()
    lock.__exit__(None, None, None)
    assert not lock.locked()
    assert kept.value.name == NAME


def test_an_exit_stack_releases_in_the_end(client: redis.Redis) -> None:
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(Lock(NAME)).owned()
        stack.enter_context(Lock("order:43"))
    assert leftovers(client) == []


async def test_an_async_exit_stack_releases_in_the_end(client: redis.Redis) -> None:
    async with contextlib.AsyncExitStack() as stack:
        lock = await stack.enter_async_context(Lock(NAME))
        assert await lock.aowned()
        await stack.enter_async_context(Lock("order:43"))
    assert leftovers(client) == []


async def test_the_end_of_a_block_is_not_taken_for_an_interruption_while_it_waits_for_redis(
    network: Proxy, client: redis.Redis, aeventually: Callable[..., Any]
) -> None:
    """The watchdog, which looks for blocks that were interrupted, must not release the lock besides."""
    troubles: list[Trouble] = []

    async def section() -> None:
        async with Lock(NAME, using="far"):
            troubles.append(network.hold_request(LOCK))

    async with Lock("warm-up", using="far"):
        pass
    task = asyncio.create_task(section())
    await aeventually(lambda: troubles and troubles[0].caught.is_set())
    undo_interrupted()
    assert not pending_releases("far")
    assert holder(client)
    troubles[0].let_go()
    await task
