"""Values that are replaced or deleted depending on a comparison."""

from __future__ import annotations

import itertools
import math
import operator
import random
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from django_redislock import ConditionalValue, LockError, LockUnavailable
from tests.helpers.pools import raw
from tests.inside import PREFIX

Call = Callable[[], object]
Eventually = Callable[..., Any]
InProcesses = Callable[[int, str], list[list[str]]]

KEY = f"{PREFIX}value:high"
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
ORDERED = [">", "<", ">=", "<="]
SHORT = {">": "gt", "<": "lt", ">=": "ge", "<=": "le", "==": "eq", "!=": "ne"}


@pytest.fixture
def high(using: str) -> ConditionalValue:
    return ConditionalValue("high", using=using)


def pttl(value: ConditionalValue) -> int:
    """Milliseconds until the value expires; -1: it does not."""
    return int(raw(value.using or "", "PTTL", KEY))


# -- when a value is replaced or deleted ----------------------------------------------------------------------------


@pytest.mark.parametrize("short", [False, True], ids=["operator", "short name"])
@pytest.mark.parametrize("op", COMPARE)
def test_a_value_is_replaced_or_deleted_if_another_compares_so_with_it(
    me: Any, high: ConditionalValue, op: str, short: bool
) -> None:
    sets, deletes = ([f"set{SHORT[op]}"], [f"del{SHORT[op]}"]) if short else (["set_if", op], ["delete_if", op])
    for value in (4, 5, 6, 4.5, 5.0, -5):
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


@pytest.mark.parametrize("new", [0, 7, -1.5, "", "text", "5", "größe\n\x00\ud800"])
def test_what_is_stored_may_be_another_value_of_any_kind(me: Any, high: ConditionalValue, new: Any) -> None:
    assert me(high, "set_if", ">", 1, new) is True
    stored = me(high, "get")
    assert (stored, type(stored)) == (new, type(new))


def test_a_value_has_the_ttl_that_was_given_when_it_was_stored(
    me: Any, high: ConditionalValue, eventually: Eventually
) -> None:
    for ttl in (60, 60.0, timedelta(minutes=1)):
        assert me(high, "setne", 0, 5, ttl=ttl)
        assert 30_000 < pttl(high) <= 60_000
        assert not me(high, "setgt", 4, ttl=600)  # not replaced
        assert not me(high, "setgt", 4)
        assert 0 < pttl(high) <= 60_000
    assert me(high, "setgt", 6)
    assert pttl(high) == -1
    me(high, "setgt", 7, ttl=0.05)
    eventually(lambda: me(high, "get") is None)
    assert me(high, "delgt", 8) is False
    assert me(high, "setgt", 1) is True


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
    for _ in range(100):
        stored = chance.uniform(-1, 1) * 10 ** chance.randint(-300, 300)
        value = chance.choice([stored, math.nextafter(stored, math.inf), math.nextafter(stored, -math.inf)])
        for op, compare in COMPARE.items():
            exactly.delne("whatever is stored")
            exactly.seteq(stored)
            assert exactly.get() == stored
            assert exactly.delete_if(op, value) is compare(value, stored)


@pytest.mark.parametrize(
    ("eps", "error", "text"),
    [
        *((eps, ValueError, "0 or more and finite") for eps in (-1, math.nan, math.inf, 10**400)),
        *((eps, TypeError, "an int or a float") for eps in (True, "1", None)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_eps_that_is_no_distance_is_refused(eps: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=rf"eps must be {text}, not {re.escape(repr(eps)[:50])}"):
        ConditionalValue("high", eps=eps)


# -- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "value", "equal"),
    [("a", "a", True), ("a", "b", False), ("a", "A", False), ("ä", "ä", True), ("5", 5, False), (5, "5", False)],
)
def test_text_is_equal_as_a_whole_and_never_equals_a_number(
    me: Any, high: ConditionalValue, stored: Any, value: Any, equal: bool
) -> None:
    me(high, "seteq", stored)
    assert me(high, "seteq", value, "new") is equal
    raw(high.using or "", "DEL", KEY)
    me(high, "seteq", stored)
    assert me(high, "delne", value) is not equal


@pytest.mark.parametrize("op", ORDERED)
@pytest.mark.parametrize("method", ["set_if", "delete_if"])
def test_text_has_no_order_neither_given_nor_stored(me: Any, high: ConditionalValue, op: str, method: str) -> None:
    with pytest.raises(TypeError, match=rf"Cannot compare 'a' by '{op}': text has no order here, only '==' and '!='"):
        me(high, method, op, "a")
    assert me(high, "get") is None
    me(high, "seteq", "paid", ttl=60)
    with pytest.raises(TypeError, match=rf"Cannot compare 5 by '{op}' with 'paid', which the value 'high' holds"):
        me(high, method, op, 5)
    assert me(high, "get") == "paid"
    assert pttl(high) > 0


# -- what is refused before anything is sent ------------------------------------------------------------------------


def uses(value: Any) -> list[Call]:
    """All calls that take a value."""
    state = ConditionalValue("high")
    return [lambda: state.setne(value), lambda: state.delne(value), lambda: state.setne(5, value)]


NO_VALUES: list[tuple[Any, type[Exception], str]] = [
    *((value, TypeError, "an int, a float or a str, not ") for value in (True, None, b"5", Decimal(5), [5], 5j)),
    *((value, ValueError, f"a finite number, not {value}") for value in (math.nan, math.inf, -math.inf)),
    *(
        (value, ValueError, rf"between -2\*\*53 and 2\*\*53 to be compared exactly, not {value}")
        for value in (2**53 + 1, -(2**53) - 1, 10**400)
    ),
]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(("value", "error", "text"), NO_VALUES, ids=lambda value: str(value)[:20])
def test_what_is_no_value_is_refused(value: Any, error: type[Exception], text: str) -> None:
    for call in uses(value) if value is not None else uses(value)[:2]:  # new=None is the value itself
        with pytest.raises(error, match=f"(value|new) must be {text}"):
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
def test_a_text_over_the_limit_is_refused_before_anything_is_sent(settings: Any) -> None:
    for call in uses("é" * 170_000):
        with pytest.raises(ValueError, match=r"must take at most 1,000,000 bytes as JSON .*, not 1,020,002"):
            call()
    settings.REDISLOCK = {"MAX_VALUE_BYTES": 32, "RETRY_FOR": 0}
    for call in uses("é" * 6):
        with pytest.raises(ValueError, match=r"at most 32 bytes as JSON \(REDISLOCK\['MAX_VALUE_BYTES'\]\), not 38"):
            call()
    for call in uses("é" * 5):
        with pytest.raises(LockUnavailable):
            call()


def test_texts_up_to_the_limit_are_compared(me: Any, high: ConditionalValue) -> None:
    text = 'a"é' * 111_110
    assert me(high, "seteq", text)
    assert not me(high, "setne", text)
    assert not me(high, "seteq", text[:-1])
    assert me(high, "get") == text
    assert me(high, "deleq", text)


# -- what somebody else has written ---------------------------------------------------------------------------------

METHODS: list[tuple[Any, ...]] = [
    ("get",),
    ("setne", 5),
    ("setge", 5),
    ("setlt", 1),
    ("delne", 5),
    ("delne", "a"),
    ("delge", 5),
]


FOREIGN = ["hello", "true", "[1]", "NaN", "0x10", " 5", '"5', '"5" ', "", b"\xff", b'"\xff"', b'"a\xc3"', '"ä"']
FOREIGN += [
    "0123",
    "-012",
    "1e999",
    "-1e999",
    "9007199254740993",
    "1" + "0" * 16,
    "1.",
    "1.e5",
    "1e",
    "1.2.3",
    "1-2",
    "-",
]
FOREIGN += ['"a"b"', '"\x01"', '"\\"', r'"\x"', r'"\u12"']
FOREIGN += ["[" * 100_000, '{"a":' * 100_000]  # nested deeply


@pytest.mark.parametrize("text", FOREIGN, ids=lambda text: repr(text[:20]))
def test_text_that_somebody_else_has_written_is_a_clear_error_and_stays(
    high: ConditionalValue, using: str, text: str | bytes
) -> None:
    raw(using, "SET", KEY, text)
    for method, *args in METHODS:
        with pytest.raises(LockError, match="Cannot use the value 'high': somebody else has written its key") as error:
            getattr(high, method)(*args)
        assert error.value.name == "high"
    assert raw(using, "GET", KEY) == (text if isinstance(text, bytes) else text.encode())


def test_what_is_longer_than_any_value_is_not_compared_and_stays(me: Any, high: ConditionalValue) -> None:
    raw(high.using or "", "SET", KEY, f'"{"a" * 1_000_000}"')
    for call in [call for call in METHODS if call != ("get",)]:
        with pytest.raises(LockError, match=r"which holds 1,000,002 bytes, more than REDISLOCK\['MAX_VALUE_BYTES'\]"):
            me(high, *call)
    assert me(high, "get") == "a" * 1_000_000


# -- many processes -------------------------------------------------------------------------------------------------


@pytest.mark.complete
def test_a_high_water_mark_of_four_processes_ends_with_the_highest(in_processes: InProcesses) -> None:
    code = """
import random
mine = random.Random(me).sample(range(100_000), 200)
seen = []
for value in mine:
    ConditionalValue("high").setgt(value)
    seen.append(ConditionalValue("high").get())
say("done", max(mine), int(seen == sorted(seen)), int(all(a >= b for a, b in zip(seen, mine))))
"""
    said = in_processes(4, code)
    assert ConditionalValue("high").get() == max(int(words[0]) for words in said)
    assert [words[1:] for words in said] == [["1", "1"]] * 4


@pytest.mark.complete
def test_of_four_processes_that_delete_or_replace_the_same_value_one_hears_that_it_did(
    in_processes: InProcesses,
) -> None:
    for number in range(50):
        ConditionalValue(f"job:{number}").seteq("waiting")
        ConditionalValue(f"order:{number}").seteq("open")
    code = """
say("done", *(f"j{n}" for n in range(50) if ConditionalValue(f"job:{n}").deleq("waiting")),
    *(f"o{n}" for n in range(50) if ConditionalValue(f"order:{n}").seteq("open", "paid")))
"""
    said = in_processes(4, code)
    assert sorted(itertools.chain(*said)) == sorted(f"{kind}{n}" for kind in "jo" for n in range(50))
