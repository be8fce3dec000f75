"""The README: its map of the package, and what it tells new users to write."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import django_redislock
from tests.checks import check

SOURCE = Path(django_redislock.__file__).parent
README = Path(__file__).parents[2] / "README.rst"


def test_the_map_of_what_to_change_where_names_every_module_and_none_that_is_not_there() -> None:
    text = README.read_text("utf-8").partition("\nWhere to change what\n")[2]
    table = text.partition("**around it**")[0]
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


def test_the_settings_that_it_begins_with_pass_all_checks(settings: Any) -> None:
    install = README.read_text("utf-8").partition("\nInstall\n")[2]
    block = re.findall(r"\n    INSTALLED_APPS.*?\n(?=\S)", install, re.S)[0]
    given: dict[str, Any] = {}
    exec(dedent(block), given)
    settings.CACHES, settings.REDISLOCK = given["CACHES"], given["REDISLOCK"]
    assert "django_redislock" in given["INSTALLED_APPS"]
    assert check() == []
