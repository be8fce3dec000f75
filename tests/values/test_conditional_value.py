"""Values that are replaced or deleted depending on a comparison."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from django_redislock import ConditionalValue, LockError, LockUnavailable
from tests.helpers.pools import raw
from tests.inside import PREFIX

KEY = f"{PREFIX}value:high"
LONG = 'a"é' * 111_110  # as long as may be
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.fixture
def high(using: str) -> ConditionalValue:
    return ConditionalValue("high", using=using)


def pttl(value: ConditionalValue) -> int:
    return int(raw(value.using or "", "PTTL", KEY))


@pytest.mark.parametrize("short", [False, True], ids=["operator", "short name"])
@pytest.mark.parametrize("op", COMPARE)
def test_a_value_is_replaced_or_deleted_if_another_compares_so_with_it(
    me: Any, high: ConditionalValue, op: str, short: bool
) -> None:
    name = COMPARE[op].__name__
    sets, deletes = ([f"set{name}"], [f"del{name}"]) if short else (["set_if", op], ["delete_if", op])
    for value in (4, 5, 6, 4.5):
        expected = COMPARE[op](value, 5)
        raw(high.using or "", "DEL", KEY)
        assert me(high, *deletes, 5) is False
        assert me(high, *sets, 5) is True  # where nothing is stored
        assert me(high, *sets, value) is expected
        assert me(high, "get") == (value if expected else 5)
        raw(high.using or "", "SET", KEY, "5")
        assert me(high, *sets, value, new="new", ttl=60) is expected
        assert me(high, "get") == ("new" if expected else 5)
        assert (pttl(high) > 0) is expected
        raw(high.using or "", "SET", KEY, "5")
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
    raw(using, "SET", KEY, text)
    for method, *args in [("get",), *METHODS]:
        with pytest.raises(LockError, match="Cannot use the value 'high': somebody else has written its key"):
            getattr(high, method)(*args)
    assert raw(using, "GET", KEY) == (text if isinstance(text, bytes) else text.encode())


def test_what_is_longer_than_any_value_is_not_compared_and_stays(me: Any, high: ConditionalValue) -> None:
    raw(high.using or "", "SET", KEY, f'"{"a" * 1_000_000}"')
    for call in METHODS:
        with pytest.raises(LockError, match=r"which holds 1,000,002 bytes, more than REDISLOCK\['MAX_VALUE_BYTES'\]"):
            me(high, *call)
    assert me(high, "get") == "a" * 1_000_000
