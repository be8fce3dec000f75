"""``redislocks list``: the held locks, once or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

from django.core.management.base import CommandParser

from ..exceptions import LockUnavailable
from ..store.lock_store import LockStore
from .arguments import add_format, add_using, positive
from .formats import as_json, json_or, table
from .lookup import find_stores, matching, none_matches
from .output import Output
from .watch import watch as keep_showing

HELP = "List the held locks: who holds them, for how long, how much lease is left, and how many wait."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "pattern", metavar="PATTERN", nargs="?", default="*", help="Shell-style pattern of names, e.g. 'order:*'."
    )
    add_format(parser)
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=positive,
        const=2.0,
        help="Repeat every SECONDS (default 2) until interrupted. JSON: one line each time.",
    )
    add_using(parser)


def handle(
    output: Output, *, pattern: str, format: str, watch: float | None, using: str | None, **options: Any
) -> None:
    stores = find_stores(output, using)
    if watch is None:
        output.say(_listing(pattern, format, stores, indent=2))
        return
    people = format == "table"
    terminal = people and output.out.isatty()

    def show() -> str:
        try:
            return _listing(pattern, format, stores, room=get_terminal_size().columns if terminal else None)
        except LockUnavailable as error:
            if not people:
                raise
            return str(error)  # keep watching: it may come back

    keep_showing(show, output.say, watch, terminal=terminal, head=people)


def _listing(
    pattern: str, format: str, stores: Sequence[LockStore], *, indent: int | None = None, room: int | None = None
) -> str:
    """``room``: see table()."""
    locks = matching(pattern, stores)

    def text() -> str:
        return table(locks, aliases=len(stores) > 1, room=room) if locks else none_matches(pattern)

    return json_or(text, [as_json(lock) for lock in locks], format, indent=indent)
