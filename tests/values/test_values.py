"""Values and counters, on Redis and in memory, used by threads and by tasks."""

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import ConditionalValue, Counter, Lock, LockError, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import PREFIX, command

COUNTER, VALUE = f"{PREFIX}counter:hits", f"{PREFIX}value:high"


KINDS = [(ConditionalValue, "value"), (Counter, "counter")]
CALLS: list[Any] = [(ConditionalValue, "get"), (ConditionalValue, "setne", 5), (ConditionalValue, "delne", "a")]
CALLS += [(Counter, method) for method in ("get", "incr", "decr", "reset")]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__}.{call[1]}")


def test_keys_stand_beside_those_of_the_lock_of_the_same_name(client: redis.Redis, settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "site"}}
    with Lock("same"):
        assert Counter("same").incr(ttl=60) == 1
        assert ConditionalValue("same").setgt(5, ttl=60)
        assert ConditionalValue("same").get() == 5
    found: list[Any] = client.keys("*:same")
    assert {key.decode() for key in found} == {f"site:{PREFIX}counter:same", f"site:{PREFIX}value:same"}


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
    command("RPUSH", key, "5", using=using)
    with pytest.raises(LockError, match=re.escape(f"its key {key!r}, which holds another Redis type")) as caught:
        me(kind("a", using=using), *words)
    assert (caught.value.name, caught.value.__cause__) == ("a", None)
    assert command("LRANGE", key, 0, -1, using=using) == [b"5"]


@every_call
async def test_a_blocking_call_in_an_event_loop_names_its_twin(call: Any) -> None:
    kind, method, *args = call
    twin = {"set": "set_if", "del": "delete_if"}.get(method[:3], method)
    with pytest.raises(SynchronousOnlyOperation, match=rf"Await a{twin}\(\) instead"):
        getattr(kind("a"), method)(*args)


@pytest.fixture
def hits(using: str) -> Counter:
    return Counter("hits", using=using)


def test_a_counter_counts(me: Any, hits: Counter) -> None:
    for call, *by, count in (("get", 0), ("incr", 1), ("incr", 5, 6), ("decr", 5), ("decr", 7, -2), ("incr", -3, -5)):
        assert me(hits, call, *by) == count
    assert (me(hits, "reset"), me(hits, "reset"), me(hits, "get")) == (-5, 0, 0)
    assert (repr(hits), repr(ConditionalValue("a"))) == ("<Counter 'hits'>", "<ConditionalValue 'a'>")


@pytest.mark.parametrize("method", ["incr", "decr"])
def test_the_ttl_of_a_counter_is_set_at_its_creation_only(me: Any, hits: Counter, method: str) -> None:
    for first, then in ((timedelta(minutes=1), 600), (None, 60)):
        me(hits, method, ttl=first)
        me(hits, method, ttl=then)
        me(hits, method)
        left = command("PTTL", COUNTER, using=hits.using)
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
        command("SET", COUNTER, str(count), using=hits.using)
        assert (me(hits, "get"), me(hits, "incr", 0), me(hits, "reset")) == (count, count, count)
    for text in NO_COUNTS:
        command("SET", COUNTER, text, using=hits.using)
        for method in ("get", "incr", "decr", "reset"):
            with pytest.raises(LockError, match="Cannot use the counter 'hits': somebody else has written its key"):
                me(hits, method)
        assert command("GET", COUNTER, using=hits.using) == text.encode()


LONG = 'a"é' * 111_110  # as long as may be
COMPARE: dict[str, Callable[[Any, Any], bool]] = {">": gt, "<": lt, ">=": ge, "<=": le, "==": eq, "!=": ne}


@pytest.fixture
def high(using: str) -> ConditionalValue:
    return ConditionalValue("high", using=using)


def pttl(value: ConditionalValue) -> int:
    return int(command("PTTL", VALUE, using=value.using))


@pytest.mark.parametrize("short", [False, True], ids=["operator", "short name"])
@pytest.mark.parametrize("op", COMPARE)
def test_a_value_is_replaced_or_deleted_if_another_compares_so_with_it(
    me: Any, high: ConditionalValue, op: str, short: bool
) -> None:
    name = COMPARE[op].__name__
    sets, deletes = ([f"set{name}"], [f"del{name}"]) if short else (["set_if", op], ["delete_if", op])
    for value in (4, 5, 6, 4.5):
        expected = COMPARE[op](value, 5)
        command("DEL", VALUE, using=high.using)
        assert me(high, *deletes, 5) is False
        assert me(high, *sets, 5) is True  # where nothing is stored
        assert me(high, *sets, value) is expected
        assert me(high, "get") == (value if expected else 5)
        command("SET", VALUE, "5", using=high.using)
        assert me(high, *sets, value, new="new", ttl=60) is expected
        assert me(high, "get") == ("new" if expected else 5)
        assert (pttl(high) > 0) is expected
        command("SET", VALUE, "5", using=high.using)
        assert me(high, *deletes, value) is expected
        assert me(high, "get") == (None if expected else 5)


def test_what_is_stored_may_be_any_number_or_text_and_has_the_ttl_that_was_given_when_it_was_stored(
    me: Any, high: ConditionalValue
) -> None:
    for new in (0, 7, 0.1 + 0.2, -5e-324, "", "text", "5", "größe\n\x00\ud800"):
        assert me(high, "setne", "object", new) is True
        stored = me(high, "get")
        assert (stored, type(stored)) == (new, type(new))
    for ttl in (60, 60.0, timedelta(minutes=1)):
        assert me(high, "setne", 0, 5, ttl=ttl)
        assert 30_000 < pttl(high) <= 60_000
        assert not me(high, "setgt", 4, ttl=600)  # not replaced
        assert 0 < pttl(high) <= 60_000
    assert me(high, "setgt", 6)
    assert pttl(high) == -1


@pytest.mark.parametrize(
    ("eps", "value", "stored", "relation"),
    [
        (1e-9, 0.1 + 0.2, 0.3, "="),
        (0.25, 1.25, 1.0, "="),  # exactly eps apart
        (0.25, math.nextafter(0.75, 0), 1.0, "<"),
        (1e-9, 2**53, 2**53 - 1, ">"),
        (1e-9, 1e308, -1e308, ">"),  # their difference is infinite
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
    assert found == {op for op, compare in COMPARE.items() if compare({"<": -1, "=": 0, ">": 1}[relation], 0)}


def test_text_is_equal_as_a_whole_and_never_equals_a_number(me: Any, high: ConditionalValue) -> None:
    for stored, value in (("a", "A"), ("ä", "a"), ("5", 5), (5, "5"), (LONG, LONG[:-1])):
        me(high, "delne", "whatever is stored")
        me(high, "seteq", stored)
        assert me(high, "seteq", value, "new") is False
        assert me(high, "seteq", stored, value) is True
        assert me(high, "delne", value) is False


@pytest.mark.parametrize("op", [">", "<", ">=", "<="])
def test_text_has_no_order_neither_given_nor_stored(me: Any, high: ConditionalValue, op: str) -> None:
    me(high, "seteq", "paid", ttl=60)
    for method in ("set_if", "delete_if"):
        with pytest.raises(TypeError, match=rf"Cannot compare 'a' by '{op}': text has no order here, only '==' and"):
            me(high, method, op, "a")
        with pytest.raises(TypeError, match=rf"Cannot compare 5 by '{op}' with 'paid', which the value 'high' holds"):
            me(high, method, op, 5)
    assert me(high, "get") == "paid"
    assert pttl(high) > 0


NO_VALUES: list[tuple[Any, type[Exception], str]] = [
    *((value, TypeError, "(value|new) must be an int, a float or a str, not ") for value in (True, b"5", Decimal(5))),
    *((value, ValueError, f"must be a finite number, not {value}") for value in (math.nan, math.inf)),
    *((value, ValueError, r"between -2\*\*53 and 2\*\*53 to be compared exactly") for value in (2**53 + 1, 10**400)),
    ("é" * 170_000, ValueError, r"must take at most 1,000,000 bytes as JSON .*, not 1,020,002"),
]


def uses(value: Any) -> list[Callable[[], object]]:
    """All calls that take a value."""
    state = ConditionalValue("high")
    return [lambda: state.setne(value), lambda: state.delne(value), lambda: state.setne(5, value)]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(("value", "error", "text"), NO_VALUES, ids=lambda value: str(value)[:20])
def test_what_is_no_value_is_refused(value: Any, error: type[Exception], text: str) -> None:
    for call in uses(value):
        with pytest.raises(error, match=text):
            call()


@pytest.mark.usefixtures("nowhere")
def test_max_value_bytes_bounds_texts(settings: Any) -> None:
    settings.REDISLOCK = {"MAX_VALUE_BYTES": 32, "RETRY_FOR": 0}
    for call in uses("é" * 6):
        with pytest.raises(ValueError, match=r"at most 32 bytes as JSON \(REDISLOCK\['MAX_VALUE_BYTES'\]\), not 38"):
            call()
    for call in uses("é" * 5):
        with pytest.raises(LockUnavailable):
            call()


def test_what_is_no_operator_and_no_distance_is_refused() -> None:
    for call in (ConditionalValue("high").set_if, ConditionalValue("high").delete_if):
        for op in ("=", "gt", None, [">"]):
            with pytest.raises(ValueError, match=r"op must be one of '>', '<', '>=', '<=', '==', '!=', not "):
                call(op, 5)  # type: ignore[arg-type]
    for eps in (-1, math.nan, 10**400):
        with pytest.raises(ValueError, match="eps must be 0 or more and finite, not "):
            ConditionalValue("high", eps=eps)
    with pytest.raises(TypeError, match="eps must be an int or a float, not True"):
        ConditionalValue("high", eps=True)


METHODS: list[tuple[Any, ...]] = [("setne", 5), ("setge", 5), ("delne", "a"), ("delge", 5)]
FOREIGN: list[str | bytes] = [
    *("hello", "true", "[1]", "NaN", "0x10", " 5", '"5', '"5" ', "", b"\xff", b'"a\xc3"', '"ä"', '"a"b"', '"\x01"'),
    *("0123", "-012", "1e999", "9007199254740993", "1.", "1.e5", "1e", "1.2.3", "1-2", "-", '"\\"', r'"\x"', r'"\u12"'),
    "[" * 100_000,  # nested deeply
]


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: repr(text[:20]))
def test_text_that_somebody_else_has_written_is_a_clear_error_and_stays(
    high: ConditionalValue, using: str, text: str | bytes
) -> None:
    command("SET", VALUE, text, using=using)
    for method, *args in [("get",), *METHODS]:
        with pytest.raises(LockError, match="Cannot use the value 'high': somebody else has written its key"):
            getattr(high, method)(*args)
    assert command("GET", VALUE, using=using) == (text if isinstance(text, bytes) else text.encode())


def test_what_is_longer_than_any_value_is_not_compared_and_stays(me: Any, high: ConditionalValue) -> None:
    command("SET", VALUE, f'"{"a" * 1_000_000}"', using=high.using)
    for call in METHODS:
        with pytest.raises(LockError, match=r"which holds 1,000,002 bytes, more than REDISLOCK\['MAX_VALUE_BYTES'\]"):
            me(high, *call)
    assert me(high, "get") == "a" * 1_000_000


def sequences(client: redis.Redis) -> list[Any]:
    return list(client.keys(f"{PREFIX}sequence:*"))


@pytest.fixture
def network(server: RedisServer, retry_for: Callable[[float], None]) -> Iterator[Proxy]:
    """The default alias leads through this proxy to a server that knows the scripts; answers are waited for briefly."""
    retry_for(GENEROUS)
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.3)):
        Counter("warm-up").incr()
        ConditionalValue("warm-up").setgt(1)
        yield running


@pytest.mark.parametrize("known", [True, False], ids=["known", "flushed"])
def test_a_call_whose_answers_were_lost_but_the_last_counts_once(
    me: Any, network: Proxy, client: redis.Redis, known: bool
) -> None:
    """Also where the server did not know the script: then one answer is that of EVALSHA, one that of EVAL."""
    hits = Counter("hits")
    me(hits, "incr", 7)
    for method, *args, result in (("incr", 3, 10), ("decr", 9), ("reset", 9), ("get", 0)):
        if not known:
            client.script_flush()
        lost = network.lose_answer("counter:hits", times=3)
        assert me(hits, method, *args) == result
        assert lost.over.is_set()
    high = ConditionalValue("high")
    me(high, "setgt", 1)
    for call in (("setgt", 5), ("setne", 6), ("delne", 5)):
        # the repetition alone would say: not above, not unequal, nothing there
        lost = network.lose_answer("value:high")
        assert me(high, *call) is True
        assert lost.over.is_set()


@pytest.mark.parametrize(
    ("stored", "call", "result", "others"),
    [(5, ("seteq", 5, 2), True, b"5"), (5, ("setgt", 3), False, b"1"), ("paid", ("setgt", 3), None, b"1")],
    ids=["done", "refused", "an error"],
)
def test_what_a_call_has_found_stays_so_though_its_answer_was_lost_and_others_went_on(
    me: Any, network: Proxy, client: redis.Redis, stored: Any, call: Any, result: bool | None, others: bytes
) -> None:
    high = ConditionalValue("high")
    me(high, "seteq", stored)
    held = network.hold_answer("value:high")
    calling = me.start(high, *call)
    assert held.caught.wait(GENEROUS)
    client.set(VALUE, others)  # a second run would find its condition true
    with pytest.raises(TypeError, match="with 'paid', which") if result is None else nullcontext():
        assert calling.result(GENEROUS) is result
    assert client.get(VALUE) == others


def test_a_call_that_arrives_after_its_repetition_and_later_calls_does_not_count(
    me: Any, network: Proxy, client: redis.Redis
) -> None:
    late = network.hold_request("counter:hits")
    assert [me(Counter("hits"), "incr") for _ in range(3)] == [1, 2, 3]
    assert me(ConditionalValue("high"), "setgt", 5)
    late.arrive()
    assert client.get(COUNTER) == b"3"


async def test_calls_of_threads_or_coroutines_at_the_same_time_count_each(client: redis.Redis) -> None:
    """A rate limit holds, resets lose nothing, and of those who change a value one hears that it did so."""
    for number in range(20):
        await ConditionalValue(f"job:{number}").aseteq("waiting")

    def work(number: int) -> tuple[int, int, bool]:
        count, job = Counter("hits").incr(ttl=300), ConditionalValue(f"job:{number // 10}")
        Counter("visits").incr()
        taken = Counter("visits").reset() if number % 5 == 0 else 0
        return count, taken, job.deleq("waiting") if number < 100 else job.seteq("waiting", "paid")

    def work_in_threads() -> list[tuple[int, int, bool]]:
        with ThreadPoolExecutor(20) as pool:
            return list(pool.map(work, range(200)))

    counts, taken, done = zip(*await asyncio.to_thread(work_in_threads), strict=True)
    assert sum(taken) + await Counter("visits").aget() == 200
    assert sum(done) == 20
    assert len(sequences(client)) <= 20
    assert all(0 < int(client.pttl(sequence)) <= 60_000 for sequence in sequences(client))
    more = await asyncio.gather(*(Counter("hits").aincr() for _ in range(200)))
    assert sorted([*counts, *more]) == list(range(1, 401))


async def test_a_cancelled_coroutine_gives_its_sequence_back_and_the_next_call_counts(
    network: Proxy, client: redis.Redis
) -> None:
    await Counter("hits").aincr()
    before = len(sequences(client))
    held = network.hold_answer("counter:hits")
    task = asyncio.create_task(Counter("hits").aincr())
    assert await asyncio.to_thread(held.caught.wait, GENEROUS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await Counter("hits").aincr() == 3
    assert len(sequences(client)) == before


def test_a_forked_child_has_sequences_of_its_own(start: Callable[..., Worker], client: redis.Redis) -> None:
    code = """
Counter("hits").incr()
child = os.fork()
for _ in range(50):
    Counter("hits").incr()
if not child:
    os._exit(0)
say("done", os.waitpid(child, 0)[1])
"""
    assert start(code, fresh=True).expect("done") == ["0"]
    assert client.get(COUNTER) == b"101"
    assert len(sequences(client)) == 2
