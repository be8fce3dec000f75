"""Redis is down, restarts, forgets everything or cuts all connections; a process dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, queued
from tests.inside import limit

Eventually = Callable[..., Any]
RetryFor = Callable[[float], None]

HELD = "held"
free, held = Lock(NAME), Lock(HELD)

CALLS: list[tuple[Any, str, tuple[Any, ...], dict[str, Any]]] = [
    (free, "acquire", (), {}),
    (free, "acquire", (), {"blocking": False}),
    (free, "acquire", (), {"blocking_timeout": 5}),
    *((free, method, (), {}) for method in ("seize", "enter", "locked", "status", "info")),
    (django_redislock, "get_lock", (NAME,), {}),
    (django_redislock, "force_release", (NAME,), {}),
    (held, "extend", (1,), {}),
    *((held, method, (), {}) for method in ("owned", "reacquire", "detach", "release")),
]


def test_a_redis_that_is_down_makes_every_call_raise_lock_unavailable_and_the_release_can_be_tried_again(
    crowd: Crowd, own: RedisServer, retry_for: RetryFor
) -> None:
    retry_for(0.05)
    me, block = crowd(), Lock(NAME)
    me(held, "acquire")
    me(block, "enter")
    token = me.read(lambda: held.token)
    own.stop()
    for thing, method, args, options in CALLS:
        with pytest.raises(LockUnavailable, match="Redis cannot be reached for the lock") as caught:
            me(thing, method, *args, **options)
        assert caught.value.name in (NAME, HELD)
        assert isinstance(caught.value.__cause__, (redis.ConnectionError, OSError))
    assert "The lock was not released: " in str(caught.value)
    assert "unless you try again, it stays locked for " in str(caught.value)
    assert 0 < caught.value.lease_left <= 30
    with pytest.raises(LockUnavailable, match="The lock was not released: ") as caught:
        me(block, "exit", None, None, None)
    assert 0 < caught.value.lease_left <= 30
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        me(django_redislock, "list_locks")
    assert me.read(lambda: held.token) == token
    own.start()
    me(held, "release")
    assert me.read(lambda: held.token) is None


@pytest.mark.parametrize("restarts", [True, False])
def test_a_waiter_survives_a_restart_of_redis_and_gives_up_after_a_long_outage(
    restarts: bool, crowd: Crowd, own: RedisServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch,
    retry_for: RetryFor,
) -> None:  # fmt: skip
    if not restarts:
        retry_for(0.1)
        limit(monkeypatch, sit_out=0.3, sit_out_listening=0.3)
    me, you, lock, second = crowd(), crowd(), Lock(NAME, ttl=300), Lock(NAME)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    waiting = you.start(second, "acquire")
    with own.client() as client:
        eventually(lambda: queued(client))
    own.stop()
    assert not waiting.done()
    if not restarts:
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            waiting.result(GENEROUS)
        assert caught.value.name == NAME
        return
    own.start()  # and has forgotten everything
    assert waiting.result(GENEROUS) is True
    assert you.read(lambda: second.fence) > fence
    eventually(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost):
        me(lock, "release")
    assert you(second, "owned")


@pytest.mark.parametrize("how", ["flushed", "evicted", "cut off"])
def test_a_waiter_survives_the_loss_of_its_place(
    how: str, crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)  # there is no message
    me, you, lock, second = crowd(), crowd(), Lock(NAME, ttl=300), Lock(NAME)
    me(lock, "acquire")
    waiting = you.start(second, "acquire")
    eventually(lambda: client.zcard(QUEUE))
    if how == "flushed":
        client.flushall()
    elif how == "evicted":
        client.delete(QUEUE, LOCK)
    else:
        for kind in ("pubsub", "normal"):
            client.client_kill_filter(_type=kind, skipme=True)
        client.delete(QUEUE)
        eventually(lambda: client.zcard(QUEUE))  # it queues again
        assert not waiting.done()
        me(lock, "release")
    assert waiting.result(GENEROUS) is True
    assert how == "cut off" or not client.exists(WAITERS)


DIES = """
Lock(name, ttl=1).acquire()
say("held")
hear()
"""


def test_the_lock_of_a_killed_process_goes_to_the_next_one(
    crowd: Crowd, start: Callable[..., Any], client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(DIES, name=NAME)
    worker.expect("held")
    you, lock = crowd(), Lock(NAME)
    waiting = you.start(lock, "acquire")
    eventually(lambda: queued(client))
    first = holder(client)
    eventually(lambda: client.pttl(LOCK) < 700)
    eventually(lambda: client.pttl(LOCK) > 900)  # renewed
    assert holder(client) == first
    worker.kill()
    assert waiting.result(4) is True  # at the end of the lease; whoever did not look then would look every 5 s
    assert you(lock, "owned")
