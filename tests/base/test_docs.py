"""The documentation: what its pages must have."""

from __future__ import annotations

import re
from pathlib import Path

import django_redislock
from tests.helpers.docs import page

SOURCE = Path(django_redislock.__file__).parent


def test_the_page_of_public_names_has_every_one_once() -> None:
    listed = re.findall(r"^\.\. (?:autoclass|autofunction|autoexception|data):: (\w+)$", page("api"), re.M)
    assert sorted(listed) == sorted(django_redislock.__all__)


def test_the_map_of_what_to_change_where_names_every_module_and_none_that_is_not_there() -> None:
    table = page("where-to-change-what").partition("**around it**")[0]
    # the first word of what is quoted, as in "lua/pieces/"; what the second column quotes may be other names
    named = {
        word.strip("/").split("/")[0]
        for word in re.findall(r"``([a-z_/]+)``|\*\*([a-z]+)/\*\*", table)
        for word in word
        if word
    }
    there = {path.stem for path in SOURCE.rglob("*.py") if path.stem != "__init__" and "migrations" not in path.parts}
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - {"migrations"}
    assert there | rooms <= named | {"redislocks"}
    for row in re.findall(r"^(``[^ ].{38})", table, re.M):
        assert {word.strip("/").split("/")[0] for word in re.findall(r"``([a-z_/]+)``", row)} <= there | rooms | {"lua"}
