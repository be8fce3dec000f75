"""Names and notes with fields that are filled for each call."""

from __future__ import annotations

import re
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject

from django_redislock import get_lock, list_locks, lock_digest, lock_name, locked
from tests.helpers.state import NAME


def filled(template: str, **values: Any) -> str:
    """The name of the lock under which a function with these arguments runs."""

    @locked(template)
    def function(**values: Any) -> str:
        return list_locks()[0].name

    return function(**values)


def note_filled(template: str, **values: Any) -> str:
    @locked(NAME, note=template)
    def function(**values: Any) -> str:
        return get_lock(NAME).note  # type: ignore[union-attr]

    return function(**values)


class Thing:
    def name(self) -> str:
        return "thing"


VALUES = {
    "pk": 42,
    "request": SimpleNamespace(user=SimpleNamespace(pk=7)),
    "items": {0: "a:b", "_a._b": "c"},
    "text": "a:b {%",
    "day": date(2026, 3, 1),
}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("import", "import"),
        ("order:{pk:05}", "order:00042"),
        ("user:{request.user.pk}", "user:7"),
        ("item:{items[0]}", "item:a%3Ab"),
        ("{text!r}", "'a%3Ab%20%7B%25'"),
        ("a{{b}}", "a{b}"),
        ("{items[_a._b]}", "c"),
        ("{day:%Y-%m}", "2026-03"),
    ],
)
def test_a_template_is_filled_with_quoted_values(template: str, name: str) -> None:
    assert filled(template, **VALUES) == name


def test_a_note_is_filled_as_it_is_written() -> None:
    values = {"kind": Thing, "some": SimpleNamespace(pk=1), "user": SimpleLazyObject(lambda: "jö"), "text": "a:b %"}
    assert note_filled("{text} {kind} {some} {user!s}", **values) == f"a:b % {Thing} namespace(pk=1) jö"


@pytest.mark.parametrize(
    ("template", "trouble"),
    [
        *((template, "valid template|plain name") for template in ("a:{}", "a:{0}", "a:{a b}", "a:{", "a:}")),
        ("a:{a[0]b}", "valid template|plain name"),
        ("", "must not be empty"),
        ("a\n", "control characters"),
        ("x" * 513, "at most 512"),
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


@pytest.mark.parametrize("fill", [filled, note_filled])
@pytest.mark.parametrize(
    ("template", "values", "trouble"),
    [
        ("order:{pk.missing}", {"slug": "a", "pk": 42}, r"AttributeError: .* Available values: pk, slug\.$"),
        ("order:{pk[0]}", {"slug": "a", "pk": 42}, r"TypeError: .* Available values: pk, slug\.$"),
        ("order:{id}", {}, r"it was called without 'id'\. Available values: none\.$"),
        ("{year:d}", {"year": "2024"}, r"ValueError: Unknown format code 'd'.*: year\.$"),
    ],
)
def test_a_call_that_cannot_fill_it_is_an_error_that_names_the_values_there_are(
    fill: Any, template: str, values: dict[str, Any], trouble: str
) -> None:
    with pytest.raises(ValueError, match=trouble) as caught:
        fill(template, **values)
    noun = "note" if fill is note_filled else "lock name"
    assert str(caught.value).startswith(f"Cannot fill the {noun} {template!r}: ")


def test_a_digest_stands_for_a_value_that_nobody_must_read(settings: Any) -> None:
    template, session = "session:{session.key:digest}", SimpleNamespace(key="s3cret")
    name = filled(template, session=session)
    assert re.fullmatch("session:[0-9a-f]{32}", name)
    assert name == filled(template, session=session) == lock_name("session", lock_digest("s3cret"))
    assert filled("session:{session.key!r:digest}", session=session) != name
    digests = {lock_digest(value) for value in (None, 7, "é", "\ud800", b"x", "x" * 10_000)}
    assert len(digests) == 6
    settings.SECRET_KEY = "another"
    assert filled(template, session=session) != name


@pytest.mark.parametrize("value", [Thing().name, Thing(), len])
@pytest.mark.parametrize("field", ["value", "value:digest"])
def test_a_value_whose_text_is_an_address_is_refused(value: object, field: str) -> None:
    """It would be another lock in each process."""
    with pytest.raises(ValueError, match="no text of its own, only its address, which differs from process to process"):
        filled(f"a:{{{field}}}", value=value)


@pytest.mark.parametrize("value", ["x" * 513, "a:" * 300, lock_name("x" * 600)])
def test_a_template_names_what_is_too_long_as_lock_name_does(value: str) -> None:
    assert filled("order:{slug}", slug=value) == lock_name("order", value)
    with pytest.raises(ValueError, match="must not be empty"):
        filled("{text}", text="")
