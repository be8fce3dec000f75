"""Names with fields that are filled for each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from django_redislock import lock_name
from django_redislock.name_templates import NameTemplate, has_fields


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
        ("{pk:{width}}", "%20%2042"),
    ],
)
def test_a_template_is_filled_with_quoted_values(template: str, name: str) -> None:
    request = SimpleNamespace(user=SimpleNamespace(pk=7))
    values = {"pk": 42, "request": request, "items": ["a:b"], "text": "a:b {%", "width": 4}
    assert NameTemplate(template).fill(values) == name


@pytest.mark.parametrize("template", ["order:{id}", "order:{pk.missing}", "order:{pk[0]}", "{id:{pk}}"])
def test_a_field_that_is_not_there_names_those_that_are(template: str) -> None:
    with pytest.raises(ValueError, match=r"Available values: pk, slug\.") as caught:
        NameTemplate(template).fill({"slug": "a", "pk": 42})
    assert repr(template) in str(caught.value)


def test_a_template_without_values_says_that_there_are_none() -> None:
    with pytest.raises(ValueError, match="Available values: none"):
        NameTemplate("{pk}").fill({})


@pytest.mark.parametrize("template", ["order:{}", "order:{0}", "order:{", "order:}", "", "a\n", "x" * 513])
def test_a_template_that_can_never_be_filled_is_refused_at_once(template: str) -> None:
    with pytest.raises(ValueError, match="name"):
        NameTemplate(template)


@pytest.mark.parametrize("template", [None, 42, b"order"])
def test_a_template_is_a_str(template: Any) -> None:
    with pytest.raises(TypeError, match="must be a str or a callable"):
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
