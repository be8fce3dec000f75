"""The delays between the attempts of a polling waiter."""

from __future__ import annotations

import math
from typing import Any

import pytest
from redis.backoff import AbstractBackoff, ConstantBackoff, DecorrelatedJitterBackoff, ExponentialBackoff, NoBackoff

from django_redislock.base.display import shown
from django_redislock.base.pace import LONGEST, POLLING, SHORTEST, Pace, alive_for


class Odd(AbstractBackoff):
    def __init__(self, delay: Any) -> None:
        self.delay = delay

    def compute(self, failures: int) -> Any:
        return self.delay


def test_a_long_wait_is_no_large_number() -> None:
    pace = Pace(ExponentialBackoff(cap=0.5, base=0.02))
    assert [pace.next() for _ in range(3000)][-1] == 0.5


def test_a_stateful_backoff_is_not_shared() -> None:
    given = DecorrelatedJitterBackoff(cap=1000, base=1)
    for failures in (1, 2, 3):
        given.compute(failures)
    before = dict(vars(given))
    for _ in range(2):
        pace = Pace(given)
        assert 1 <= pace.next() <= 1.0  # it begins anew: the first is the base
    assert vars(given) == before


def test_by_default_delays_grow_to_half_a_second() -> None:
    pace = Pace(POLLING)
    delays = [pace.next() for _ in range(50)]
    assert delays[0] < 0.1
    assert all(0.01 <= delay <= 0.5 for delay in delays)
    assert max(delays) > 0.2


@pytest.mark.parametrize(
    ("delay", "look"),
    [(0, SHORTEST), (-1.0, SHORTEST), (-math.inf, SHORTEST), (0.3, 0.3), (3600, LONGEST), (math.inf, LONGEST)],
)
def test_a_delay_stays_within_what_a_queue_bears(delay: float, look: float) -> None:
    assert Pace(ConstantBackoff(delay)).next_look() == look
    assert Pace(NoBackoff()).next_look() == SHORTEST


@pytest.mark.parametrize("delay", [math.nan, None, "1", b"", [1]], ids=repr)
def test_a_delay_that_is_no_number_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"delays of backoff must be seconds.*, not ") as caught:
        Pace(Odd(delay)).next()
    assert shown(delay) in str(caught.value)


@pytest.mark.parametrize(("delay", "patience"), [(0.02, 1), (0.5, 2), (15, 60)])
def test_a_waiter_counts_as_alive_for_four_delays_and_for_a_second_at_least(delay: float, patience: float) -> None:
    assert alive_for(delay) == patience
