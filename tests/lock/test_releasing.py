"""Releasing: only what is held here, only once, and whatever has happened to the lock meanwhile."""

from __future__ import annotations

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned, force_release
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, holder, leftovers
from tests.inside import inherit


def test_using_a_lock_that_is_not_held_here_says_what_cannot_be_done(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    you(lock, "acquire")
    for verb, method, *args in (
        ("release", "release"),
        ("extend", "extend", 1),
        ("extend", "reacquire"),
        ("detach", "detach"),
    ):
        with pytest.raises(LockNotOwned, match=f"Cannot {verb} the lock '{NAME}': .* does not hold it") as caught:
            me(lock, method, *args)
        assert (type(caught.value), caught.value.name) == (LockNotOwned, NAME)
    with pytest.raises(LockNotOwned, match="Cannot use the lock"):
        me.read(lock.check)
    assert you(lock, "owned")


def test_a_lock_that_was_acquired_and_released_leaves_nothing_in_redis(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    me(lock, "release")
    assert leftovers(client) == []


def test_releasing_a_lost_lock_raises_lock_lost_once_and_leaves_the_next_holder_its_own(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME), Lock(NAME)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    client.delete(LOCK)
    assert you(second, "acquire", blocking=False)
    with pytest.raises(LockLost, match="was lost while it was held here") as caught:
        me(lock, "release")
    assert (caught.value.name, caught.value.fence) == (NAME, fence)
    assert caught.value.reason in str(caught.value)
    assert me.read(lambda: (lock.token, fence_of(lock))) == (None, None)
    with pytest.raises(LockNotOwned) as again:
        me(lock, "release")
    assert not isinstance(again.value, LockLost)
    assert you(second, "owned")
    you(second, "release")


@pytest.mark.parametrize("forged", ["a beginning", "the id"])
def test_what_is_not_the_whole_token_releases_nothing(forged: str, crowd: Crowd, client: redis.Redis) -> None:
    """Ids of attempts travel in messages, so reading a message must not allow anybody to release the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, token=f"{TOKEN}-and-more")
    me(lock, "acquire")
    forgery = Lock(NAME, token=TOKEN if forged == "a beginning" else holder(client))
    with pytest.raises(LockNotOwned, match=r"Cannot release the lock .* does not hold it"):
        you(forgery, "release")
    assert not you(forgery, "owned")
    assert me(lock, "owned")


def test_an_answer_that_is_lost_makes_a_release_neither_fail_nor_report_a_loss(
    crowd: Crowd, network: Proxy, client: redis.Redis
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, using="far", on_lost=losses.append)
    me(lock, "acquire")
    lost = network.lose_answer(LOCK)
    me(lock, "release")
    assert lost.over.is_set()
    assert (holder(client), losses) == ("", [])


def test_a_child_that_was_forked_inside_a_block_does_not_release_its_lock(client: redis.Redis) -> None:
    """Simulated here; project/test_forks.py has a real child."""
    lock = Lock(NAME)
    with pytest.raises(LockNotOwned, match="Cannot release"), lock:
        inherit(lock)
    assert holder(client)
    assert force_release(NAME)
