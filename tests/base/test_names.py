"""Names of locks, of pools and of their members, and tokens."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from django_redislock import Lock, lock_name
from django_redislock.base.names import (
    MAX_NAME_BYTES,
    can_be_asked_for,
    check_name,
    check_token,
    fit_name,
    is_name,
    known_as,
    member_name,
    pool_name,
    quote,
    read_member,
    split_member,
    unquoted,
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


def test_whether_a_text_can_name_a_lock_is_told_without_an_error() -> None:
    assert [is_name(text) for text in ("a", "é" * 256, "", "a\n", "x" * 513, "pool:accounts:")] == [True] * 2 + [
        False
    ] * 4


# -- pools and their members ----------------------------------------------------------------------------------------


def test_the_name_for_any_member_of_a_pool_is_no_lock_name() -> None:
    with pytest.raises(ValueError, match=r"^'pool:accounts:' is a pool, not a lock: LockPool\.acquire\(\) takes any"):
        Lock("pool:accounts:")
    assert can_be_asked_for("pool:accounts:")
    assert can_be_asked_for("order:42")
    assert not can_be_asked_for(f"pool:{'x' * 507}:")  # no member would fit behind it
    assert not can_be_asked_for("a\n")


def test_the_name_for_any_member_is_shown_as_the_pool() -> None:
    assert known_as(pool_name("a:b é")) == ("pool", "a:b é")
    assert known_as("pool:accounts:alice") == ("lock", "pool:accounts:alice")
    assert known_as("order:42") == ("lock", "order:42")


@pytest.mark.parametrize("key", ["alice", "a:b", "50% {x}", "\u00a0", "a\ud800b"])
def test_the_name_of_a_member_tells_its_pool_and_itself(key: str) -> None:
    name = member_name("accounts: all", key)
    assert name == lock_name("pool", "accounts: all", key)
    pool, member = split_member(name) or ("", "")
    assert (pool, unquoted(member)) == (pool_name("accounts: all"), key)
    assert read_member(pool, member.encode(errors="surrogatepass")) == member


@pytest.mark.parametrize(
    "name", ["order:42", "pool", "pool:accounts", "pool:accounts:", "pool::a", "pool:a:b:c", "pools:a:b"]
)
def test_other_locks_are_no_members(name: str) -> None:
    assert split_member(name) is None


@pytest.mark.parametrize("raw", [b"", b"\xff", b"a:b", b"a b", b"%41", b"x" * 600])
def test_a_name_that_the_package_cannot_have_written_is_no_member(raw: bytes) -> None:
    assert read_member("pool:accounts:", raw) is None


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
def test_a_name_that_would_be_too_long_ends_in_a_hash_of_the_whole(parts: list[str]) -> None:
    name = lock_name(*parts)
    assert check_name(name) == name
    assert name.startswith(":".join(map(quote, parts))[:80])
    assert re.fullmatch(r".{80}%~[0-9a-f]{64}", name)
    assert lock_name(*parts[:-1], f"{parts[-1]}y") != name


def test_no_value_imitates_the_hash_of_another() -> None:
    long = lock_name("x" * 600)
    assert lock_name(long) != long


@pytest.mark.parametrize("parts", [[], [""]])
def test_what_cannot_be_a_name_is_refused_from_parts_too(parts: list[str]) -> None:
    with pytest.raises(ValueError, match="name"):
        lock_name(*parts)


def test_every_quoted_text_is_a_name() -> None:
    everything = "".join(map(chr, range(0x11000)))
    for start in range(0, len(everything), 40):
        check_name(quote(everything[start : start + 40]))


# -- tokens ---------------------------------------------------------------------------------------------------------


def test_tokens_have_22_to_128_harmless_characters() -> None:
    for token in ("a" * 22, "A-z_9" * 25):
        assert check_token(token) == token


@pytest.mark.parametrize("token", ["", "a" * 21, "a" * 129, "a" * 22 + "\n", "a" * 22 + " ", "ä" * 22, None, b"a" * 22])
def test_the_error_about_a_token_does_not_repeat_it(token: Any) -> None:
    with pytest.raises(ValueError, match="22 to 128 characters") as caught:
        check_token(token)
    assert "a" * 21 not in str(caught.value)


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
