"""Durations that users give, and deadlines."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.base.times import LONGEST, NEVER, Deadline, seconds

NO_TIME = [
    0,
    -1,
    0.0,
    -0.5,
    0.0001,
    math.nan,
    math.inf,
    -math.inf,
    timedelta(0),
    timedelta(seconds=-1),
    10**10,
    10**400,
    10**5000,
]
NO_NUMBER: list[Any] = [True, False, "30", "", b"30", [30], {}, ..., 30j, Decimal(30)]


@pytest.mark.parametrize("value", [1.5, timedelta(seconds=1.5)])
def test_seconds_come_in_several_types(value: Any) -> None:
    assert seconds(value, "ttl") == 1.5


def test_the_bounds_are_a_millisecond_and_ten_years() -> None:
    assert seconds(0.001, "ttl") == 0.001
    assert seconds(timedelta(seconds=LONGEST), "ttl") == LONGEST
    with pytest.raises(ValueError, match=rf"^ttl must be at most ten years, not {LONGEST + 1}\.$"):
        seconds(LONGEST + 1, "ttl")


def test_where_zero_has_a_meaning_it_may_be_given() -> None:
    assert seconds(0, "blocking_timeout", positive=False) == 0
    with pytest.raises(ValueError, match="blocking_timeout must be 0 or more seconds and finite, not -1"):
        seconds(-1, "blocking_timeout", positive=False)


@pytest.mark.parametrize("value", NO_TIME, ids=lambda value: ascii(value)[:20] if value != 10**5000 else "10**5000")
def test_an_invalid_duration_is_refused_with_a_short_error(value: Any) -> None:
    for refuse in (lambda: seconds(value, "ttl"), lambda: Lock("a", ttl=value)):
        with pytest.raises(ValueError, match=r"^ttl must be ") as caught:
            refuse()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", NO_NUMBER, ids=repr)
def test_a_value_that_is_no_number_is_named_in_the_error(value: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^ttl must be seconds \(int, float or timedelta\), not {re.escape(repr(value))}"
    ):
        seconds(value, "ttl")
    with pytest.raises(TypeError, match=r"^ttl must be seconds"):
        Lock("a", ttl=value)
    with pytest.raises(TypeError, match=r"^blocking_timeout must be seconds"):
        Lock("a", blocking_timeout=value)


# -- deadlines ------------------------------------------------------------------------------------------------------


def test_without_a_timeout_there_is_no_deadline() -> None:
    assert Deadline.after(None) is NEVER
    assert (NEVER.endless, NEVER.passed, NEVER.left(), NEVER.waits) == (True, False, math.inf, True)


def test_a_deadline_tells_how_much_time_is_left() -> None:
    deadline = Deadline.after(60)
    assert (deadline.endless, deadline.passed, deadline.waits) == (False, False, True)
    assert 0 < deadline.left() <= 60


def test_a_deadline_that_has_passed_is_not_the_same_as_trying_once() -> None:
    passed, once = Deadline(monotonic() - 1), Deadline.after(0)
    assert (passed.passed, passed.left(), passed.waits) == (True, 0.0, True)
    assert (once.passed, once.left(), once.waits) == (True, 0.0, False)
