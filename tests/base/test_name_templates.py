"""Names with fields that are filled for each call."""

from __future__ import annotations

import re
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject

from django_redislock import lock_digest, lock_name
from django_redislock.base.name_templates import NameTemplate, Template, has_fields


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("import", "import"),
        ("order:{pk}", "order:42"),
        ("order:{pk:05}", "order:00042"),
        ("user:{request.user.pk}", "user:7"),
        ("item:{items[0]}", "item:a%3Ab"),
        ("{text}", "a%3Ab%20%7B%25"),
        ("{text!r}", "'a%3Ab%20%7B%25'"),
        ("a{{b}}", "a{b}"),
        ("{items[_a._b]}", "c"),
        ("{day:%Y-%m}", "2026-03"),
    ],
)
def test_a_template_is_filled_with_quoted_values(template: str, name: str) -> None:
    request = SimpleNamespace(user=SimpleNamespace(pk=7))
    values = {
        "pk": 42,
        "request": request,
        "items": {0: "a:b", "_a._b": "c"},
        "text": "a:b {%",
        "day": date(2026, 3, 1),
    }
    assert NameTemplate(template).fill(values) == name


@pytest.mark.parametrize("template", ["order:{id}", "order:{pk.missing}", "order:{pk[0]}"])
def test_a_field_that_is_not_there_names_those_that_are(template: str) -> None:
    with pytest.raises(ValueError, match=r"Available values: pk, slug\.") as caught:
        NameTemplate(template).fill({"slug": "a", "pk": 42})
    assert repr(template) in str(caught.value)


def test_a_template_without_values_says_that_there_are_none() -> None:
    with pytest.raises(ValueError, match="Available values: none"):
        NameTemplate("{pk}").fill({})


@pytest.mark.parametrize(
    "template", ["order:{}", "order:{0}", "order:{a b}", "order:{a[0]b}", "order:{", "order:}", "", "a\n", "x" * 513]
)
def test_a_template_that_can_never_be_filled_is_refused_at_once(template: str) -> None:
    with pytest.raises(ValueError, match="name"):
        NameTemplate(template)


@pytest.mark.parametrize(
    ("template", "trouble"),
    [
        ("{year:>{width}}", r"contains another field: {year:>{width}}"),
        ("{pk:{width}}", "contains another field"),
        ("{year:>999999999}", "too long: {year:>999999999}. At most 512"),
        ("{year:.513f}", "too long"),
        ("{self._secret}", "private attribute '_secret': {self._secret}"),
        ("{self.x[0].__class__.__init__}", "private attribute '__class__'"),
        ("{pk!d}", "unknown conversion 'd': {pk!d}"),
    ],
)
def test_a_template_whose_values_could_do_harm_is_refused_at_once(template: str, trouble: str) -> None:
    with pytest.raises(ValueError, match=re.escape(trouble)) as caught:
        NameTemplate(template)
    assert str(caught.value).startswith(f"The lock name {template!r} has a field ")


def test_a_digest_stands_for_a_value_that_nobody_must_read(settings: Any) -> None:
    template, values = NameTemplate("session:{session.key:digest}"), {"session": SimpleNamespace(key="s3cret")}
    name = template.fill(values)
    assert re.fullmatch("session:[0-9a-f]{32}", name)
    assert name == template.fill(values) == lock_name("session", lock_digest("s3cret"))
    assert NameTemplate("session:{session.key!r:digest}").fill(values) != name
    settings.SECRET_KEY = "another"
    assert template.fill(values) != name


@pytest.mark.parametrize("value", [None, 7, "é", "\ud800", b"x", "x" * 10_000])
def test_any_value_has_a_digest_of_its_own(value: object) -> None:
    assert re.fullmatch("[0-9a-f]{32}", lock_digest(value))
    assert lock_digest(value) != lock_digest("other")


def test_other_texts_are_filled_as_they_are_written() -> None:
    template = Template("{pk} of {user!r}", "note")
    assert template.fields == frozenset({"pk", "user"})
    assert template.fill({"pk": "a:b %", "user": "é"}) == "a:b % of 'é'"
    with pytest.raises(ValueError, match=r"Cannot fill the note '{pk} of {user!r}': KeyError: 'user'"):
        template.fill({"pk": 1})
    with pytest.raises(
        ValueError, match=r"^Cannot fill the note '{year:d}': ValueError: Unknown format code 'd'.*: year"
    ):
        Template("{year:d}", "note").fill({"year": "2024"})


class Thing:
    def name(self) -> str:
        return "thing"


@pytest.mark.parametrize("value", [Thing().name, Thing(), len, lambda: 1])
@pytest.mark.parametrize("field", ["value", "value:digest"])
def test_a_value_whose_text_is_an_address_is_refused(value: object, field: str) -> None:
    """It would be another lock in each process."""
    with pytest.raises(ValueError, match="no text of its own, only its address, which differs from process to process"):
        NameTemplate(f"a:{{{field}}}").fill({"value": value})


def test_classes_and_objects_with_a_str_method_can_be_values() -> None:
    values = {"kind": Thing, "some": SimpleNamespace(pk=1), "user": SimpleLazyObject(lambda: "jo")}
    text = Template("{kind} {some} {user}", "note").fill(values)
    assert text == f"{Thing} namespace(pk=1) jo"


@pytest.mark.parametrize("template", [None, 42, b"order"])
def test_a_template_is_a_str(template: Any) -> None:
    with pytest.raises(TypeError, match="lock name must be a str, not"):
        NameTemplate(template)


def test_a_filled_template_must_be_a_name() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        NameTemplate("{text}").fill({"text": ""})


@pytest.mark.parametrize("value", ["x" * 513, "order-" * 100, "a:" * 300])
def test_a_template_names_what_is_too_long_as_lock_name_does(value: str) -> None:
    assert NameTemplate("order:{slug}").fill({"slug": value}) == lock_name("order", value)


def test_no_value_imitates_the_hash_of_another() -> None:
    long = lock_name("x" * 600)
    assert NameTemplate("{text}").fill({"text": long}) != long


def test_a_text_without_fields_is_no_template() -> None:
    assert [has_fields(text) for text in ("order:{pk}", "{}", "order", "{{a}}", "{", "}")] == [True] * 2 + [False] * 4
