"""Names of locks, templates and the log, and how values in them are quoted."""

import itertools
import json
import logging
import re
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from enum import Enum
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.utils.functional import SimpleLazyObject

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockPool,
    LockSet,
    Semaphore,
    force_release,
    get_lock,
    list_locks,
    lock_digest,
    lock_name,
    locked,
)
from django_redislock.testing import assert_locked, hold
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME, held, put

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, r"name must be a str, not .*(None|42|order)") for name in (None, 42, b"order", {"order": 1})),
        ("", "name must not be empty"),
        *((f"a{char}b", r"contains .*: control characters and lone") for char in "\x00\n\x1b\x7f\x80\ud800"),
        ("x" * 513, r" name 'x{80}'\.\.\. has 513 bytes; at most 512"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_name_is_refused_with_a_short_error_that_says_what_it_was_to_name(name: Any, text: str) -> None:
    nouns: dict[str, Callable[[Any], object]] = {"lock": Lock, "pool": LockPool, "counter": Counter}
    nouns["value"] = ConditionalValue
    for noun, make in nouns.items():
        with pytest.raises((TypeError, ValueError), match=text) as caught:
            make(name)
        error = str(caught.value)
        assert error.startswith((f"A {noun}'s name ", f"The {noun} name "))
        assert error.isprintable()
        assert len(error) < 250


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["order", 42, "a:b"], "order:42:a%3Ab"),
        (["50%", "{tag}"], "50%25:%7Btag%7D"),
        (["a b\tc\nd\u00a0\x7f"], "a%20b%09c%0Ad%C2%A0%7F"),
        (["a\ud800b"], "a%ED%A0%80b"),
        (["\x00\x1b\x85\u2028"], "%00%1B%C2%85%E2%80%A8"),
        (["größe", "鍵"], "größe:鍵"),
        (["", "a"], ":a"),
    ],
)
def test_parts_are_joined_and_quoted(parts: list[object], name: str) -> None:
    assert lock_name(*parts) == name


def test_two_different_tuples_never_meet_in_one_name() -> None:
    texts = ["".join(chars) for size in range(3) for chars in itertools.product(":%{ \n3A", repeat=size)]
    tuples = [(text,) for text in texts if text] + list(itertools.product(texts, repeat=2))
    assert len({lock_name(*parts) for parts in tuples}) == len(tuples)
    for parts in ([], [""]):
        with pytest.raises(ValueError, match="name"):
            lock_name(*parts)


@pytest.mark.parametrize("parts", [["x" * 513], ["a", "x" * 600], ["é" * 257], ["order", "\n" * 200]])
def test_a_name_that_would_be_too_long_ends_in_a_hash_of_the_whole(parts: list[str]) -> None:
    name = lock_name(*parts)
    assert Lock(name).name == name
    assert name.startswith(":".join(map(lock_name, parts))[:80])
    assert filled("{text}:7", text=parts[-1]) == lock_name(parts[-1], 7)
    assert re.fullmatch(r".{80}%~[0-9a-f]{64}", name)
    assert lock_name(*parts[:-1], f"{parts[-1]}y") != name
    assert lock_name("x" * 512) == "x" * 512
    assert lock_name(name) != name  # no value imitates the hash of another


def member_of(pool: LockPool, key: str) -> AbstractContextManager[Any]:
    pool.extend([key])
    return pool.acquire()


HOLD: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "lock": Lock,
    "set": LockSet,
    "semaphore": lambda name: Semaphore(name, limit=1),
    "pool": lambda name: member_of(LockPool(name), "a"),
    "member": lambda key: member_of(LockPool("a"), key),
    "part": lambda part: Lock(lock_name("a", part)),
    "field": lambda value: Lock(filled("a:{value}", value=value)),
    "hold": hold,
}


def enumerated(text: str) -> str:
    """A member of an enum; from Python 3.11 on, an f-string makes "Kind.ONE" of it."""

    class Kind(str, Enum):
        ONE = text

    return Kind.ONE


@pytest.mark.parametrize("way", HOLD)
def test_a_member_of_an_enum_is_the_text_that_it_equals(way: str, client: redis.Redis) -> None:
    with HOLD[way](enumerated(f"the-{way}")):  # which this process has not seen before
        (name,) = held()
        assert f"the-{way}" in name
        assert client.keys("*Kind*") == []


def test_it_is_found_by_that_text(client: redis.Redis) -> None:
    names = ["asserted", "looked-at", "released"]
    asserted, looked_at, released = map(enumerated, names)
    for name in names:
        put(client, name)
    assert_locked(asserted)
    assert [f"{info.name}" for info in (get_lock(looked_at), force_release(released)) if info] == names[1:]


# -- templates: names and notes with fields that are filled for each call ---------------------------------------------


def filled(template: str, **values: Any) -> str:
    """The name of the lock under which a function with these arguments runs."""

    @locked(template)
    def function(**values: Any) -> str:
        return list_locks()[0].name

    return function(**values)


class Thing:
    def name(self) -> str:
        return "thing"


VALUES = {
    "pk": 42,
    "some": SimpleNamespace(pk=7),
    "items": {0: "a:b", "_a._b": "c"},
    "text": "a:b {%",
    "day": date(2026, 3, 1),
}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("order:{pk:05}", "order:00042"),
        ("item:{items[0]}:{some.pk}", "item:a%3Ab:7"),
        ("{text!r}", "'a%3Ab%20%7B%25'"),
        ("a{{b}}", "a{b}"),
        ("{items[_a._b]}", "c"),
        ("{day:%Y-%m}", "2026-03"),
    ],
)
def test_a_template_is_filled_with_quoted_values(template: str, name: str) -> None:
    assert filled(template, **VALUES) == name


@pytest.mark.parametrize(
    ("template", "trouble"),
    [
        *((template, "valid template|plain name") for template in ("a:{}", "a:{0}", "a:{a[0]b}", "a:{", "a:}")),
        ("", "must not be empty"),
        ("{year:>{width}}", r"has a field whose format contains another field: {year:>{width}}"),
        ("{year:>999999999}", "has a field whose format is too long: {year:>999999999}. At most 512"),
        ("{self._secret}", "has a field with the private attribute '_secret': {self._secret}"),
        ("{self.x[0].__class__.__init__}", "has a field with the private attribute '__class__'"),
        ("{pk!d}", "has a field with the unknown conversion 'd': {pk!d}"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_template_that_cannot_be_filled_or_whose_values_could_do_harm_is_refused_at_once(
    template: str, trouble: str
) -> None:
    with pytest.raises(ValueError, match="name") as caught:
        locked(template)
    assert re.search(trouble.replace("{", r"\{").replace("[", r"\["), str(caught.value))


@pytest.mark.parametrize(
    ("template", "trouble"),
    [
        ("order:{pk.missing}", r"AttributeError: .* Available values: pk, slug\.$"),
        ("order:{pk[0]}", r"TypeError: .* Available values: pk, slug\.$"),
        ("order:{id}", r"it was called without 'id'\. Available values: pk, slug\.$"),
        ("{slug:d}", r"ValueError: Unknown format code 'd'.*: pk, slug\.$"),
    ],
)
def test_a_call_that_cannot_fill_it_is_an_error_that_names_the_values_there_are(template: str, trouble: str) -> None:
    for noun, options in (("lock name", {"name": template}), ("note", {"name": NAME, "note": template})):
        decorator: Any = locked
        function = decorator(**options)(lambda **values: None)
        with pytest.raises(ValueError, match=trouble) as caught:
            function(slug="a", pk=42)
        assert str(caught.value).startswith(f"Cannot fill the {noun} {template!r}: ")


def test_a_note_is_filled_as_it_is_written_and_a_token_is_no_template() -> None:
    @locked(NAME, note="{text} {kind} {user!s}")
    def function(text: Any, kind: Any, user: Any) -> None:
        assert get_lock(NAME).note == f"{text} {kind} {user}"  # type: ignore[union-attr]

    function(text="a:b %", kind=Thing, user=SimpleLazyObject(lambda: "jö"))
    for value in ({"a"}, len, Thing()):  # it need not be the same in all processes
        function(text=[value], kind=value, user=value)
    wrong: Any = 7
    with pytest.raises(TypeError, match="A token must be a str, not 7"):
        locked("a", token=wrong)


def test_a_digest_stands_for_a_value_that_nobody_must_read(settings: Any) -> None:
    template, session = "session:{session.key:digest}", SimpleNamespace(key="s3cret")
    name = filled(template, session=session)
    assert re.fullmatch("session:[0-9a-f]{32}", name)
    assert name == filled(template, session=session) == lock_name("session", lock_digest("s3cret"))
    assert filled("session:{session.key!r:digest}", session=session) != name
    assert len({lock_digest(value) for value in (None, 7, "é", "\ud800", b"x", "x" * 10_000)}) == 6
    settings.SECRET_KEY = "another"
    assert filled(template, session=session) != name


NAMES: dict[str, Callable[[Any], object]] = {
    "plain": lambda value: filled("a:{value}", value=value),
    "digest": lambda value: filled("a:{value:digest}", value=value),
    "converted": lambda value: filled("a:{value!s}", value=value),
    "digest of converted": lambda value: filled("a:{value!r:digest}", value=value),
    "lock_name": lambda value: lock_name("a", value),
    "lock_digest": lock_digest,
}


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.parametrize(
    "value",
    [
        Thing().name,
        Thing(),
        len,
        [Thing().name],
        (Thing(), 7),
        {"a": [Thing()]},
        (n for n in "a"),
        memoryview(b"a"),
        SimpleLazyObject(Thing),
        [SimpleLazyObject(Thing)],
        partial(print, Thing()),
        [deque([Thing()])],
        {"a": ValueError(Thing())},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_whose_text_is_an_address_is_refused(value: object, way: str) -> None:
    """It would be another lock in each process."""
    with pytest.raises((TypeError, ValueError), match="no text of its own, only its address, which differs from proc"):
        NAMES[way](value)


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.parametrize("value", [{"a", "b"}, frozenset("ab"), [{"a", "b"}], {"a": frozenset("ab")}])
def test_a_set_is_refused_whose_order_differs_from_process_to_process(value: object, way: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"differs from process to process\. Use a sorted list"):
        NAMES[way](value)


@pytest.mark.parametrize("value", [ValueError("<File at 0x7f00>"), ["<b at 0xcafe>"], {"a": "<b at 0xcafe>"}])
@pytest.mark.parametrize("way", NAMES)
def test_what_a_user_writes_is_taken_for_no_address(value: object, way: str) -> None:
    NAMES[way](value)


class Half(float, Enum):
    ONE = 0.5


class Odd:
    def __str__(self) -> str:
        return "as str"

    def __format__(self, spec: str) -> str:
        return spec or "as formatted"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (HTTPStatus.OK, "200"),
        (re.IGNORECASE, "2"),
        (Half.ONE, "0.5"),
        (enumerated("a"), "a"),
        (Odd(), "as%20str"),
        (b"a b", "b'a%20b'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_has_one_text_in_a_template_and_in_lock_name(value: object, text: str) -> None:
    """A member of an enum: that of its value, whatever the version of Python."""
    assert [filled(f"a:{{{field}}}", value=value) for field in ("value", "value!s")] == [f"a:{text}"] * 2
    assert lock_name("a", value) == f"a:{text}"
    assert filled("{value:digest}", value=value) == lock_digest(value)


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, str]]:
    """As a program parses them; they must consist of pairs only."""
    found = []
    for message in [record.getMessage() for record in caplog.records if record.name == "django_redislock"]:
        assert PAIR.sub("", message) == ""
        pairs = {key: json.loads(text) if text[0] == '"' else text for key, text in PAIR.findall(message)}
        if pairs["event"] == event:
            found.append(pairs)
    return found


@pytest.mark.parametrize("value", ["order:42", "größe:鍵", "", "a b", 'a"b', "a=b", "a\nb event=lost", "\u202e"])
def test_a_plain_value_stands_as_it_is_and_one_that_could_be_misread_is_a_json_string(value: str, caplog: Any) -> None:
    Lock("a").acquire()
    force_release("a", by=value)
    assert caplog.messages[-1].isprintable()
    assert [event["by"] for event in messages(caplog, "force-released")] == [value]
    assert (f" by={value} " in f"{caplog.messages[-1]} ") == (":" in value)


def test_what_a_filter_of_the_sites_raises_is_shown_on_stderr_and_ends_nothing(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(logging.getLogger("django_redislock"), "filters", [lambda record: 1 / 0])
    Lock("a").acquire()
    assert force_release("a")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_acquisitions_and_releases_are_logged_at_debug_level(crowd: Crowd, caplog: pytest.LogCaptureFixture) -> None:
    me, lock = crowd(), Lock("a b")
    with caplog.at_level(logging.DEBUG, "django_redislock"):
        me(lock, "acquire")
        fence = str(me.read(lambda: lock.fence))
        me(lock, "release")
    ((acquired,), (released,)) = messages(caplog, "acquired"), messages(caplog, "released")
    assert (acquired["name"], acquired["fence"], released["name"], released["fence"]) == ("a b", fence, "a b", fence)
    assert re.fullmatch(r"\d\.\d{6}", acquired["waited"])
