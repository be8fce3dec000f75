"""Values and counters: on Redis and in memory, by threads' calls and by coroutines, in many processes."""

from __future__ import annotations

import asyncio
import itertools
import math
import operator
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import ConditionalValue, Counter, Lock, LockError, LockUnavailable
from django_redislock.connection import get_backend
from django_redislock.names import make_keys
from redisserver import RedisServer

from .actors import GENEROUS
from .processes import Worker
from .proxy import Proxy, proxy
from .ways import DJANGO, PASSWORD, alias, caches

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Call = Callable[[], object]

PREFIX = "redislock{0}:"
VALUE, COUNTER = f"{PREFIX}value:high", f"{PREFIX}counter:hits"
COMPARE = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
ORDERED = [">", "<", ">=", "<="]
SHORT = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}

each_operator = pytest.mark.parametrize("op", COMPARE)


class Way:
    """One of the worlds in which a call can be made: ``way(thing, "incr", 2)``."""

    def __init__(self, using: str, *, coroutines: bool) -> None:
        self.using = using
        self.coroutines = coroutines

    def __call__(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        if not self.coroutines:
            return getattr(thing, method)(*args, **options)
        return asyncio.run(getattr(thing, f"a{method}")(*args, **options))

    def value(self, name: str = "high", **options: Any) -> ConditionalValue:
        return ConditionalValue(name, using=self.using, **options)

    def counter(self, name: str = "hits") -> Counter:
        return Counter(name, using=self.using)

    def redis(self, *command: Any) -> Any:
        """A command of somebody else."""
        return get_backend(self.using).execute(command)


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest, settings: Any) -> str:
    settings.CACHES = {**settings.CACHES}  # a memory that holds nothing
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["threads", "coroutines"])
def way(request: pytest.FixtureRequest, using: str) -> Way:
    return Way(using, coroutines=request.param)


# -- when a value is replaced or deleted ----------------------------------------------------------------------------


@each_operator
@pytest.mark.parametrize("value", [4, 5, 6, 4.5, 5.0, -5])
def test_a_value_is_set_when_it_compares_so_with_the_one_stored(way: Way, op: str, value: float) -> None:
    high = way.value()
    assert way(high, "set_if", "==", 5) is True
    expected = COMPARE[op](value, 5)
    assert way(high, "set_if", op, value) is expected
    assert way(high, "get") == (value if expected else 5)


@each_operator
@pytest.mark.parametrize("value", [4, 5, 6, 4.5, 5.0, -5])
def test_a_value_is_deleted_when_another_compares_so_with_it(way: Way, op: str, value: float) -> None:
    high = way.value()
    way(high, "set_if", "==", 5)
    expected = COMPARE[op](value, 5)
    assert way(high, "delete_if", op, value) is expected
    assert way(high, "get") == (None if expected else 5)


@each_operator
def test_a_value_is_set_when_nothing_is_stored(way: Way, op: str) -> None:
    high = way.value()
    assert way(high, "get") is None
    assert way(high, "set_if", op, 5) is True
    assert way(high, "get") == 5


@each_operator
def test_where_nothing_is_stored_nothing_is_deleted(way: Way, op: str) -> None:
    assert way(way.value(), "delete_if", op, 5) is False


@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize("value", [4, 5, 6])
def test_the_short_names_are_the_operators(way: Way, short: str, value: int) -> None:
    high = way.value()
    way(high, "set_if", "==", 5)
    expected = COMPARE[SHORT[short]](value, 5)
    assert way(high, f"set{short}", value, new="new", ttl=60) is expected
    assert way(high, "get") == ("new" if expected else 5)
    assert (way.redis("PTTL", VALUE) > 0) is expected
    way.redis("SET", VALUE, "5")
    assert way(high, f"del{short}", value) is expected
    assert way(high, "get") == (None if expected else 5)


@pytest.mark.parametrize("new", [0, 7, -1.5, "", "text", "5", "größe\n\x00\ud800"])
def test_what_is_stored_may_be_another_value_of_any_kind(way: Way, new: Any) -> None:
    high = way.value()
    assert way(high, "set_if", ">", 1, new) is True
    stored = way(high, "get")
    assert (stored, type(stored)) == (new, type(new))


def test_values_locks_and_counters_of_one_name_have_nothing_to_do_with_each_other(way: Way) -> None:
    with Lock("same", using=way.using) as lock:
        way(way.value("same"), "setgt", 5)
        way(way.counter("same"), "incr")
        assert way(way.value("same"), "get") == 5
        assert way(way.counter("same"), "get") == 1
        assert lock.owned()


# -- eps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eps", "value", "stored", "relation"),
    [
        (1e-9, 0.1 + 0.2, 0.3, "="),
        (0, 0.1 + 0.2, 0.3, ">"),
        (0.25, 1.25, 1.0, "="),  # exactly eps apart
        (0.25, 0.75, 1.0, "="),
        (0.25, math.nextafter(1.25, 2), 1.0, ">"),
        (0.25, math.nextafter(0.75, 0), 1.0, "<"),
        (0.25, 1, 0.75, "="),
        (0.1, 1.1, 1.0, ">"),  # as doubles are 0.10000000000000009 apart
        (2, 12, 10, "="),  # integers too, where eps is that large
        (2, 13, 10, ">"),
        (1e-9, 2**53, 2**53 - 1, ">"),
        (1e-9, -(2**53), -(2**53) + 1, "<"),
        (1e-9, 2**53, 2.0**53, "="),
        (1e-9, 1e308, -1e308, ">"),  # their difference is infinite
        (1e-9, -0.0, 0, "="),
        (0, 5e-324, 0, ">"),
    ],
)
def test_numbers_that_differ_by_no_more_than_eps_are_equal(
    using: str, eps: float, value: float, stored: float, relation: str
) -> None:
    high = ConditionalValue("high", using=using, eps=eps)
    found = set()
    for op in COMPARE:
        high.delne("whatever is stored")
        high.seteq(stored)
        if high.set_if(op, value, "replaced"):
            found.add(op)
    assert (
        found
        == {
            "=": {"==", ">=", "<="},
            ">": {">", ">=", "!="},
            "<": {"<", "<=", "!="},
        }[relation]
    )


def test_floats_are_stored_to_their_last_bit_and_compared_as_python_does(using: str) -> None:
    exactly = ConditionalValue("high", using=using, eps=0)
    chance = random.Random(5)
    for _ in range(200):
        stored = chance.uniform(-1, 1) * 10 ** chance.randint(-300, 300)
        value = chance.choice([stored, math.nextafter(stored, math.inf), math.nextafter(stored, -math.inf)])
        for op, compare in COMPARE.items():
            exactly.delne("whatever is stored")
            exactly.seteq(stored)
            assert exactly.get() == stored
            assert exactly.delete_if(op, value) is compare(value, stored)


@pytest.mark.parametrize("eps", [-1, math.nan, math.inf])
def test_an_eps_that_is_no_distance_is_refused(eps: float) -> None:
    with pytest.raises(ValueError, match=rf"eps must be 0 or more and finite, not {eps!r}"):
        ConditionalValue("high", eps=eps)


@pytest.mark.parametrize("eps", [True, "1", None])
def test_an_eps_that_is_no_number_is_refused(eps: Any) -> None:
    with pytest.raises(TypeError, match=rf"eps must be an int or a float, not {eps!r}"):
        ConditionalValue("high", eps=eps)


# -- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "value", "equal"),
    [("a", "a", True), ("a", "b", False), ("a", "A", False), ("ä", "ä", True), ("5", 5, False), (5, "5", False)],
)
def test_text_is_equal_as_a_whole_and_never_equals_a_number(way: Way, stored: Any, value: Any, equal: bool) -> None:
    state = way.value()
    way(state, "seteq", stored)
    assert way(state, "seteq", value, "new") is equal
    way.redis("DEL", VALUE)
    way(state, "seteq", stored)
    assert way(state, "delne", value) is not equal


@pytest.mark.parametrize("op", ORDERED)
@pytest.mark.parametrize("method", ["set_if", "delete_if"])
def test_text_has_no_order(way: Way, op: str, method: str) -> None:
    with pytest.raises(
        TypeError, match=rf"'a' cannot be compared by '{op}': text has no order here, only '==' and '!='"
    ):
        way(way.value(), method, op, "a")
    assert way(way.value(), "get") is None


@pytest.mark.parametrize("op", ORDERED)
@pytest.mark.parametrize("method", ["set_if", "delete_if"])
def test_a_number_is_not_ordered_beside_stored_text(way: Way, op: str, method: str) -> None:
    state = way.value()
    way(state, "seteq", "paid", ttl=60)
    with pytest.raises(TypeError, match=rf"5 cannot be compared by '{op}' with 'paid', which the value 'high' holds"):
        way(state, method, op, 5)
    assert way(state, "get") == "paid"
    assert way.redis("PTTL", VALUE) > 0


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(settings: Any) -> None:
    """No server answers: who asks one gets LockUnavailable."""
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:1/0"}}


def uses(value: Any) -> list[Call]:
    """All that a value can be given for."""
    state = ConditionalValue("high")
    return [lambda: state.setne(value), lambda: state.delne(value), lambda: state.setne(5, value)]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("value", [True, None, b"5", Decimal(5), [5], 5j])
def test_what_is_no_value_is_refused_before_anything_is_sent(value: Any) -> None:
    for call in uses(value) if value is not None else uses(value)[:2]:  # new=None is the value itself
        with pytest.raises(TypeError, match=r"(value|new) must be an int, a float or a str, not "):
            call()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused_before_anything_is_sent(value: float) -> None:
    for call in uses(value):
        with pytest.raises(ValueError, match=rf"(value|new) must be a finite number, not {value!r}"):
            call()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 10**400])
def test_an_integer_that_a_double_may_miss_is_refused_before_anything_is_sent(value: int) -> None:
    for call in uses(value):
        with pytest.raises(ValueError, match=rf"between -2\*\*53 and 2\*\*53 to be compared exactly, not {value}"):
            call()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("op", ["=", "gt", "", None, [">"]])
def test_an_unknown_operator_is_refused_and_the_choices_are_named(op: Any) -> None:
    state = ConditionalValue("high")
    calls: list[Call] = [lambda: state.set_if(op, 5), lambda: state.delete_if(op, 5)]
    for call in calls:
        with pytest.raises(ValueError, match=r"op must be one of '>', '<', '>=', '<=', '==', '!=', not "):
            call()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf])
def test_a_ttl_that_is_no_time_is_refused_before_anything_is_sent(ttl: float) -> None:
    calls: list[Call] = [lambda: ConditionalValue("a").setgt(5, ttl=ttl), lambda: Counter("a").incr(ttl=ttl)]
    for call in calls:
        with pytest.raises(ValueError, match=r"ttl must be at least 0\.001 seconds and finite"):
            call()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("by", [True, 1.0, "1", None])
def test_a_counter_counts_whole_numbers_only(by: Any) -> None:
    for call in (Counter("hits").incr, Counter("hits").decr):
        with pytest.raises(TypeError, match=rf"by must be an int, not {by!r}"):
            call(by)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("by", [2**63, -(2**63)])
def test_a_counter_is_not_moved_by_more_than_it_can_hold(by: int) -> None:
    for call in (Counter("hits").incr, Counter("hits").decr):
        with pytest.raises(ValueError, match=rf"by must be between .* and 2\*\*63 - 1, not {by}"):
            call(by)


@pytest.mark.parametrize("kind", [ConditionalValue, Counter])
def test_names_are_checked_as_those_of_locks(kind: Any) -> None:
    for name in ("", "a\n", "x" * 513):
        with pytest.raises(ValueError, match="name"):
            kind(name)
    assert repr(kind("a")) == f"<{kind.__name__} 'a'>"


@pytest.mark.parametrize(("kind", "noun"), [(ConditionalValue, "value"), (Counter, "counter")])
def test_what_is_wrong_with_a_name_is_said_of_the_right_thing(kind: Any, noun: str) -> None:
    for name, text in {7: f"A {noun}'s name must", "": f"A {noun}'s name must", "x" * 513: f"The {noun} name"}.items():
        with pytest.raises((TypeError, ValueError), match=text):
            kind(name)


def test_only_a_lock_cannot_be_called_as_a_pool_is(way: Way) -> None:
    assert way(way.counter("pool:accounts:"), "incr") == 1


VALUE_METHODS = [("get",), ("setne", 5), ("setge", 5), ("delne", 5), ("delge", 5)]


@pytest.mark.parametrize("call", VALUE_METHODS, ids=lambda call: call[0])
@pytest.mark.parametrize("text", ["hello", "true", "[1]", "NaN", "0x10", " 5", '"5', '"5" ', "", b"\xff"])
def test_text_that_somebody_else_has_written_is_a_clear_error_and_stays(
    using: str, call: Any, text: str | bytes
) -> None:
    high = ConditionalValue("high", using=using)
    get_backend(using).execute(("SET", VALUE, text))
    method, *args = call
    with pytest.raises(LockError, match="The value 'high' cannot be used: somebody else has written its key") as caught:
        getattr(high, method)(*args)
    assert caught.value.name == "high"
    assert get_backend(using).execute(("GET", VALUE)) == (text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("call", VALUE_METHODS, ids=lambda call: call[0])
def test_another_redis_type_under_the_key_of_a_value_is_a_clear_error(way: Way, call: Any) -> None:
    way.redis("RPUSH", VALUE, "5")
    with pytest.raises(LockError, match=re.escape(f"its key {VALUE!r}, which holds another Redis type")) as caught:
        way(way.value(), *call)
    assert (caught.value.name, caught.value.__cause__) == ("high", None)
    assert way.redis("LRANGE", VALUE, 0, -1) == [b"5"]


@pytest.mark.parametrize("method", ["get", "incr", "decr", "reset"])
def test_another_redis_type_under_the_key_of_a_counter_is_a_clear_error(way: Way, method: str) -> None:
    way.redis("RPUSH", COUNTER, "5")
    with pytest.raises(LockError, match=re.escape(f"its key {COUNTER!r}, which holds another Redis type")) as caught:
        way(way.counter(), method)
    assert caught.value.name == "hits"
    assert way.redis("LRANGE", COUNTER, 0, -1) == [b"5"]


@pytest.mark.parametrize("method", ["get", "incr", "decr", "reset"])
@pytest.mark.parametrize("text", ["hello", "1.5", ""])
def test_what_is_no_count_is_a_clear_error_and_stays(way: Way, method: str, text: str) -> None:
    way.redis("SET", COUNTER, text)
    with pytest.raises(LockError, match="The counter 'hits' cannot be used: somebody else has written its key"):
        way(way.counter(), method)
    assert way.redis("GET", COUNTER) == text.encode()


# -- TTL of a value -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)])
def test_a_value_with_a_ttl_ends(way: Way, ttl: Any) -> None:
    way(way.value(), "setgt", 5, ttl=ttl)
    assert 30_000 < way.redis("PTTL", VALUE) <= 60_000


def test_a_value_without_a_ttl_stays_even_where_it_replaces_one_that_would_end(way: Way) -> None:
    high = way.value()
    way(high, "setgt", 5, ttl=60)
    assert way(high, "setgt", 6)
    assert way.redis("PTTL", VALUE) == -1


def test_a_value_that_is_not_replaced_keeps_its_ttl(way: Way) -> None:
    high = way.value()
    way(high, "setgt", 5, ttl=60)
    assert not way(high, "setgt", 4, ttl=600)
    assert not way(high, "setgt", 4)
    assert 0 < way.redis("PTTL", VALUE) <= 60_000


def test_a_value_whose_ttl_is_over_counts_as_not_stored(way: Way, eventually: Eventually) -> None:
    high = way.value()
    way(high, "setgt", 5, ttl=0.05)
    eventually(lambda: way(high, "get") is None)
    assert way(high, "delgt", 6) is False
    assert way(high, "setgt", 1) is True


# -- counters -------------------------------------------------------------------------------------------------------


def test_a_counter_counts(way: Way) -> None:
    hits = way.counter()
    assert way(hits, "get") == 0
    assert way(hits, "incr") == 1
    assert way(hits, "incr", 5) == 6
    assert way(hits, "decr") == 5
    assert way(hits, "decr", by=7) == -2
    assert way(hits, "incr", by=-3) == -5
    assert way(hits, "incr", 0) == -5
    assert way(hits, "get") == -5


def test_reset_answers_the_last_count_and_begins_with_0(way: Way) -> None:
    hits = way.counter()
    way(hits, "incr", 7, ttl=60)
    assert way(hits, "reset") == 7
    assert way(hits, "reset") == 0
    assert way(hits, "get") == 0
    assert way(hits, "incr") == 1
    assert way.redis("PTTL", COUNTER) == -1


@pytest.mark.parametrize("method", ["incr", "decr"])
def test_the_ttl_of_a_counter_is_set_at_its_creation_only(way: Way, method: str) -> None:
    hits = way.counter()
    way(hits, method, ttl=timedelta(minutes=1))
    assert 0 < way.redis("PTTL", COUNTER) <= 60_000
    way(hits, method, ttl=600)
    way(hits, method)
    assert 0 < way.redis("PTTL", COUNTER) <= 60_000
    way.redis("PERSIST", COUNTER)
    way(hits, method, ttl=60)
    assert way.redis("PTTL", COUNTER) == -1


def test_a_counter_is_exact_to_its_last_bit(way: Way) -> None:
    hits = way.counter()
    assert way(hits, "incr", 2**53) == 2**53
    assert way(hits, "incr") == 2**53 + 1
    assert way(hits, "incr", 2**63 - 2**53 - 2) == 2**63 - 1
    assert way(hits, "get") == 2**63 - 1
    assert way(hits, "reset") == 2**63 - 1


@pytest.mark.parametrize("method", ["incr", "decr"])
def test_a_counter_that_would_leave_64_bits_says_so_and_stays(way: Way, method: str) -> None:
    hits = way.counter()
    end = way(hits, method, 2**63 - 1)
    with pytest.raises(OverflowError, match="The counter 'hits' would leave the range of 64 bits"):
        way(hits, method, 2)
    assert way(hits, "get") == end


def test_a_fixed_window_lets_so_many_pass_and_opens_again(way: Way, eventually: Eventually) -> None:
    hits = way.counter()

    def allowed() -> bool:
        return bool(way(hits, "incr", ttl=2) <= 3)

    assert [allowed() for _ in range(6)] == [True, True, True, False, False, False]
    # asking on does not move the end of the window
    eventually(allowed)


# -- once, however often it is sent ---------------------------------------------------------------------------------


def slots(client: redis.Redis) -> list[Any]:
    return list(client.keys(f"{PREFIX}slot:*"))


@pytest.fixture
def network(server: RedisServer, own_pools: None) -> Iterator[Proxy]:
    """The default alias leads through this proxy; it waits for answers only for a moment."""
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.3)):
        yield running


@pytest.fixture(params=[False, True], ids=["threads", "coroutines"])
def far(request: pytest.FixtureRequest, network: Proxy) -> Way:
    """Calls through the proxy, to scripts that the server knows."""
    way = Way("default", coroutines=request.param)
    way(way.counter("warm-up"), "incr")
    way(way.value("warm-up"), "setgt", 1)
    return way


def test_an_incr_whose_answer_was_lost_counts_once(far: Way, network: Proxy, client: redis.Redis) -> None:
    hits = far.counter()
    far(hits, "incr", 10, ttl=60)
    lost = network.lose_answer("counter:hits")
    assert far(hits, "incr", ttl=60) == 11
    assert lost.over.is_set()
    assert client.get(COUNTER) == b"11"


def test_an_incr_whose_answers_were_all_lost_but_the_last_counts_once(
    far: Way, network: Proxy, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    hits = far.counter()
    lost = network.lose_answer("counter:hits", times=4)
    assert far(hits, "incr") == 1
    assert lost.over.is_set()
    assert far(hits, "incr") == 2


def test_an_incr_whose_answer_comes_too_late_counts_once(far: Way, network: Proxy, client: redis.Redis) -> None:
    hits = far.counter()
    held = network.hold_answer("counter:hits")
    assert far(hits, "incr") == 1
    assert held.caught.is_set()
    held.let_go()
    assert client.get(COUNTER) == b"1"


def test_an_incr_that_arrives_after_its_repetition_does_not_count(
    far: Way, network: Proxy, client: redis.Redis
) -> None:
    hits = far.counter()
    late = network.hold_request("counter:hits")
    assert far(hits, "incr") == 1
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert client.get(COUNTER) == b"1"


def test_an_incr_that_arrives_after_later_ones_does_not_count(far: Way, network: Proxy, client: redis.Redis) -> None:
    hits = far.counter()
    late = network.hold_request("counter:hits")
    assert [far(hits, "incr") for _ in range(5)] == [1, 2, 3, 4, 5]
    assert far(far.value(), "setgt", 5)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert client.get(COUNTER) == b"5"


def test_an_incr_whose_answer_was_lost_on_a_server_that_did_not_know_the_script_counts_once(
    far: Way, network: Proxy, client: redis.Redis
) -> None:
    client.script_flush()
    lost = network.lose_answer("counter:hits", times=2)  # that of EVALSHA, and that of EVAL
    assert far(far.counter(), "incr") == 1
    assert lost.over.is_set()


def test_a_decr_and_a_reset_whose_answers_were_lost_answer_what_they_did(far: Way, network: Proxy) -> None:
    hits = far.counter()
    far(hits, "incr", 7)
    network.lose_answer("counter:hits", times=2)
    assert far(hits, "decr") == 6
    network.lose_answer("counter:hits", times=2)
    assert far(hits, "reset") == 6
    assert far(hits, "get") == 0


@pytest.mark.parametrize("call", [("setgt", 5), ("setgt", 5, 1), ("setne", 5), ("delne", 5), ("deleq", 1)])
def test_a_set_or_delete_whose_answer_was_lost_says_that_it_was_done(far: Way, network: Proxy, call: Any) -> None:
    # the repetition alone would say: not above, not unequal, nothing there
    high = far.value()
    far(high, "setgt", 1)
    lost = network.lose_answer("value:high")
    assert far(high, *call) is True
    assert lost.over.is_set()


def test_a_set_whose_answer_was_lost_does_not_undo_what_came_after_it(
    far: Way, network: Proxy, client: redis.Redis
) -> None:
    # done first, then another process went on: a second run would find its condition true again
    high = far.value()
    far(high, "seteq", 1)
    held = network.hold_answer("value:high")
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(far, high, "seteq", 1, 2)
        assert held.caught.wait(GENEROUS)
        client.set(VALUE, "1")
        assert doing.result(GENEROUS) is True
    assert client.get(VALUE) == b"1"


def test_a_refusal_whose_answer_was_lost_stays_one(far: Way, network: Proxy, client: redis.Redis) -> None:
    high = far.value()
    far(high, "setgt", 5)
    held = network.hold_answer("value:high")
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(far, high, "setgt", 3)
        assert held.caught.wait(GENEROUS)
        client.set(VALUE, "1")
        assert doing.result(GENEROUS) is False
    assert client.get(VALUE) == b"1"


def test_an_error_whose_answer_was_lost_stays_one(far: Way, network: Proxy) -> None:
    high = far.value()
    far(high, "seteq", "paid")
    lost = network.lose_answer("value:high")
    with pytest.raises(TypeError, match="with 'paid', which"):
        far(high, "setgt", 3)
    assert lost.over.is_set()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("coroutines", [False, True])
def test_a_server_out_of_reach_is_lock_unavailable(coroutines: bool) -> None:
    way = Way("default", coroutines=coroutines)
    for thing, method, *args in (
        (Counter("hits"), "incr"),
        (Counter("hits"), "get"),
        (ConditionalValue("hits"), "setgt", 5),
        (ConditionalValue("hits"), "get"),
    ):
        with pytest.raises(LockUnavailable, match=r"Redis cannot be reached for the (counter|value) 'hits' ") as caught:
            way(thing, method, *args)
        assert caught.value.name == "hits"


def test_calls_that_follow_each_other_leave_one_trace_that_ends(client: redis.Redis) -> None:
    for number in range(50):
        Counter(f"hits:{number}").incr()
        ConditionalValue("high").setgt(number)
    (slot,) = slots(client)
    assert 0 < int(client.pttl(slot)) <= 60_000
    client.delete(slot)
    assert ConditionalValue("high").setgt(100)


def test_calls_of_threads_at_the_same_time_count_each(client: redis.Redis) -> None:
    with ThreadPoolExecutor(20) as pool:
        counts = list(pool.map(lambda _: Counter("hits").incr(), range(400)))
    assert sorted(counts) == list(range(1, 401))
    assert len(slots(client)) <= 20


async def test_calls_of_coroutines_at_the_same_time_count_each(client: redis.Redis) -> None:
    counts = await asyncio.gather(*(Counter("hits").aincr() for _ in range(400)))
    assert sorted(counts) == list(range(1, 401))


async def test_a_cancelled_coroutine_gives_its_slot_back_and_the_next_call_counts(
    network: Proxy, client: redis.Redis
) -> None:
    await Counter("hits").aincr()
    held = network.hold_answer("counter:hits")
    task = asyncio.create_task(Counter("hits").aincr())
    assert await asyncio.to_thread(held.caught.wait, GENEROUS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await Counter("hits").aincr() == 3
    assert len(slots(client)) == 1


@pytest.mark.parametrize(
    ("call", "twin"),
    [
        (lambda: Counter("a").incr(), "aincr"),
        (lambda: Counter("a").decr(), "adecr"),
        (lambda: Counter("a").get(), "aget"),
        (lambda: Counter("a").reset(), "areset"),
        (lambda: ConditionalValue("a").get(), "aget"),
        (lambda: ConditionalValue("a").setgt(1), "aset_if"),
        (lambda: ConditionalValue("a").delgt(1), "adelete_if"),
    ],
)
async def test_a_blocking_call_in_an_event_loop_names_its_twin(call: Callable[[], Any], twin: str) -> None:
    with pytest.raises(SynchronousOnlyOperation, match=rf"Await {twin}\(\) instead"):
        call()


# -- many processes -------------------------------------------------------------------------------------------------


def in_processes(start: Start, number: int, code: str) -> list[list[str]]:
    """Run ``code`` in processes that begin at the same time; what each says as "done"."""
    workers = [start(f"say('ready'); hear()\n{code}", me=me) for me in range(number)]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.tell()
    return [worker.expect("done") for worker in workers]


def test_four_processes_count_to_800(start: Start) -> None:
    said = in_processes(start, 4, "say('done', *[Counter('hits').incr() for _ in range(200)])")
    assert Counter("hits").get() == 800
    assert sorted(map(int, itertools.chain(*said))) == list(range(1, 801))


def test_what_processes_add_while_others_reset_is_in_one_of_the_counts(start: Start) -> None:
    code = """
taken = 0
for number in range(200):
    Counter("hits").incr()
    if number % 5 == me:
        taken += Counter("hits").reset()
say("done", taken)
"""
    said = in_processes(start, 4, code)
    assert sum(int(words[0]) for words in said) + Counter("hits").get() == 800


def test_a_high_water_mark_of_four_processes_ends_with_the_highest(start: Start) -> None:
    code = """
import random
mine = random.Random(me).sample(range(100_000), 200)
seen = []
for value in mine:
    ConditionalValue("high").setgt(value)
    seen.append(ConditionalValue("high").get())
say("done", max(mine), int(seen == sorted(seen)), int(all(a >= b for a, b in zip(seen, mine))))
"""
    said = in_processes(start, 4, code)
    assert ConditionalValue("high").get() == max(int(words[0]) for words in said)
    assert [words[1:] for words in said] == [["1", "1"]] * 4


def test_of_four_processes_that_delete_or_replace_the_same_value_one_hears_that_it_did(start: Start) -> None:
    for number in range(50):
        ConditionalValue(f"job:{number}").seteq("waiting")
        ConditionalValue(f"order:{number}").seteq("open")
    code = """
say("done", *(f"j{n}" for n in range(50) if ConditionalValue(f"job:{n}").deleq("waiting")),
    *(f"o{n}" for n in range(50) if ConditionalValue(f"order:{n}").seteq("open", "paid")))
"""
    said = in_processes(start, 4, code)
    assert sorted(itertools.chain(*said)) == sorted(f"{kind}{n}" for kind in "jo" for n in range(50))


def test_a_rate_limit_holds_over_four_processes(start: Start) -> None:
    said = in_processes(start, 4, "say('done', sum(Counter('login').incr(ttl=300) <= 10 for _ in range(50)))")
    assert sum(int(words[0]) for words in said) == 10


def test_a_forked_child_has_slots_of_its_own(start: Start, client: redis.Redis) -> None:
    code = """
Counter("hits").incr()
child = os.fork()
for _ in range(50):
    Counter("hits").incr()
if not child:
    os._exit(0)
say("done", os.waitpid(child, 0)[1])
"""
    assert in_processes(start, 1, code) == [["0"]]
    assert client.get(COUNTER) == b"101"
    assert len(slots(client)) == 2


# -- rights ---------------------------------------------------------------------------------------------------------


def test_a_user_who_may_touch_the_locks_alone_has_values_and_counters(guarded: RedisServer, own_pools: None) -> None:
    url = f"redis://site:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    with caches({**alias(DJANGO, url), "KEY_PREFIX": "site"}):
        assert Counter("hits").incr(ttl=60) == 1
        assert ConditionalValue("high").setgt(5, ttl=60)
        assert ConditionalValue("high").get() == 5
        with guarded.client() as plain:
            assert all(key.startswith(b"site:redislock{0}:") for key in plain.keys("*"))


def test_keys_stand_beside_those_of_the_locks(client: redis.Redis) -> None:
    Counter("hits").incr()
    ConditionalValue("high").setgt(5)
    assert {COUNTER.encode(), VALUE.encode()} == {key for key in client.keys("*") if b":slot:" not in key}
    assert make_keys(PREFIX, "high").lock.startswith(PREFIX)
