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
from tests.helpers.state import LOCK, NAME, QUEUE, holder, queued
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


def test_a_redis_that_is_down_makes_every_call_raise_lock_unavailable(
    crowd: Crowd, own: RedisServer, retry_for: RetryFor
) -> None:
    retry_for(0.1)
    me = crowd()
    me(held, "acquire")
    own.stop()
    for thing, method, args, options in CALLS:
        with pytest.raises(LockUnavailable, match="Redis cannot be reached for the lock") as caught:
            me(thing, method, *args, **options)
        assert caught.value.name in (NAME, HELD)
        assert isinstance(caught.value.__cause__, (redis.ConnectionError, OSError))
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        me(django_redislock, "list_locks")


@pytest.mark.parametrize("end", ["release", "exit"])
def test_a_release_that_found_redis_down_says_so_and_can_be_tried_again(
    end: str, crowd: Crowd, own: RedisServer, retry_for: RetryFor
) -> None:
    retry_for(0.1)
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    token = me.read(lambda: lock.token)
    own.stop()
    with pytest.raises(LockUnavailable, match="The lock was not released: ") as caught:
        me(lock, end, *([None] * 3 if end == "exit" else []))
    assert 0 < caught.value.lease_left <= 30
    if end == "release":
        assert "unless you try again, it stays locked for " in str(caught.value)
        assert me.read(lambda: lock.token) == token
        own.start()
        me(lock, "release")
        assert me.read(lambda: lock.token) is None


def test_a_waiter_gives_up_after_a_long_outage(
    crowd: Crowd, own: RedisServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, retry_for: RetryFor
) -> None:
    retry_for(0.1)
    limit(monkeypatch, sit_out=0.3, sit_out_listening=0.3)
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    waiting = you.start(Lock(NAME), "acquire")
    with own.client() as client:
        eventually(lambda: queued(client))
    own.stop()
    with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
        waiting.result(GENEROUS)
    assert caught.value.name == NAME


def test_a_waiter_survives_a_restart_of_redis_and_gets_its_lock(
    crowd: Crowd, own: RedisServer, eventually: Eventually
) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME, ttl=300), Lock(NAME)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    waiting = you.start(second, "acquire")
    with own.client() as client:
        eventually(lambda: queued(client))
    own.stop()
    assert not waiting.done()
    own.start()
    # Redis has forgotten everything
    assert waiting.result(GENEROUS) is True
    assert you.read(lambda: second.fence) > fence
    eventually(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost):
        me(lock, "release")
    assert you(second, "owned")


def test_the_release_after_a_restart_says_that_the_lock_was_lost(
    crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=0.0, check_idle_loops=0.0)  # a restart may take less
    me, lock = crowd(), Lock(NAME, ttl=300)
    me(lock, "acquire")
    own.stop()
    own.start()
    with pytest.raises(LockLost):
        me(lock, "release")
    assert me(lock, "acquire")


def test_a_waiter_survives_a_flush_and_gets_its_lock(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.5)  # there is no message
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    waiting = you.start(Lock(NAME), "acquire")
    eventually(lambda: queued(client))
    client.flushall()
    assert waiting.result(GENEROUS) is True


def test_a_waiter_survives_the_loss_of_every_connection_and_of_its_place(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    waiting = you.start(Lock(NAME), "acquire")
    eventually(lambda: client.zcard(QUEUE))
    client.client_kill_filter(_type="pubsub", skipme=True)
    client.client_kill_filter(_type="normal", skipme=True)
    client.delete(QUEUE)
    eventually(lambda: client.zcard(QUEUE))  # it queues again
    assert not waiting.done()
    me(lock, "release")
    assert waiting.result(GENEROUS) is True


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
