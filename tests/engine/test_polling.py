"""``poll=True``: locks without messages, for a server behind a proxy that knows no pub/sub."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockNotAcquired, LockPool, force_release
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, QUEUE, WAITERS, count, put, queued
from tests.inside import subscriptions

Eventually = Callable[..., Any]

LONG = 600.0  # seconds; a test that waits for that has failed
SOON = ConstantBackoff(0.01)


def entries(client: Any) -> list[tuple[str, int]]:
    """Channel, and until when it counts as alive, of each waiter; first come first."""
    found = []
    for id in client.zrange(QUEUE, 0, -1):
        channel, _, until, _ = client.hget(WAITERS, id).decode().split(" ", 3)
        found.append((channel, int(until)))
    return found


def wait_in_line(
    person: Any, lock: Any, client: redis.Redis, eventually: Eventually, method: str = "acquire", *args: Any
) -> Future[Any]:
    """Let somebody ask for the lock, and wait until they queue."""
    before = queued(client)
    waiting: Future[Any] = person.start(lock, method, *args)
    eventually(lambda: queued(client) == before + 1)
    return waiting


# -- no pub/sub --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["who subscribes is cut off", "no right to any channel"])
def no_messages(request: pytest.FixtureRequest, client: redis.Redis, server: RedisServer, settings: Any) -> Any:
    """The default alias leads to where nobody can subscribe; what must not happen is counted."""
    if request.param == "who subscribes is cut off":
        network: Proxy = request.getfixturevalue("network")
        subscribing = network.lose_answer("SUBSCRIBE", times=1000)
        yield lambda: subscribing.met
        return
    client.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-subscribe", "resetchannels")
    url = f"redis://mute:secret@127.0.0.1:{server.port}/0"
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": url}}
    client.execute_command("ACL", "LOG", "RESET")
    yield lambda: len(client.execute_command("ACL", "LOG"))
    client.execute_command("ACL", "DELUSER", "mute")


def test_where_nobody_can_subscribe_locks_are_renewed_and_passed_on(
    crowd: Crowd,
    no_messages: Callable[[], int],
    client: redis.Redis,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ends() -> float:
        return monotonic() + float(me.read(lock.remaining))

    me, you = crowd(), crowd()
    lock, another = Lock(NAME, poll=True, ttl=3), Lock(NAME, poll=True)
    me(lock, "acquire")
    before = ends()
    assert me.read(lambda: lock.token)  # nobody takes it for dead, whoever has that
    waiting = wait_in_line(you, another, client, eventually)
    eventually(lambda: ends() > before + 0.5)
    assert me(lock, "owned")
    me(lock, "release")
    assert waiting.result(GENEROUS)
    you(another, "release")
    assert no_messages() == subscriptions() == 0
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.usefixtures("fresh")
def test_with_the_setting_everybody_polls(
    crowd: Crowd, settings: Any, client: redis.Redis, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"POLL": True}
    me, you, lock, pool = crowd(), crowd(), Lock(NAME), LockPool("accounts")
    me(lock, "acquire")
    assert you(Lock(NAME, attempts=3, backoff=SOON), "acquire") is False
    waiting = wait_in_line(you, Lock(NAME), client, eventually)
    assert [channel for channel, _ in entries(client)] == ["-"]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    me(pool, "extend", ["alice"])
    me(pool, "acquire")
    with pytest.raises(LockNotAcquired) as caught:
        you(pool, "acquire", blocking_timeout=0.2)
    assert caught.value.attempts > 1
    assert subscriptions() == 0


# -- order -------------------------------------------------------------------------------------------------------------


class Section:
    """``with`` and ``async with`` as one; notes who was in, and whether nobody else was."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock

    def run(self, into: list[Any], who: Any) -> None:
        with self.lock:
            self._work(into, who)

    async def arun(self, into: list[Any], who: Any) -> None:
        async with self.lock:
            self._work(into, who)

    def _work(self, into: list[Any], who: Any) -> None:
        into.append(who)
        time.sleep(0.0005)
        assert into[-1] is who


def test_polling_and_woken_waiters_share_one_queue_however_often_each_of_them_looks(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    order, waiting = list[int](), []
    with Lock(NAME):
        for number in range(9):
            often: Any = {"poll": True, "backoff": ConstantBackoff(0.2 / number)} if number % 3 else {}
            lock = Lock(NAME, **often)
            waiting.append(wait_in_line(crowd(), Section(lock), client, eventually, "run", order, number))
        assert [channel == "-" for channel, _ in entries(client)] == [number % 3 > 0 for number in range(9)]
    for future in waiting:
        future.result(GENEROUS)
    assert order == list(range(9))


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize("poll", [False, True], ids=["woken", "polls"])
def test_polling_waiters_that_died_delay_others_only_as_long_as_they_may_miss_looks(
    poll: bool, crowd: Crowd, ghost: Callable[..., Ghost], client: redis.Redis, eventually: Eventually
) -> None:
    dead, me = ghost(alive=False), crowd()
    put(client, NAME)
    for id in ("x" * 22, "y" * 22):
        assert dead.acquire(dead.request(id, name=NAME, listens=False), inside.polled(1.0)).state == inside.BUSY
    began = monotonic()
    waiting = wait_in_line(me, Lock(NAME, poll=poll), client, eventually)
    force_release(NAME)
    assert waiting.result(GENEROUS)
    assert monotonic() - began < 1.0 + 2  # of which two are for a busy machine; all wait for one second, not in turn


# -- how often, how long -----------------------------------------------------------------------------------------------


def scripts_run(client: redis.Redis) -> int:
    return count(client, "eval") + count(client, "evalsha")


class NoneAfter(ConstantBackoff):
    """A short delay after each attempt, but after the last one."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def compute(self, failures: int) -> float:
        return 0.01 if failures < self.attempts else LONG


@pytest.fixture
def busy(client: redis.Redis) -> None:
    """Somebody holds the lock, and does nothing else; and the scripts are known."""
    with Lock(NAME, poll=True) as lock:
        lock.info()
    put(client, NAME, ttl=20)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("attempts", "found"), [(1, 1), (7, 7 + 1)])  # who waits has to leave the queue
def test_the_number_of_attempts_is_the_number_of_calls_and_no_delay_follows_the_last(
    attempts: int, found: int, crowd: Crowd, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, poll=True, attempts=attempts, backoff=NoneAfter(attempts))
    client.config_resetstat()
    with pytest.raises(LockNotAcquired) as caught:
        me(lock, "enter")
    assert scripts_run(client) == found
    assert caught.value.attempts == attempts
    assert queued(client) == 0


def test_the_last_attempt_is_made_at_the_deadline_however_long_the_delay(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, poll=True, backoff=ConstantBackoff(10), blocking_timeout=0.5)
    began = monotonic()
    with Lock(NAME):
        with pytest.raises(LockNotAcquired) as caught:
            me(lock, "enter")
        assert caught.value.attempts == 2
        assert 0.5 <= caught.value.waited < monotonic() - began < 5
        waiting = wait_in_line(me, lock, client, eventually)
    assert waiting.result(5)
