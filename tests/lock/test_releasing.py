"""Releasing: only what is held here, once, and what the end of a block raises. See also test_context_managers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, holder
from tests.inside import inherit, limit

Eventually = Callable[..., Any]

WELL = (None, None, None)
FAILING = (ZeroDivisionError, ZeroDivisionError(), None)


def test_using_a_lock_that_is_not_held_here_says_what_cannot_be_done(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    you(lock, "acquire")
    calls = [("release", "release"), ("extend", "extend", 1), ("extend", "reacquire"), ("detach", "detach")]
    for verb, method, *args in calls:
        with pytest.raises(LockNotOwned, match=f"Cannot {verb} the lock '{NAME}': .* does not hold it") as caught:
            me(lock, method, *args)
        assert (type(caught.value), caught.value.name) == (LockNotOwned, NAME)
    with pytest.raises(LockNotOwned, match="Cannot use the lock"):
        me.read(lock.check)
    assert you(lock, "owned")


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


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_an_exception_in_the_block_matters_more_than_the_loss(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    client.delete(LOCK)
    assert not me(lock, "exit", *FAILING)
    eventually(lambda: caplog.text.count("event=lost") == 1)
    assert "event=not-released" not in caplog.text  # which would tell the same again


def test_every_block_of_a_reentrant_lock_tells_of_the_loss(crowd: Crowd, client: redis.Redis) -> None:
    me, outer, inner = crowd(), Lock(NAME, reentrant=True), Lock(NAME, reentrant=True)
    me(outer, "enter")
    me(inner, "enter")
    client.delete(LOCK)
    with pytest.raises(LockLost):
        me(inner, "extend", 1)
    assert me.read(inner.remaining) == 0.0
    for lock in (inner, outer):
        with pytest.raises(LockLost):
            me(lock, "exit", *WELL)


def test_what_a_block_that_raised_could_not_release_is_released_in_the_background(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As long as the lease may last: what is given up sooner is what was abandoned in a queue."""
    limit(monkeypatch, remember_for=0.0)
    me, lock = crowd(), Lock(NAME, ttl=600, using="far")
    me(lock, "enter")
    network.cut()
    assert not me(lock, "exit", *FAILING)
    assert holder(client)
    assert f"event=not-released name={NAME} error=" in caplog.text
    eventually(lambda: "event=renewal-failed" in caplog.text)
    network.mend()
    eventually(lambda: not holder(client))
