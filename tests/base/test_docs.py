"""The documentation: what its pages must have."""

from __future__ import annotations

import re
from pathlib import Path

import django_redislock

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_public_names_has_every_one_once() -> None:
    text = (DOCS / "api.rst").read_text("utf-8")
    listed = re.findall(r"^\.\. (?:autoclass|autofunction|autoexception|data):: (\w+)$", text, re.M)
    assert sorted(listed) == sorted(django_redislock.__all__)
