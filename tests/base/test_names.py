"""Names of locks, how values in them are quoted, and how durations are shown."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Counter, Lock, LockPool, lock_name
from tests import inside


@pytest.mark.parametrize("name", ["a", "order:42", " ", "größe", "%", "x" * 512, "é" * 256, "\u202e"])
def test_these_are_names(name: str) -> None:
    assert Lock(name).name == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, r"name must be a str, not .*(None|42|order)") for name in (None, 42, b"order", {"order": 1})),
        ("", "name must not be empty"),
        *((f"a{char}b", r"contains .*: control characters and lone") for char in "\x00\n\x1b\x7f\x80\ud800"),
        ("x" * 513, "has 513 bytes; at most 512"),
        ("é" * 257, "has 514 bytes; at most 512"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_name_is_refused_with_a_short_error_that_says_what_it_was_to_name(name: Any, text: str) -> None:
    nouns: dict[str, Callable[[Any], object]] = {"lock": Lock, "pool": LockPool, "counter": Counter}
    for noun, make in nouns.items():
        with pytest.raises((TypeError, ValueError), match=text) as caught:
            make(name)
        error = str(caught.value)
        assert error.startswith((f"A {noun}'s name ", f"The {noun} name "))
        assert error.isprintable()
        assert len(error) < 250


@pytest.mark.parametrize("key", ["alice", "a:b", "50% {x}", "\u00a0", "a\ud800b"])
def test_the_name_of_a_member_tells_its_pool_and_itself(key: str) -> None:
    pool = LockPool("accounts: all")
    pool.extend([key])
    with pool.acquire() as member:
        assert member.key == key
        assert Lock(lock_name("pool", "accounts: all", key)).owned()
    with pytest.raises(ValueError, match=r"^'pool:accounts:' is a pool, not a lock: LockPool\.acquire\(\) takes any"):
        Lock("pool:accounts:")


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["order", 42, "a:b"], "order:42:a%3Ab"),
        (["50%"], "50%25"),
        (["{tag}"], "%7Btag%7D"),
        (["a b\tc\nd\u00a0\x7f"], "a%20b%09c%0Ad%C2%A0%7F"),
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
    for parts in ([], [""]):
        with pytest.raises(ValueError, match="name"):
            lock_name(*parts)


@pytest.mark.parametrize("parts", [["x" * 513], ["a", "x" * 600], ["é" * 257], ["order", "\n" * 200]])
def test_a_name_that_would_be_too_long_ends_in_a_hash_of_the_whole(parts: list[str]) -> None:
    name = lock_name(*parts)
    assert Lock(name).name == name
    assert name.startswith(":".join(map(lock_name, parts))[:80])
    assert re.fullmatch(r".{80}%~[0-9a-f]{64}", name)
    assert lock_name(*parts[:-1], f"{parts[-1]}y") != name
    assert lock_name(name) != name  # no value imitates the hash of another


def test_two_texts_or_versions_of_cache_lock_never_meet_and_what_can_be_a_name_is_its_own() -> None:
    texts = ["", "%", "%:", "%:a", "a", "%25:a", "%2:a", "2:a", "\n", "%0A", "a\ud800b", "x" * 600, "é" * 257]
    texts += [inside.name_for("x" * 600)]
    pairs = list(itertools.product(texts, ["", "2", "%", ":", "2:a", "m" * 1000]))
    found = {inside.name_for(text, version) for text, version in pairs}
    assert len(found) == len(pairs)
    assert all(len(name.encode()) <= 512 for name in found)
    for text in ("order:42", " ", "größe", "a%b", "{a}", "x" * 512):
        assert inside.name_for(text, "") == text
    assert [inside.name_for("order:42", version) for version in ("2", "2:0")] == ["%2:order:42", "%2%3A0:order:42"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (86400 * 4 + 3600 * 3 + 59, "4 d 3 h"),
        (math.inf, "without end"),
    ],
)
def test_durations_are_short_and_say_their_units(seconds: float, text: str) -> None:
    assert inside.in_words(seconds) == text
