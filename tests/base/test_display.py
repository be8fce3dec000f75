"""How names, values, durations and secrets are shown to people."""

from __future__ import annotations

import math
import re
from pprint import pformat
from typing import Any

import pytest

from django_redislock.base.display import Secret, SecretBytes, duration, printable, shown


def test_a_printable_name_stands_as_it_is() -> None:
    assert printable("größe:ключ:鍵:C:\\x") == "größe:ключ:鍵:C:\\x"


@pytest.mark.parametrize("secret", [Secret("token"), SecretBytes(b"token")])
def test_a_secret_is_hidden_in_every_repr_but_equals_its_text(secret: Any) -> None:
    shown_as = [repr(value) for value in (secret, ("a", secret), [secret], {"key": secret})]
    assert not [text for text in (*shown_as, pformat(("a" * 100, [secret]))) if "token" in text]
    plain = b"token" if isinstance(secret, bytes) else "token"
    assert secret == plain
    assert {plain: 1}[secret] == 1
    assert type(type(plain)(secret)) is type(plain)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("order:\u202e42", "'order:\\u202e42'"),
        ("order:42 ", "'order:42 '"),
        (" order:42", "' order:42'"),
        *((f"a{blank}b", f"'a\\u{ord(blank):04x}b'") for blank in "\u115f\u1160\u2800\u3164\uffa0"),
    ],
    ids=ascii,
)
def test_invisible_characters_are_shown_as_a_literal(text: str, literal: str) -> None:
    assert printable(text) == literal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (86400 * 4 + 3600 * 3 + 59, "4 d 3 h"),
        (math.inf, "without end"),
    ],
)
def test_durations_are_short_and_say_their_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_translator_may_put_the_numbers_elsewhere() -> None:
    assert duration(200, lambda text: {"%(whole)d min %(part)d s": "%(part)d s nach %(whole)d"}[text]) == "20 s nach 3"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("order", "'order'"),
        (None, "None"),
        (["a"] * 1000, "['a', 'a', 'a', 'a', 'a', 'a', ...]"),
    ],
    ids=["text", "None", "list"],
)
def test_a_value_in_an_error_is_a_short_literal(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_number_in_an_error_that_python_would_not_write_is_described() -> None:
    # reprlib writes the second since Python 3.14
    assert re.fullmatch("<int that is too long to be shown>|<int instance with roughly 5001 digits.*>", shown(10**5000))


def test_a_long_text_in_an_error_is_cut_in_the_middle() -> None:
    text = shown("a" * 10_000_000 + "b")
    assert len(text) <= 120
    assert text.startswith("'aaaa")
    assert text.endswith("ab'")
    assert "..." in text
