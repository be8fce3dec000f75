"""Counters that many processes add to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redislock import Counter, LockError
from tests.helpers.pools import raw
from tests.inside import PREFIX

KEY = f"{PREFIX}counter:hits"


@pytest.fixture
def hits(using: str) -> Counter:
    return Counter("hits", using=using)


def pttl(counter: Counter) -> int:
    """Milliseconds until the counter expires; -1: it does not."""
    return int(raw(counter.using or "", "PTTL", KEY))


def test_a_counter_counts(me: Any, hits: Counter) -> None:
    assert me(hits, "get") == 0
    assert me(hits, "incr") == 1
    assert me(hits, "incr", 5) == 6
    assert me(hits, "decr") == 5
    assert me(hits, "decr", by=7) == -2
    assert me(hits, "incr", by=-3) == -5
    assert me(hits, "incr", 0) == -5
    assert me(hits, "reset") == -5
    assert me(hits, "reset") == 0
    assert me(hits, "get") == 0


@pytest.mark.parametrize("method", ["incr", "decr"])
def test_the_ttl_of_a_counter_is_set_at_its_creation_only(me: Any, hits: Counter, method: str) -> None:
    me(hits, method, ttl=timedelta(minutes=1))
    assert 0 < pttl(hits) <= 60_000
    me(hits, method, ttl=600)
    me(hits, method)
    assert 0 < pttl(hits) <= 60_000
    me(hits, "reset")
    me(hits, method)
    me(hits, method, ttl=60)
    assert pttl(hits) == -1


def test_a_counter_is_exact_to_its_last_bit_and_never_leaves_64_bits(me: Any, hits: Counter) -> None:
    assert me(hits, "incr", 2**53) == 2**53
    assert me(hits, "incr") == 2**53 + 1
    for method, end in (("incr", 2**63 - 1), ("decr", -(2**63))):
        me(hits, "reset")
        me(hits, method, 2**63 - 2)
        me(hits, method, abs(end) - (2**63 - 2))
        with pytest.raises(OverflowError, match="Cannot change the counter 'hits': it would exceed 64 bits"):
            me(hits, method, 1)
        assert me(hits, "get") == me(hits, "reset") == end


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("by", "error", "text"),
    [
        *((by, TypeError, "an int, ") for by in (True, 1.0, None)),
        *((by, ValueError, r"between .* and 2\*\*63 - 1, ") for by in (2**63, -(2**63))),
    ],
)
def test_a_counter_is_moved_by_whole_numbers_that_it_can_hold(by: Any, error: type[Exception], text: str) -> None:
    for call in (Counter("hits").incr, Counter("hits").decr):
        with pytest.raises(error, match=f"by must be {text}not {by!r}"):
            call(by)


NO_COUNTS = ["hello", "1.5", "", "1_000", " 7", "7\n", "+7", "007", "-0", "-", "\u0667", str(2**63), "9" * 5000]


def test_what_somebody_else_has_written_is_a_count_or_a_clear_error(me: Any, hits: Counter) -> None:
    for count in (0, -7, 2**63 - 1, -(2**63)):
        raw(hits.using or "", "SET", KEY, str(count))
        assert (me(hits, "get"), me(hits, "incr", 0), me(hits, "reset")) == (count, count, count)
    for text in NO_COUNTS:
        raw(hits.using or "", "SET", KEY, text)
        for method in ("get", "incr", "decr", "reset"):
            with pytest.raises(LockError, match="Cannot use the counter 'hits': somebody else has written its key"):
                me(hits, method)
        assert raw(hits.using or "", "GET", KEY) == text.encode()


@pytest.mark.complete
def test_a_rate_limit_holds_over_four_processes_and_resets_lose_nothing(
    in_processes: Callable[[int, str], list[list[str]]],
) -> None:
    code = """
passed = sum(Counter('login').incr(ttl=300) <= 10 for _ in range(50))
taken = 0
for number in range(200):
    Counter("hits").incr()
    if number % 5 == me:
        taken += Counter("hits").reset()
say("done", passed, taken)
"""
    said = in_processes(4, code)
    assert sum(int(words[0]) for words in said) == 10
    assert sum(int(words[1]) for words in said) + Counter("hits").get() == 800
