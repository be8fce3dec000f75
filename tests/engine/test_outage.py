"""Redis is away for a moment: how long calls are retried, what a failed release leaves, and what the log says."""

from __future__ import annotations

import re
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
from tests.helpers.servers import Twins
from tests.helpers.state import NAME, holder

Eventually = Callable[..., Any]
RetryFor = Callable[[float], None]


@pytest.mark.parametrize("operation", ["acquire", "reacquire", "release"])
def test_an_operation_is_tried_for_the_time_that_is_set_and_continues_after_an_outage(
    operation: str, crowd: Crowd, network: Proxy, retry_for: RetryFor, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, auto_renew=False, poll=True)  # nothing else speaks to Redis
    if operation != "acquire":
        me(lock, "acquire")
    network.cut()
    for seconds, least in (0, 0), (0.6, 0.3):  # no delay is longer than a quarter of a second
        retry_for(seconds)
        began = monotonic()
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            me(lock, operation)
        assert least < monotonic() - began < seconds + 1
        assert caught.value.name == NAME
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
    retry_for(GENEROUS)
    refused, trying = network.refused, me.start(lock, operation)
    eventually(lambda: network.refused >= refused + 4)
    assert not trying.done()
    network.mend()
    trying.result(GENEROUS)


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
    """If the block cannot raise, the log says how long the lock stays held."""

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
    eventually(inside.hears)
    own.stop()
    eventually(lambda: len(outages(failed)) == 3)
    first, second, third = outages(failed)
    assert first < 1 <= second
    assert third >= 2 * second - 0.1
    own.start()
    eventually(lambda: outages(recovered))
    assert outages(recovered)[0] > third
    eventually(lambda: lock.lost)


def test_an_outage_is_logged_when_it_has_doubled_and_at_least_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside.logs_of_outage(monkeypatch, 200) == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184]


@pytest.mark.complete
def test_a_refused_subscription_is_logged_once(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with own.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, reset_channels=True)
        inside.listen()
        eventually(lambda: inside.subscriptions() > 2)
    assert caplog.text.count("event=not-subscribed") == 1
