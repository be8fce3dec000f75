"""``seize()``: a lock is taken from whoever holds it, at once and ahead of the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockError, LockLost, LockUnavailable
from django_redislock.engine.leases.lease import FORCED
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.state import FENCE, LOCK, NAME, QUEUE, flag, holder, queued, value

from .blocks import Block

Eventually = Callable[..., Any]
Hears = Callable[[Any, Lock], None]
Heard = list[tuple[str, dict[str, Any]]]
Start = Callable[..., Worker]

FIRST, SECOND = "id-of-the-first-waiter", "id-of-the-second-waiter"


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"event={event} ")]


def test_a_seized_lock_has_a_higher_fence_and_its_old_holder_is_told(
    crowd: Crowd, using: str, hears: Hears, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, you = crowd(), crowd()
    old, lock = Lock(NAME, on_lost=losses.append, using=using), Lock(NAME, using=using)
    you(old, "acquire")
    hears(you, old)
    before = you.read(lambda: old.fence)
    me(lock, "seize")
    eventually(lambda: losses)
    assert losses[0].reason == FORCED  # long before its next renewal
    assert me.read(lambda: lock.fence) > before
    assert you.read(lambda: old.lost)
    with pytest.raises(LockLost):
        you(old, "release")
    assert me(lock, "owned")
    me(lock, "release")
    assert not me(lock, "locked")


HOLDS = """
lock = Lock(name, on_lost=lambda error: say("lost", get_lock(name) is not None))
lock.acquire()
say("held", lock.fence)
hear()
"""


def test_a_lock_is_seized_from_another_process(start: Start, client: redis.Redis, eventually: Eventually) -> None:
    worker = start(HOLDS, name=NAME)
    (fence,) = worker.expect("held")
    eventually(lambda: client.pubsub_channels("*wake:*"))
    lock = Lock(NAME)
    lock.seize()
    assert worker.expect("lost") == ["True"]
    assert (lock.fence or 0) > int(fence)


def test_seizing_a_free_lock_just_acquires_it(crowd: Crowd, caplog: pytest.LogCaptureFixture, heard: Heard) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "seize")
    assert me(lock, "owned")
    assert events(caplog, "seized") == []
    assert [which for which, _ in heard] == ["acquired"]


@pytest.mark.parametrize("held", [False, True])
def test_a_lock_is_seized_ahead_of_its_waiters_who_keep_their_places(
    crowd: Crowd, held: bool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    me, you = crowd(), crowd()
    you(Lock(NAME), "acquire")
    crowd_elsewhere = ghost()
    crowd_elsewhere.queue(FIRST, name=NAME, age=5)
    crowd_elsewhere.queue(SECOND, name=NAME, age=4)
    if not held:
        client.delete(LOCK)
    queue = client.zrange(QUEUE, 0, -1, withscores=True)
    lock = Lock(NAME)
    me(lock, "seize")
    assert me(lock, "owned")
    assert client.zrange(QUEUE, 0, -1, withscores=True) == queue
    me(lock, "release")
    assert holder(client) == FIRST


def test_waiters_are_served_in_order_after_the_seizure(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock, order, waiting = crowd(), Lock(NAME), [], []
    crowd()(Lock(NAME), "acquire")
    for number in range(1, 4):
        section = Block(Lock(NAME), lambda number=number: order.append(number))  # type: ignore[misc]
        waiting.append(crowd().start(section, "run"))
        eventually(lambda number=number: queued(client) == number)
    me(lock, "seize")
    assert (queued(client), order) == (3, [])
    me(lock, "release")
    for one in waiting:
        one.result(GENEROUS)
    assert order == [1, 2, 3]


def seize_unanswered(crowd: Crowd, network: Proxy) -> tuple[Any, Lock]:
    """Seize a held lock; the first answer of Redis is lost. Return who seized it, and the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, using="far")
    me(Block(Lock("warm-up", using="far")), "run")
    you(Lock(NAME), "acquire")
    lost = network.lose_answer(inside.ACQUIRE)
    me(lock, "seize")
    assert lost.over.is_set()
    return me, lock


def test_a_repeated_request_does_not_seize_twice(crowd: Crowd, network: Proxy, client: redis.Redis) -> None:
    me, lock = seize_unanswered(crowd, network)
    fence = me.read(lambda: lock.fence)
    assert value(client)[3] == str(fence)
    assert int(client.get(FENCE) or 0) == fence  # no later fence was drawn
    me(lock, "release")
    assert holder(client) == ""


def test_a_seizure_whose_answer_was_lost_is_reported_as_well(
    crowd: Crowd, network: Proxy, caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    me, lock = seize_unanswered(crowd, network)
    (line,) = events(caplog, "seized")
    assert line.endswith(" owner=?")
    assert [facts["name"] for which, facts in heard if which == "force"] == [NAME]
    me(lock, "release")


def test_a_holder_cannot_seize_its_own_lock(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    for again in (lock, Lock(NAME)):
        with pytest.raises(LockError, match=f"Cannot seize the lock '{NAME}': .* holds it itself") as caught:
            me(again, "seize")
        assert caught.value.name == NAME
    assert me(lock, "owned")


def test_a_reentrant_lock_that_is_held_here_is_entered_once_more(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME, reentrant=True)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    me(lock, "seize")
    assert me.read(lambda: lock.fence) == fence
    me(lock, "release")
    assert me(lock, "owned")
    me(lock, "release")
    assert holder(client) == ""


def test_a_holder_that_has_lost_its_lock_can_seize_it_back(crowd: Crowd) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME), Lock(NAME)
    me(lock, "acquire")
    you(second, "seize")
    me(lock, "seize")
    assert (me(lock, "owned"), you(second, "owned")) == (True, False)


def test_a_seized_handoff_does_not_make_its_process_suspect(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    old, lock, elsewhere = Lock(NAME), Lock(NAME), ghost()
    old.acquire()
    elsewhere.queue(FIRST, name=NAME, age=5)
    elsewhere.queue(SECOND, name=NAME, age=4)
    old.release()
    assert (holder(client), flag(client)) == (FIRST, "h")
    lock.seize()
    assert [elsewhere.hear()[0] for _ in range(2)] == ["g", "f"]
    lock.release()
    assert holder(client) == SECOND


def test_a_key_that_something_else_wrote_is_seized_too(
    crowd: Crowd, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(LOCK, "of somebody else")
    me, lock = crowd(), Lock(NAME)
    me(lock, "seize")
    assert me(lock, "owned")
    assert "owner=?" in events(caplog, "seized")[0]


def test_a_seizure_is_logged_and_signalled(crowd: Crowd, caplog: pytest.LogCaptureFixture, heard: Heard) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    you(Lock(NAME, note="a note that is no owner"), "acquire")
    heard.clear()
    me(lock, "seize")
    (line,) = events(caplog, "seized")
    assert f"name={NAME} fence={me.read(lambda: lock.fence)} by=" in line
    assert "no owner" not in line
    seized, acquired = (facts for which, facts in heard if which in ("force", "acquired"))
    assert seized["name"] == acquired["name"] == NAME
    assert seized["by"] in line
    assert any(record.levelno == logging.WARNING and record.getMessage() == line for record in caplog.records)


def test_the_lock_is_held_since_the_moment_of_its_seizure(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    crowd()(Lock(NAME), "acquire")
    before = server_time(client)
    me(lock, "seize")
    assert me(lock, "info").since.timestamp() * 1e6 >= before - 1


def test_a_seizure_works_when_redis_is_out_of_memory(crowd: Crowd, own: RedisServer) -> None:
    me, lock = crowd(), Lock(NAME)
    crowd()(Lock(NAME), "acquire")
    with own.client() as client:
        client.config_set("maxmemory", 1)
        me(lock, "seize")
        assert me(lock, "owned")
        client.config_set("maxmemory", 0)


def test_a_read_only_server_publishes_nothing_about_a_seizure(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    me, you, old = crowd(), crowd(), Lock(NAME)
    you(old, "acquire")
    with own.client() as client:
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        pubsub.psubscribe("redislock*")
        assert pubsub.get_message(timeout=GENEROUS) is None  # the reply to the subscription
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(LockUnavailable, match="Not enough good replicas"):
            me(Lock(NAME), "seize")
        client.config_set("min-replicas-to-write", 0)
        assert you(old, "owned")
        client.publish("redislock-end", "of the test")
        message = pubsub.get_message(timeout=GENEROUS)
        assert message is not None
        assert message["data"] == b"of the test"  # and none before
        pubsub.close()


def test_a_detached_lock_that_is_seized_by_its_token_keeps_its_fence(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    seizing = Lock(NAME, token=token)
    you(seizing, "seize")
    assert you.read(lambda: (seizing.fence, seizing.token)) == (fence, token)
