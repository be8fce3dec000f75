"""What values and counters have in common: names, keys, errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import ConditionalValue, Counter, Lock, LockError, LockUnavailable
from redisserver import RedisServer
from tests.helpers.pools import raw
from tests.helpers.ways import DJANGO, PASSWORD, alias, caches
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


def test_values_locks_and_counters_of_one_name_have_nothing_to_do_with_each_other(me: Any, using: str) -> None:
    lock, value, counter = (kind("same", using=using) for kind in (Lock, ConditionalValue, Counter))
    assert me(lock, "acquire")
    me(value, "setgt", 5)
    me(counter, "incr")
    assert (me(value, "get"), me(counter, "get"), me(lock, "owned")) == (5, 1, True)


def test_keys_stand_beside_those_of_the_locks_and_a_user_who_may_touch_only_them_has_both(
    client: redis.Redis, guarded: RedisServer, own_pools: None
) -> None:
    def keys(plain: redis.Redis) -> set[str]:
        assert Counter("hits").incr(ttl=60) == 1
        assert ConditionalValue("high").setgt(5, ttl=60)
        assert ConditionalValue("high").get() == 5
        found: list[Any] = list(plain.keys("*"))
        return {key.decode() for key in found if b":slot:" not in key}

    assert keys(client) == {f"{PREFIX}counter:hits", f"{PREFIX}value:high"}
    url = f"redis://site:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    with caches({**alias(DJANGO, url), "KEY_PREFIX": "site"}), guarded.client() as plain:
        assert keys(plain) == {f"site:{PREFIX}counter:hits", f"site:{PREFIX}value:high"}


@pytest.mark.parametrize(("kind", "noun"), KINDS)
def test_names_are_checked_as_those_of_locks(kind: Any, noun: str) -> None:
    for name, text in {7: f"A {noun}'s name must", "": f"A {noun}'s name must", "x" * 513: f"The {noun} name"}.items():
        with pytest.raises((TypeError, ValueError), match=text):
            kind(name)
    with pytest.raises(ValueError, match="control characters"):
        kind("a\n")
    assert repr(kind("a")) == f"<{kind.__name__} 'a'>"


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf])
def test_a_ttl_that_is_no_time_is_refused_before_anything_is_sent(ttl: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ConditionalValue("a").setgt(5, ttl=ttl),
        lambda: Counter("a").incr(ttl=ttl),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"ttl must be at least 0\.001 seconds and finite"):
            call()


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
