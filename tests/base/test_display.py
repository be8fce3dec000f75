"""How durations are shown to people."""

from __future__ import annotations

import math

import pytest

from tests.inside import in_words


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
    assert in_words(seconds) == text


def test_a_translator_may_put_the_numbers_elsewhere() -> None:
    assert in_words(200, lambda text: {"%(whole)d min %(part)d s": "%(part)d s nach %(whole)d"}[text]) == "20 s nach 3"
