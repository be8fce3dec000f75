"""Redis is away for a moment: which calls are retried, for how long, what a failed release leaves, and what the log
says."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable, locked, locked_view
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder
from tests.helpers.twins import Twins
from tests.helpers.ways import kill
from tests.inside import hears, limit, listen, subscriptions

Eventually = Callable[..., Any]
RetryFor = Callable[[float], None]

OPERATIONS: dict[str, tuple[Any, ...]] = {"acquire": (), "extend": (5,), "reacquire": (), "release": ()}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest, crowd: Crowd, network: Proxy) -> Callable[[], Any]:
    """Calls a method of a lock, which is held where that needs it. Nothing else speaks to Redis."""
    me, lock = crowd(), Lock(NAME, auto_renew=False, poll=True)
    if request.param != "acquire":
        me(lock, "acquire")
    return lambda: me(lock, request.param, *OPERATIONS[request.param])


# -- what is tried again -----------------------------------------------------------------------------------------------


def test_an_operation_continues_after_a_short_outage(
    operation: Callable[[], Any], network: Proxy, retry_for: RetryFor, eventually: Eventually
) -> None:
    def mend() -> None:
        eventually(lambda: network.refused >= 4)
        network.mend()

    retry_for(20)
    network.cut()
    mending = threading.Thread(target=mend)
    mending.start()
    operation()
    mending.join(GENEROUS)
    assert network.refused >= 4


@pytest.mark.parametrize(("seconds", "least"), [(0.6, 0.3), (0, 0)])  # no delay is longer than a quarter of a second
def test_an_operation_gives_up_after_the_time_that_is_set(
    seconds: float, least: float, operation: Callable[[], Any], network: Proxy, retry_for: RetryFor
) -> None:
    network.cut()
    retry_for(seconds)
    began = monotonic()
    with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
        operation()
    assert least < monotonic() - began < seconds + 1
    assert caught.value.name == NAME
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    network.mend()
    operation()


def test_any_number_of_connections_that_have_gone_stale_is_no_error(
    crowd: Crowd, network: Proxy, retry_for: RetryFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although none of them is checked before it is used."""
    limit(monkeypatch, check_idle_threads=1000.0, check_idle_loops=1000.0)
    retry_for(0)
    people, locks = [crowd() for _ in range(3)], [Lock(f"seat:{number}", poll=True) for number in range(3)]
    held = network.hold_answer("seat:", times=3)
    waiting = [me.start(lock, "acquire") for me, lock in zip(people, locks, strict=True)]
    eventually(lambda: held.met == 3)
    held.let_go()
    assert all(future.result(GENEROUS) for future in waiting)
    network.cut()
    network.mend()
    for me, lock in zip(people, locks, strict=True):
        me(lock, "release")


async def test_other_coroutines_continue_while_one_retries(network: Proxy, retry_for: RetryFor) -> None:
    retry_for(GENEROUS)
    network.cut()
    trying = asyncio.create_task(Lock(NAME).aacquire())
    while network.refused < 4:
        assert not trying.done()
        await asyncio.sleep(0.001)
    network.mend()
    assert await trying


# -- what a failed release leaves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ttl", "left"), [(20, r"(1\d|20\.0)"), (0.2, r"0(\.0)?")])
def test_a_failed_release_says_how_long_the_lock_stays_held(
    ttl: float, left: str, crowd: Crowd, network: Proxy, retry_for: RetryFor
) -> None:
    retry_for(0.5)
    me, lock = crowd(), Lock(NAME, ttl=ttl, auto_renew=False)
    me(lock, "acquire")
    network.cut()
    with pytest.raises(LockUnavailable, match=rf"not released: unless you .* locked for {left}") as caught:
        me(lock, "release")
    assert caught.value.lease_left == pytest.approx(me.read(lock.remaining), abs=2)
    with pytest.raises(LockUnavailable) as caught:
        me(Lock("another"), "acquire")
    assert caught.value.lease_left is None


@pytest.mark.parametrize("way", ["a function", "a function that raises", "a view"])
def test_what_a_block_could_not_release_is_released_in_the_background(
    way: str,
    crowd: Crowd,
    network: Proxy,
    retry_for: RetryFor,
    client: redis.Redis,
    eventually: Eventually,
    rf: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The user of a block rarely retries the release. If the block did not raise, the log says how long the lock stays
    held."""

    def body(*args: Any) -> str:
        network.cut()
        if way == "a function that raises":
            raise ZeroDivisionError
        return "done"

    retry_for(0.1)
    me, decorator = crowd(), locked_view(NAME, ttl=30) if way == "a view" else locked(NAME, ttl=30)
    twins: Any = Twins(decorator, body)
    if way == "a view":
        assert me(twins, "call", rf.get("/")) == "done"
    else:
        with pytest.raises(LockUnavailable if way == "a function" else ZeroDivisionError) as caught:
            me(twins, "call")
        assert 15 < getattr(caught.value, "lease_left", 20) < 30
    lines = [text for text in caplog.messages if text.startswith("event=not-released ")]
    assert len(lines) == (way != "a function")
    assert all(15 < float(line.rpartition("lease_left=")[2]) < 30 for line in lines)
    assert holder(client)
    network.mend()
    eventually(lambda: not holder(client))


# -- what the log says -------------------------------------------------------------------------------------------------


def test_an_outage_is_logged_when_it_has_doubled_and_at_least_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    found = inside.logs_of_outage(monkeypatch, 400)
    assert found == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364]


def test_tries_in_the_background_follow_each_other_less_and_less_often_up_to_a_second() -> None:
    assert inside.retries_of_outage(7) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_of_what_concerns_nobody_any_more_the_log_says_neither_that_it_fails_nor_that_it_works(
    network: Proxy, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Lock(NAME).locked()
    network.cut()
    inside.pass_on_later(NAME)
    eventually(lambda: network.refused > 1)
    network.mend()
    eventually(lambda: not inside.pending_releases())
    assert "event=renewal-" not in caplog.text


@pytest.mark.complete
@pytest.mark.parametrize(
    ("failed", "recovered"),
    [("renewal-failed", "renewal-recovered"), ("listener-disconnected", "listener-reconnected")],
)
def test_the_log_tells_how_long_redis_has_been_away_and_when_it_is_back(
    failed: str, recovered: str, own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def outages(event: str) -> list[float]:
        return [float(found) for found in re.findall(rf"event={event} .*?outage=(\S+)", caplog.text)]

    lock = Lock("seat", ttl=12)
    lock.acquire()
    eventually(hears)
    own.stop()
    eventually(lambda: len(outages(failed)) == 3)
    first, second, third = outages(failed)
    assert first < 1 <= second
    assert third >= 2 * second - 0.1
    own.start()
    eventually(lambda: outages(recovered))
    assert outages(recovered)[0] > third
    eventually(lambda: lock.lost)


def test_an_outage_does_not_continue_an_older_one_whose_end_nobody_noticed(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock("seat", ttl=1.5)
    lock.acquire()
    own.stop()
    eventually(lambda: lock.lost)
    assert "event=renewal-failed" in caplog.text
    own.start()
    inside.pass_time(monkeypatch, 3600)
    other = Lock("row", ttl=1.5)
    other.acquire()
    ends = monotonic() + other.remaining()
    eventually(lambda: monotonic() + other.remaining() > ends + 0.1)
    assert not other.lost
    assert "event=renewal-recovered" not in caplog.text


def test_subscriptions_that_do_not_last_are_one_outage(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    listen()
    with own.client() as client:
        for number in range(1, 7):
            eventually(lambda number=number: hears() and subscriptions() >= number)
            kill(client)
        eventually(lambda: hears() and subscriptions() == 7)
    assert 1 <= caplog.text.count("event=listener-disconnected") <= 3
    assert 1 <= caplog.text.count("event=listener-reconnected") <= 3


@pytest.mark.complete
def test_a_refused_subscription_is_logged_once(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with own.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, reset_channels=True)
        listen()
        eventually(lambda: subscriptions() > 2)
    assert caplog.text.count("event=not-subscribed") == 1
