"""An outage of Redis is logged as one event from beginning to end, and does not flood the log."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.engine.background import outage
from django_redislock.engine.background.outage import Outage
from redisserver import RedisServer
from tests.inside import hears, limit, listener

Eventually = Callable[..., Any]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock."""

    def at(now: float) -> None:
        monkeypatch.setattr(outage, "monotonic", lambda: now)

    at(0.0)
    return at


def test_tries_follow_each_other_in_growing_intervals_to_a_second() -> None:
    one = Outage()
    assert [one.fail() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_it_is_logged_less_and_less_often(at: Callable[[float], None]) -> None:
    one, said = Outage(), []
    for second in range(601):
        at(second)
        if one.log_is_due():
            said.append(second)
    assert said == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364, 424, 484, 544]


def test_an_outage_whose_beginning_was_not_logged_has_no_end_in_the_log() -> None:
    one = Outage()
    one.fail()
    assert not one.end_is_due()
    one.log_is_due()
    assert one.end_is_due()


def test_an_outage_that_was_not_updated_for_long_is_stale(at: Callable[[float], None]) -> None:
    one = Outage()
    assert not one.is_stale(5)
    one.fail()
    at(6)
    assert not one.is_stale(5)
    at(7)
    assert one.is_stale(5)


def test_an_outage_does_not_continue_an_older_one_whose_end_nobody_noticed(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock("seat", ttl=1.5)
    lock.acquire()
    own.stop()
    eventually(lambda: lock.lost)
    assert "event=renewal-failed" in caplog.text
    own.start()
    later = monotonic() + 3600
    monkeypatch.setattr(outage, "monotonic", lambda: later)
    other = Lock("row", ttl=1.5)
    other.acquire()
    fence, ends = other.fence, monotonic() + other.remaining()
    eventually(lambda: monotonic() + other.remaining() > ends + 0.1)
    assert (other.fence, other.lost) == (fence, False)
    assert "event=renewal-recovered" not in caplog.text


def test_subscriptions_that_do_not_last_are_one_outage(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    ears = listener()
    ears.start()
    with own.client() as client:
        for _ in range(6):
            eventually(lambda: ears.ready)
            before = ears.generation
            client.client_kill_filter(_type="pubsub", skipme=True)
            eventually(lambda before=before: ears.generation > before)
    assert 1 <= caplog.text.count("event=listener-disconnected") <= 3
    assert 1 <= caplog.text.count("event=listener-reconnected") <= 3


@pytest.mark.complete
def test_a_refused_subscription_is_logged_once(
    own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, reconnect_look=0.01)
    with own.client() as client:
        client.acl_setuser("default", enabled=True, nopass=True, reset_channels=True)
        ears = listener()
        ears.start()
        eventually(lambda: ears.generation > 4)
    assert caplog.text.count("event=not-subscribed") == 1


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
    eventually(lambda: hears())
    own.stop()
    eventually(lambda: len(outages(failed)) == 3)
    first, second, third = outages(failed)
    assert first < 1 <= second
    assert third >= 2 * second - 0.1
    own.start()
    eventually(lambda: outages(recovered))
    assert outages(recovered)[0] > third
    eventually(lambda: lock.lost)
