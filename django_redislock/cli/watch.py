"""``redislocks list --watch``: the same again and again, in place on a terminal, one below the other elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime

pause: Callable[[float], None] = time.sleep

# home; cut lines at the edge, or wrap them again; clear the rest of a line; clear the screen below the last one
_HOME, _CUT, _WRAP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[?7l", "\x1b[?7h", "\x1b[K", "\x1b[J"


def watch(show: Callable[[], str], write: Callable[[str], None], every: float, *, terminal: bool, head: bool) -> None:
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
