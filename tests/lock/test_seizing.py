"""``seize()``: a lock is taken from whoever holds it, at once and ahead of the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockError, LockLost
from tests.helpers.actors import Crowd, Ghost, server_time
from tests.helpers.proxy import Proxy
from tests.helpers.state import FENCE, LOCK, NAME, QUEUE, flag, holder, value
from tests.inside import ACQUIRE, WAS_FORCED

from .blocks import Block

Heard = list[tuple[str, dict[str, Any]]]

FIRST, SECOND = "id-of-the-first-waiter", "id-of-the-second-waiter"


def seizures(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if message.startswith("event=seized ")]


def test_a_seized_lock_has_a_higher_fence_and_its_old_holder_is_told(
    crowd: Crowd, using: str, hears: Callable[[Any, Lock], None], eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture, heard: Heard, client: redis.Redis,
) -> None:  # fmt: skip
    losses: list[LockLost] = []
    me, you = crowd(), crowd()
    old, lock = Lock(NAME, on_lost=losses.append, using=using, note="no owner"), Lock(NAME, using=using)
    you(old, "acquire")
    hears(you, old)
    before, fence = server_time(client), you.read(lambda: old.fence)
    heard.clear()
    me(lock, "seize")
    eventually(lambda: losses)
    assert losses[0].reason == WAS_FORCED  # long before its next renewal
    assert me.read(lambda: lock.fence) > fence
    assert you.read(lambda: old.lost)
    with pytest.raises(LockLost):
        you(old, "release")
    assert me(lock, "owned")
    assert me(lock, "info").since.timestamp() * 1e6 >= before - 1
    (line,) = seizures(caplog)
    assert f"name={NAME} fence={me.read(lambda: lock.fence)} by=" in line
    assert "no owner" not in line
    seized, acquired = (facts for which, facts in heard if which in ("force", "acquired"))
    assert seized["name"] == acquired["name"] == NAME
    assert seized["by"] in line
    me(lock, "release")
    assert not me(lock, "locked")


def test_seizing_a_free_lock_just_acquires_it(crowd: Crowd, caplog: pytest.LogCaptureFixture, heard: Heard) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "seize")
    assert me(lock, "owned")
    assert seizures(caplog) == []
    assert [which for which, _ in heard] == ["acquired"]


@pytest.mark.parametrize("held", ["held", "free", "handed over"])
def test_a_lock_is_seized_ahead_of_its_waiters_who_keep_their_places(
    crowd: Crowd, held: str, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """And a process that has not come for the lock that it was handed does not become suspect."""
    me, you, old, lock, elsewhere = crowd(), crowd(), Lock(NAME), Lock(NAME), ghost()
    you(old, "acquire")
    elsewhere.queue(FIRST, name=NAME, age=5)
    elsewhere.queue(SECOND, name=NAME, age=4)
    if held == "free":
        client.delete(LOCK)
    elif held == "handed over":
        you(old, "release")
        assert (holder(client), flag(client)) == (FIRST, "h")
    queue = client.zrange(QUEUE, 0, -1, withscores=True)
    me(lock, "seize")
    assert me(lock, "owned")
    assert client.zrange(QUEUE, 0, -1, withscores=True) == queue
    if held == "handed over":
        assert [elsewhere.hear()[0] for _ in range(2)] == ["g", "f"]
    me(lock, "release")
    assert holder(client) == (SECOND if held == "handed over" else FIRST)


def test_a_seizure_whose_answer_was_lost_is_made_once_and_reported_as_well(
    crowd: Crowd, network: Proxy, client: redis.Redis, caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using="far")
    me(Block(Lock("warm-up", using="far")), "run")
    you(Lock(NAME), "acquire")
    lost = network.lose_answer(ACQUIRE)
    me(lock, "seize")
    assert lost.over.is_set()
    fence = me.read(lambda: lock.fence)
    assert value(client)[3] == str(fence)
    assert int(client.get(FENCE) or 0) == fence  # no later fence was drawn
    assert seizures(caplog)[0].endswith(" owner=?")
    assert [facts["name"] for which, facts in heard if which == "force"] == [NAME]


def test_a_holder_seizes_its_own_lock_only_if_it_is_reentrant_or_lost(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    for again in (lock, Lock(NAME)):
        with pytest.raises(LockError, match=f"Cannot seize the lock '{NAME}': .* holds it itself") as caught:
            me(again, "seize")
        assert caught.value.name == NAME
    again, fence = Lock(NAME, reentrant=True), me.read(lambda: lock.fence)
    me(again, "seize")
    assert me.read(lambda: again.fence) == fence
    me(again, "release")
    assert me(lock, "owned")
    you(second := Lock(NAME), "seize")
    me(lock, "seize")
    assert (me(lock, "owned"), you(second, "owned")) == (True, False)


def test_a_key_that_something_else_wrote_is_seized_too(
    crowd: Crowd, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(LOCK, "of somebody else")
    me, lock = crowd(), Lock(NAME)
    me(lock, "seize")
    assert me(lock, "owned")
    assert "owner=?" in seizures(caplog)[0]


def test_a_detached_lock_that_is_seized_by_its_token_keeps_its_fence(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    seizing = Lock(NAME, token=token)
    you(seizing, "seize")
    assert you.read(lambda: (seizing.fence, seizing.token)) == (fence, token)
