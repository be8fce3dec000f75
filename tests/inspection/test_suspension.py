"""How a suspension is shown in LockInfo, in lists and in the log. For its effects, see
tests/protocol/test_r20_suspensions.py."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from redisserver import RedisServer
from tests.inspection.conftest import hold

HOUR = 3600


@pytest.fixture
def me() -> str:
    """How lists name this thread."""
    with Lock("another") as lock:
        info = lock.info()
        assert info is not None
        return info.owner


def test_it_says_who_suspended_the_lock_until_when_and_why(me: str) -> None:
    Lock("a").suspend(timedelta(hours=1), note="rate\nlimited")
    (listed,), shown = list_locks(), get_lock("a")
    for info in (listed, shown):
        assert info is not None
        assert (info.held, info.owner, info.note) == (False, f"nobody (suspended by {me})", "rate\nlimited")
        assert info.suspension is not None
        assert (info.suspension.owner, info.suspension.note) == (me, "rate\nlimited")
        assert HOUR - 100 < info.suspension.left == info.lease_left <= HOUR


def test_of_a_held_lock_it_tells_the_holder_and_the_suspension_to_come(me: str) -> None:
    hold("a", note="of the holder")
    Lock("a").suspend(HOUR, note="rate limited")
    info = get_lock("a")
    assert info is not None
    assert info.suspension is not None
    assert (info.held, info.owner, info.note) == (True, me, "of the holder")
    assert info.suspension.note == "rate limited"
    assert info.lease_left < HOUR - 100 < info.suspension.left


def test_the_log_says_who_suspends_and_resumes(me: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_redislock")
    lock = Lock("a")
    lock.suspend(60, note="rate limited")
    lock.resume()
    lock.resume()
    assert caplog.messages == [
        f'event=suspended name=a seconds=60.000000 by={me} note="rate limited"',
        f"event=resumed name=a by={me}",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), ValueError, "seconds must be at least 0.001 seconds and finite, not 0"),
        ((float("inf"),), ValueError, "seconds must be at least"),
        (("60",), TypeError, "seconds must be seconds"),
        ((60, 7), TypeError, "note must be a str, not 7"),
        ((60, "x" * 1001), ValueError, "note must have at most 1000 bytes, not 1001"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    arguments: tuple[Any, ...], error: type[Exception], says: str, own: RedisServer
) -> None:
    own.stop()
    with pytest.raises(error, match=says):
        Lock("a").suspend(*arguments)


def test_where_redis_cannot_be_reached_it_says_so(own: RedisServer, retry_for: Any) -> None:
    retry_for(0.0)
    own.stop()
    for call in (lambda: Lock("a").suspend(60), Lock("a").resume):
        with pytest.raises(LockUnavailable):
            call()
