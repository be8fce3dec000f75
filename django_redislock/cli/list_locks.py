"""``redislocks list``: the held locks, once, or (``--watch``) again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from shutil import get_terminal_size
from typing import Any

from django.core.management.base import CommandParser

from ..exceptions import LockUnavailable
from ..store.lock_store import LockStore
from .arguments import add_format, add_using, find_stores, matching, none_matches, positive
from .output import Output, as_json, json_or, table

pause: Callable[[float], None] = time.sleep

# home; cut lines at the edge, or wrap them again; clear the rest of a line; clear the screen below the last one
_HOME, _CUT, _WRAP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[?7l", "\x1b[?7h", "\x1b[K", "\x1b[J"


def repeat(show: Callable[[], str], write: Callable[[str], None], every: float, *, terminal: bool, head: bool) -> None:
    """Write what ``show`` returns, again every so many seconds, until interrupted."""
    try:
        while True:
            text = show()
            if head:
                text = f"{datetime.now():%Y-%m-%d %H:%M:%S}, every {every:g} s\n{text}"
            write(on_screen(text) if terminal else f"{text}\n\n" if head else text)
            pause(every)
    except KeyboardInterrupt:
        pass


def on_screen(text: str) -> str:
    """``text`` in place of what stood on the screen, without flicker, cut where the screen ends."""
    lines = text.splitlines()
    room = max(2, shutil.get_terminal_size().lines - 1)
    if len(lines) > room:
        lines[room - 1 :] = [f"... and {len(lines) - room + 1} more lines"]
    return _HOME + _CUT + "\n".join(f"{line}{_CLEAR_LINE}" for line in lines) + _CLEAR_BELOW + _WRAP


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

    repeat(show, output.say, watch, terminal=terminal, head=people)


def _listing(
    pattern: str, format: str, stores: Sequence[LockStore], *, indent: int | None = None, room: int | None = None
) -> str:
    """``room``: see table()."""
    locks = matching(pattern, stores)

    def text() -> str:
        return table(locks, aliases=len(stores) > 1, room=room) if locks else none_matches(pattern)

    return json_or(text, [as_json(lock) for lock in locks], format, indent=indent)
