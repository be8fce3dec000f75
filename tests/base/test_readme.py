"""The README: what it tells new users to write, and that it stays short."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

from tests.checks import check
from tests.helpers.docs import README


def test_the_settings_that_it_begins_with_pass_all_checks(settings: Any) -> None:
    install = README.read_text("utf-8").partition("\nInstall\n")[2]
    block = re.findall(r"\n    INSTALLED_APPS.*?\n(?=\S)", install, re.S)[0]
    given: dict[str, Any] = {}
    exec(dedent(block), given)
    settings.CACHES, settings.REDISLOCK = given["CACHES"], given["REDISLOCK"]
    assert "django_redislock" in given["INSTALLED_APPS"]
    assert check() == []


def test_it_is_short() -> None:
    assert README.read_text("utf-8").count("\n") <= 200
