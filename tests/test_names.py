from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest

from django_redislock import Lock, lock_name
from django_redislock.names import (
    MAX_NAME_BYTES,
    NameTemplate,
    check_name,
    check_token,
    fit_name,
    known_as,
    make_keys,
    pool_name,
    quote,
)

# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "order:42", " ", "größe", "鍵", "{a}", "%", "x" * 512, "é" * 256, "\u202e"])
def test_these_are_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", [None, 42, b"order", ["order"], {"order": 1}])
def test_a_name_is_a_str(name: Any) -> None:
    with pytest.raises(TypeError, match=r"name must be a str, not .*(None|42|order)"):
        check_name(name)
    with pytest.raises(TypeError, match="name must be a str"):
        Lock(name)


def test_a_name_is_not_empty() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        check_name("")


@pytest.mark.parametrize("char", ["\x00", "\n", "\r", "\t", "\x1b", "\x1f", "\x7f", "\x80", "\x9b", "\ud800"])
def test_control_characters_and_lone_surrogates_are_refused_by_name(char: str) -> None:
    with pytest.raises(ValueError, match="control characters") as caught:
        check_name(f"a{char}b")
    assert repr(char) in str(caught.value)
    assert char not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * (MAX_NAME_BYTES + 1), "é" * 257])
def test_a_name_has_at_most_512_bytes(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{len(name.encode())} bytes; at most 512") as caught:
        check_name(name)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", [None, "", "a\nb", "x" * 513])
def test_an_error_says_what_the_name_was_to_name(name: Any) -> None:
    for noun in ("lock", "pool", "counter"):
        with pytest.raises((TypeError, ValueError), match=rf"(A {noun}'s|The {noun}) name"):
            check_name(name, noun)


def test_people_know_what_any_member_is_asked_for_by_as_the_pool() -> None:
    assert known_as(pool_name("a:b é")) == ("pool", "a:b é")
    assert known_as("pool:accounts:alice") == ("lock", "pool:accounts:alice")
    assert known_as("order:42") == ("lock", "order:42")


# -- quoting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["order", 42], "order:42"),
        (["order", 42, "a:b"], "order:42:a%3Ab"),
        (["50%"], "50%25"),
        (["{tag}"], "%7Btag%7D"),
        (["a b\tc\nd"], "a%20b%09c%0Ad"),
        (["\u00a0\u2028"], "%C2%A0%E2%80%A8"),
        (["\x7f\x9b"], "%7F%C2%9B"),
        (["a\ud800b"], "a%ED%A0%80b"),
        (["größe", "鍵"], "größe:鍵"),
        (["", "a"], ":a"),
        ([None, True, 1.5], "None:True:1.5"),
    ],
)
def test_parts_are_joined_and_quoted(parts: list[object], name: str) -> None:
    assert lock_name(*parts) == name


def test_two_different_tuples_never_meet_in_one_name() -> None:
    texts = ["".join(chars) for size in range(3) for chars in itertools.product(":%{ \n3A", repeat=size)]
    tuples = [(text,) for text in texts if text] + list(itertools.product(texts, repeat=2))
    assert len({lock_name(*parts) for parts in tuples}) == len(tuples)


@pytest.mark.parametrize("parts", [["x" * 513], ["a", "x" * 600], ["é" * 257], ["order", "\n" * 200], ["x" * 100_000]])
def test_what_would_be_too_long_ends_in_a_hash_of_all_of_it(parts: list[str]) -> None:
    name = lock_name(*parts)
    assert check_name(name) == name
    assert name.startswith(":".join(map(quote, parts))[:80])
    assert re.fullmatch(r".{80}%~[0-9a-f]{64}", name)
    assert lock_name(*parts[:-1], f"{parts[-1]}y") != name


def test_no_value_imitates_the_hash_of_another() -> None:
    long = lock_name("x" * 600)
    assert lock_name(long) != long
    assert NameTemplate("{text}").fill({"text": long}) != long


@pytest.mark.parametrize("parts", [[], [""]])
def test_what_cannot_be_a_name_is_refused_from_parts_too(parts: list[str]) -> None:
    with pytest.raises(ValueError, match="name"):
        lock_name(*parts)


def test_every_quoted_text_is_a_name() -> None:
    everything = "".join(map(chr, range(0x11000)))
    for start in range(0, len(everything), 40):
        check_name(quote(everything[start : start + 40]))


# -- templates ------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"There are: pk, slug\.") as caught:
        NameTemplate(template).fill({"slug": "a", "pk": 42})
    assert repr(template) in str(caught.value)


def test_a_template_without_values_says_that_there_are_none() -> None:
    with pytest.raises(ValueError, match="There are: no values"):
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


# -- tokens and keys ------------------------------------------------------------------------------------------------


def test_tokens_have_22_to_128_harmless_characters() -> None:
    for token in ("a" * 22, "A-z_9" * 25):
        assert check_token(token) == token


@pytest.mark.parametrize("token", ["", "a" * 21, "a" * 129, "a" * 22 + "\n", "a" * 22 + " ", "ä" * 22, None, b"a" * 22])
def test_the_error_about_a_token_does_not_repeat_it(token: Any) -> None:
    with pytest.raises(ValueError, match="22 to 128 characters") as caught:
        check_token(token)
    assert "a" * 21 not in str(caught.value)


def test_all_keys_of_a_lock_share_one_hash_tag_whatever_its_name() -> None:
    for name in ("a", "{b}", "}{", "a{"):
        for key in make_keys("site:redislock{0}:", name).all:
            tag = key[key.index("{") + 1 : key.index("}")]
            assert tag == "0"


def test_keys_of_different_names_differ() -> None:
    one, other = make_keys("p{0}:", "a"), make_keys("p{0}:", "b")
    assert set(one.all) & set(other.all) == {"p{0}:index", "p{0}:fence"}
    assert len(set(one.all)) == 5


# -- any text as a name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["order:42", " ", "größe", "a%b", "{a}", "x" * 512, "é" * 256])
def test_a_text_that_can_be_a_name_is_its_own(text: str) -> None:
    assert fit_name(text) == text


@pytest.mark.parametrize(
    ("text", "mark", "name"),
    [
        ("", "", "%:"),
        ("a\nb", "", "%:a%0Ab"),
        ("a\ud800b", "", "%:a%ED%A0%80b"),
        ("%:a", "", "%:%25:a"),
        ("order:42", "2", "%2:order:42"),
        ("order:42", "2:0", "%2%3A0:order:42"),
    ],
)
def test_any_other_text_is_quoted_behind_its_mark(text: str, mark: str, name: str) -> None:
    assert fit_name(text, mark) == check_name(name)


@pytest.mark.parametrize("text", ["x" * 513, "é" * 257, "\n" * 512, "x" * 100_000])
@pytest.mark.parametrize("mark", ["", "2", "m" * 1000])
def test_a_text_that_is_too_long_is_hashed(text: str, mark: str) -> None:
    name = check_name(fit_name(text, mark))
    assert name.startswith("%" + mark[:10])
    assert name != fit_name(f"{text}y", mark)


def test_two_different_texts_never_meet() -> None:
    texts = ["", "%", "%:", "%:a", "a", "%25:a", "%2:a", "2:a", "\n", "%0A", "%:%0A", "x" * 600, fit_name("x" * 600)]
    pairs = list(itertools.product(texts, ["", "2", "%", ":", "2:a"]))
    assert len({fit_name(text, mark) for text, mark in pairs}) == len(pairs)
