"""All strings of the code are in the compiled catalogues; a changed string must be translated again."""

from __future__ import annotations

import ast
import re
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

import pytest

import django_redislock

PACKAGE = Path(django_redislock.__file__).parent
FUNCTIONS = {"_", "gettext", "ngettext"}


def messages() -> set[str]:
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                found |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()  # type: ignore[arg-type]
    for path in (PACKAGE / "templates").rglob("*.html"):
        text = path.read_text("utf-8")
        found.update(re.findall(r'{% translate "(.*?)" %}', text))
        for block in re.findall(r"{% blocktranslate.*?%}(.*?){% (?:plural|endblocktranslate) %}", text):
            found.add(re.sub(r"{{ (\w+) }}", r"%(\1)s", block))
    return found


@pytest.mark.parametrize("language", ["de", "zh_Hans"])
def test_every_message_is_translated(language: str) -> None:
    with (PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        catalogue: Any = GNUTranslations(file)
    known = {key[0] if isinstance(key, tuple) else key for key, text in catalogue._catalog.items() if text}
    assert len(messages()) > 50
    assert messages() - known == set()
