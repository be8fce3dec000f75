"""Releasing: only what is held here, only once, and whatever has happened to the lock meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned, force_release
from django_redislock.engine import current_owner
from django_redislock.store import calls
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, holder, leftovers
from tests.inside import lease_of

Eventually = Callable[..., Any]


def is_not_owned(person: Any, lock: Lock, method: str, *args: Any) -> None:
    with pytest.raises(LockNotOwned, match=f"Cannot {method} the lock '{NAME}': .* does not hold it") as caught:
        person(lock, method, *args)
    assert not isinstance(caught.value, LockLost)
    assert caught.value.name == NAME


def test_only_the_thread_or_task_that_has_acquired_a_lock_can_release_it_and_only_once(
    crowd: Crowd, using: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    is_not_owned(me, lock, "release")
    me(lock, "acquire")
    is_not_owned(you, lock, "release")
    assert me(lock, "owned")
    me(lock, "release")
    assert not me(lock, "locked")
    is_not_owned(me, lock, "release")


def test_a_lock_that_was_acquired_and_released_leaves_nothing_in_redis(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    me(lock, "release")
    assert leftovers(client) == []


def test_a_release_after_one_in_the_background_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, client: redis.Redis, eventually: Eventually
) -> None:
    """This happens when a block is interrupted, and a ``finally`` after it releases the block's lock."""
    lock = Lock(NAME)
    lock.acquire()
    section = current_owner().section(lock)
    assert section is not None
    send = calls.release

    def too_late(*args: Any, **options: Any) -> Any:
        section.undo()
        eventually(lambda: not client.exists(LOCK))
        return (yield from send(*args, **options))

    monkeypatch.setattr(calls, "release", too_late)
    lock.release()
    assert not lock.lost
    assert "event=lost" not in caplog.text


def test_a_child_that_was_forked_inside_a_block_does_not_release_its_lock(client: redis.Redis) -> None:
    """Simulated here; project/test_forks.py has a real child."""
    lock = Lock(NAME)
    with pytest.raises(LockNotOwned, match="Cannot release"), lock:
        lease_of(lock).pid -= 1
    assert holder(client)
    assert force_release(NAME)


def test_extending_checking_and_detaching_need_a_lock_that_is_held_here(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    you(lock, "acquire")
    is_not_owned(me, lock, "extend", 1)
    is_not_owned(me, lock, "detach")
    with pytest.raises(LockNotOwned, match="Cannot extend the lock"):
        me(lock, "reacquire")
    with pytest.raises(LockNotOwned, match="Cannot use the lock"):
        me.read(lock.check)
    assert you(lock, "owned")


def test_releasing_a_lost_lock_raises_lock_lost_and_forgets_the_lock(crowd: Crowd, using: str) -> None:
    me, lock = crowd(), Lock(NAME, using=using)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    force_release(NAME, using=using)
    with pytest.raises(LockLost, match="was lost while it was held here") as caught:
        me(lock, "release")
    assert (caught.value.name, caught.value.fence) == (NAME, fence)
    assert caught.value.reason in str(caught.value)
    assert me.read(lambda: (lock.token, fence_of(lock))) == (None, None)
    is_not_owned(me, lock, "release")


def test_the_lock_of_the_next_holder_survives_the_release_of_a_lost_one(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME), Lock(NAME)
    me(lock, "acquire")
    client.delete(LOCK)
    assert you(second, "acquire", blocking=False)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert you(second, "owned")
    you(second, "release")


def test_a_token_that_does_not_hold_the_lock_cannot_release_it(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    # tokens are compared as a whole, not by prefix
    me(lock, "acquire", token=f"{TOKEN}-and-more")
    forged = Lock(NAME, token=TOKEN, using=using)
    is_not_owned(you, forged, "release")
    assert not you(forged, "owned")
    assert me(lock, "owned")


def test_the_id_of_an_attempt_is_no_token(crowd: Crowd, client: redis.Redis) -> None:
    """Ids travel in messages, so reading a message must not allow anybody to release the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    is_not_owned(you, Lock(NAME, token=holder(client)), "release")
    assert me(lock, "owned")


def test_an_answer_that_is_lost_makes_a_release_neither_fail_nor_report_a_loss(
    crowd: Crowd, network: Proxy, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, using="far")
    me(lock, "acquire")
    losses: list[LockLost] = []
    me.read(lambda: setattr(lease_of(lock), "on_lost", losses.append))
    lost = network.lose_answer(LOCK)
    me(lock, "release")
    assert lost.over.is_set()
    assert (holder(client), losses) == ("", [])
