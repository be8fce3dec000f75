"""The texts that tests compare with the code: README.rst and the pages in docs/."""

import logging
import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
README = ROOT / "README.rst"
PAGES = sorted((ROOT / "docs").glob("*.rst"))


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.rst").read_text("utf-8")


def blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks in this language, including those inside lists."""
    found = re.findall(rf"^( *)\.\. code-block:: {language}\n\n((?:\1    .*\n|\n)+)", text, re.M)
    return [dedent(block) for _, block in found]


def redis_user() -> list[list[str]]:
    """The rules of the Redis user that locks need, and those that pools need as well."""
    lines = re.findall(r"^    ACL SETUSER locks (.*(?:\n        .*)*)", page("redis-user"), re.M)
    return [line.split() for line in lines]


class Undocumented(logging.Handler):
    """Notes the messages whose event does not stand in docs/signals.rst, with its level and its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._rows = dict(re.findall(r"^``([a-z-]+)`` +((?:DEBUG|INFO|WARNING|ERROR).+)$", page("signals"), re.M))

    def emit(self, record: logging.LogRecord) -> None:
        message = str(record.msg)
        found = re.match(r"event=([a-z-]+)", message)
        row = self._rows.get(found[1], "") if found else ""
        keys = {*re.findall(r" (\w+)=%s", message)}
        if record.levelname not in row or not keys <= {*re.findall(r"``(\w+)``", row)}:
            self.found.append(f"{record.levelname} {message}")
