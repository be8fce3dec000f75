"""An outage of Redis is in the log as one story, and does not flood it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.engine import outage
from django_redislock.engine.outage import Outage
from django_redislock.engine.runtime import runtime
from django_redislock.store.backend import get_backend
from redisserver import RedisServer

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


def test_it_is_said_less_and_less_often(at: Callable[[float], None]) -> None:
    one, said = Outage(), []
    for second in range(601):
        at(second)
        if one.says():
            said.append(second)
    assert said == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364, 424, 484, 544]


def test_one_that_was_not_said_to_begin_is_not_said_to_end() -> None:
    one = Outage()
    one.fail()
    assert not one.said
    one.says()
    assert one.said


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
    eventually(lambda: runtime().listener(get_backend()).ready)
    own.stop()
    eventually(lambda: len(outages(failed)) == 3)
    first, second, third = outages(failed)
    assert first < 1 <= second
    assert third >= 2 * second - 0.1
    own.start()
    eventually(lambda: outages(recovered))
    assert outages(recovered)[0] > third
    eventually(lambda: lock.lost)
