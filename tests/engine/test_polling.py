"""``poll=True``: locks without messages, for a server behind a proxy that knows no pub/sub."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockNotAcquired, LockPool, locked
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.servers import Twins
from tests.helpers.state import NAME, QUEUE, WAITERS, count, put, queued
from tests.inside import subscriptions

Eventually = Callable[..., Any]


def channels(client: Any) -> list[str]:
    """Those of the waiters; first come first."""
    return [client.hget(WAITERS, id).decode().split(" ")[0] for id in client.zrange(QUEUE, 0, -1)]


def wait_in_line(
    person: Any, lock: Any, client: redis.Redis, eventually: Eventually, method: str = "acquire", *args: Any
) -> Future[Any]:
    """Let somebody ask for the lock, and wait until they queue."""
    before = queued(client)
    waiting: Future[Any] = person.start(lock, method, *args)
    eventually(lambda: queued(client) == before + 1)
    return waiting


def test_where_nobody_can_subscribe_locks_are_renewed_and_passed_on(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    subscribing = network.lose_answer("SUBSCRIBE", times=1000)
    me, you, lock, another = crowd(), crowd(), Lock(NAME, poll=True, ttl=1.5), Lock(NAME, poll=True)
    me(lock, "acquire")
    end = monotonic() + me.read(lock.remaining)
    assert me.read(lambda: lock.token)  # nobody takes it for dead, whoever has that
    waiting = wait_in_line(you, another, client, eventually)
    eventually(lambda: monotonic() + me.read(lock.remaining) > end + 0.3)
    assert me(lock, "owned")
    me(lock, "release")
    assert waiting.result(GENEROUS)
    you(another, "release")
    assert subscribing.met == subscriptions() == 0
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.usefixtures("fresh")
def test_with_the_setting_everybody_polls(
    crowd: Crowd, settings: Any, client: redis.Redis, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"POLL": True}
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    waiting = wait_in_line(you, Lock(NAME), client, eventually)
    assert channels(client) == ["-"]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    pool = LockPool("accounts")
    pool.extend(["alice"])
    me(pool, "acquire")
    with pytest.raises(LockNotAcquired) as caught:
        you(pool, "acquire", blocking_timeout=0.2)
    assert caught.value.attempts > 1
    assert subscriptions() == 0


def test_polling_and_woken_waiters_share_one_queue_however_often_each_of_them_looks(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    order, waiting = list[int](), []
    with Lock(NAME):
        for number in range(9):
            often: Any = {"poll": True, "backoff": ConstantBackoff(0.2 / number)} if number % 3 else {}
            section = Twins(locked(NAME, **often), order.append)
            waiting.append(wait_in_line(crowd(), section, client, eventually, "call", number))
        assert [channel == "-" for channel in channels(client)] == [number % 3 > 0 for number in range(9)]
    for future in waiting:
        future.result(GENEROUS)
    assert order == list(range(9))


@pytest.mark.parametrize(("attempts", "delay", "calls"), [(1, 15, 1), (3, 0.01, 3 + 1)])  # who waits leaves
def test_the_number_of_attempts_is_the_number_of_calls_and_no_delay_follows_the_last(
    attempts: int, delay: float, calls: int, crowd: Crowd, client: redis.Redis
) -> None:
    with Lock(NAME, poll=True) as lock:
        lock.info()  # the scripts are known
    put(client, NAME, ttl=20)
    client.config_resetstat()
    began = monotonic()
    with pytest.raises(LockNotAcquired) as caught:
        crowd()(Lock(NAME, poll=True, attempts=attempts, backoff=ConstantBackoff(delay)), "enter")
    assert count(client, "eval") + count(client, "evalsha") == calls
    assert caught.value.attempts == attempts
    assert monotonic() - began < 5
    assert queued(client) == 0


def test_the_last_attempt_is_made_at_the_deadline_however_long_the_delay(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, poll=True, backoff=ConstantBackoff(10), blocking_timeout=0.5)
    with Lock(NAME):
        with pytest.raises(LockNotAcquired) as caught:
            me(lock, "enter")
        assert caught.value.attempts == 2
        assert 0.5 <= caught.value.waited < 5
        waiting = wait_in_line(me, lock, client, eventually)
    assert waiting.result(5)
