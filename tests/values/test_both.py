"""Counters, and what they have in common with values: names, keys, errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import ConditionalValue, Counter, Lock, LockError, LockUnavailable
from tests.helpers.pools import raw
from tests.inside import PREFIX

KINDS = [(ConditionalValue, "value"), (Counter, "counter")]
CALLS: list[tuple[Any, ...]] = [
    (ConditionalValue, "get"),
    (ConditionalValue, "setne", 5),
    (ConditionalValue, "delne", "a"),
    (Counter, "get"),
    (Counter, "incr"),
    (Counter, "decr"),
    (Counter, "reset"),
]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__}.{call[1]}")


def test_keys_stand_beside_those_of_the_lock_of_the_same_name(client: redis.Redis, settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "site"}}
    with Lock("same"):
        assert Counter("same").incr(ttl=60) == 1
        assert ConditionalValue("same").setgt(5, ttl=60)
        assert ConditionalValue("same").get() == 5
    found: list[Any] = client.keys("*:same")
    assert {key.decode() for key in found} == {f"site:{PREFIX}counter:same", f"site:{PREFIX}value:same"}


@pytest.mark.parametrize(("kind", "noun"), KINDS)
def test_names_are_checked_as_those_of_locks(kind: Any, noun: str) -> None:
    for name, text in {7: f"A {noun}'s name must", "": f"A {noun}'s name must", "x" * 513: f"The {noun} name"}.items():
        with pytest.raises((TypeError, ValueError), match=text):
            kind(name)
    with pytest.raises(ValueError, match="control characters"):
        kind("a\n")
    assert repr(kind("a")) == f"<{kind.__name__} 'a'>"


@pytest.mark.usefixtures("nowhere")
def test_a_ttl_that_is_no_time_is_refused_before_anything_is_sent() -> None:
    for ttl in (0, -1, math.nan, math.inf):
        for call in (ConditionalValue("a").setgt, Counter("a").incr):
            with pytest.raises(ValueError, match=r"ttl must be at least 0\.001 seconds and finite"):
                call(5, ttl=ttl)


@pytest.mark.usefixtures("nowhere")
@every_call
def test_a_server_out_of_reach_is_lock_unavailable(me: Any, call: Any) -> None:
    kind, *words = call
    with pytest.raises(LockUnavailable, match=r"Redis cannot be reached for the (counter|value) 'hits' ") as caught:
        me(kind("hits"), *words)
    assert caught.value.name == "hits"


@every_call
def test_another_redis_type_under_the_key_is_a_clear_error_and_stays(me: Any, using: str, call: Any) -> None:
    kind, *words = call
    key = f"{PREFIX}{dict(KINDS)[kind]}:a"
    raw(using, "RPUSH", key, "5")
    with pytest.raises(LockError, match=re.escape(f"its key {key!r}, which holds another Redis type")) as caught:
        me(kind("a", using=using), *words)
    assert (caught.value.name, caught.value.__cause__) == ("a", None)
    assert raw(using, "LRANGE", key, 0, -1) == [b"5"]


@every_call
async def test_a_blocking_call_in_an_event_loop_names_its_twin(call: Any) -> None:
    kind, method, *args = call
    twin = {"set": "set_if", "del": "delete_if"}.get(method[:3], method)
    with pytest.raises(SynchronousOnlyOperation, match=rf"Await a{twin}\(\) instead"):
        getattr(kind("a"), method)(*args)


KEY = f"{PREFIX}counter:hits"


@pytest.fixture
def hits(using: str) -> Counter:
    return Counter("hits", using=using)


def test_a_counter_counts(me: Any, hits: Counter) -> None:
    for call, *by, count in (("get", 0), ("incr", 1), ("incr", 5, 6), ("decr", 5), ("decr", 7, -2), ("incr", -3, -5)):
        assert me(hits, call, *by) == count
    assert (me(hits, "reset"), me(hits, "reset"), me(hits, "get")) == (-5, 0, 0)


@pytest.mark.parametrize("method", ["incr", "decr"])
def test_the_ttl_of_a_counter_is_set_at_its_creation_only(me: Any, hits: Counter, method: str) -> None:
    for first, then in ((timedelta(minutes=1), 600), (None, 60)):
        me(hits, method, ttl=first)
        me(hits, method, ttl=then)
        me(hits, method)
        left = raw(hits.using or "", "PTTL", KEY)
        assert 0 < left <= 60_000 if first else left == -1
        me(hits, "reset")


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
def test_of_four_processes_one_hears_that_it_did_it_a_rate_limit_holds_and_resets_lose_nothing(
    in_processes: Callable[[int, str], list[list[str]]],
) -> None:
    for number in range(100):
        ConditionalValue(f"job:{number}").seteq("waiting")
    code = """
done = sum(ConditionalValue(f"job:{n}").deleq("waiting") for n in range(50))
done += sum(ConditionalValue(f"job:{n}").seteq("waiting", "paid") for n in range(50, 100))
passed = sum(Counter('login').incr(ttl=300) <= 10 for _ in range(50))
taken = 0
for number in range(200):
    Counter("hits").incr()
    if number % 5 == me:
        taken += Counter("hits").reset()
say("done", passed, taken, done)
"""
    said = in_processes(4, code)
    assert sum(int(words[2]) for words in said) == 100
    assert sum(int(words[0]) for words in said) == 10
    assert sum(int(words[1]) for words in said) + Counter("hits").get() == 800
