"""What the command prints: tables for people, JSON for programs, and where they go."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.utils import timezone

from ..base.display import duration, printable
from ..inspection.info import LockInfo, LockStatus, SuspensionInfo, WaiterInfo, with_permits
from ..inspection.lists import PoolInfo, PoolSummary

UNWRITTEN = 74  # EX_IOERR


class Output:
    """``say`` prints what was asked for, ``warn`` what is wrong."""

    def __init__(self, command: BaseCommand) -> None:
        self.out, self._err = command.stdout, command.stderr
        self.from_shell: bool = getattr(command, "_called_from_command_line", False)

    def say(self, text: str) -> None:
        try:
            _write(self.out, text)
        except OSError as error:
            if not self.from_shell:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it exits
            if isinstance(error, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)  # whoever read us, head say, has closed the pipe
            problem = f"Could not write the output: {error.strerror or error}"
            raise CommandError(problem, returncode=UNWRITTEN) from error

    def warn(self, text: str) -> None:
        if self._err._out is not None:
            with suppress(OSError):
                self._err.write(text)

    def ask(self, question: str) -> str:
        """Ask where somebody sees it though the output may be redirected; return what was typed. EOFError: nothing."""
        _write(self.out if self.out.isatty() else self._err, question, ending="")
        try:
            return input()
        except UnicodeDecodeError:  # something, but no text
            return ""
        except RuntimeError as error:  # one of the streams is closed
            raise EOFError from error


def _write(stream: OutputWrapper, text: str, ending: str = "\n") -> None:
    """Print ``text``; characters that the terminal's encoding lacks are escaped. A closed stream gets nothing."""
    if stream._out is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding), style_func=str, ending=ending)
    stream.flush()


LISTED = (
    "name alias owner since held_for lease_left expires fence waiters pool_waiters note held suspension handed_over "
    "detached limit permits permits_held status"
)


def as_json(value: Any, *, queues: bool = False, indent: int | None = 2) -> str:
    """``queues``: of a lock, with those who wait for it, and for any member of its pool, the next one first."""
    listed = (*LISTED.split(), *("queue", "pool_queue") * queues)

    def plain(value: Any) -> Any:
        """Times in ISO 8601, durations in seconds; None for what never ends. The status by its value."""
        if isinstance(value, LockStatus):
            return value.value
        if isinstance(value, datetime):
            return None if value.year == datetime.max.year else value.isoformat(timespec="microseconds")
        names = listed if isinstance(value, LockInfo) else [field.name for field in fields(value)]
        facts = {name: getattr(value, name) for name in names}
        return {name: None if fact == math.inf else fact for name, fact in facts.items()}

    return json.dumps(value, indent=indent, default=plain)


GAP = "  "
NARROW = 16  # columns, of a fence: what is no wider is not cut


def locks_table(locks: Sequence[LockInfo], *, aliases: bool = False, room: int | None = None) -> str:
    """``aliases``: with a column of the cache aliases. ``room``: see table()."""
    titles = ("NAME", "ALIAS", "OWNER", "HELD FOR", "LEASE LEFT", "WAITERS", "FENCE", "NOTE")
    rows = []
    for lock in locks:
        waiters = lock.waiters + lock.pool_waiters
        known = (lock.owner, duration(lock.held_for), _left(lock), waiters, lock.fence, lock.note)
        rows.append((with_permits(lock.name, lock), lock.alias * aliases, *known))
    return table(titles, rows, room)


def pools_table(pools: Sequence[PoolSummary], *, aliases: bool = False) -> str:
    """``aliases``: with a column of the cache aliases."""
    rows = [(pool.name, pool.alias * aliases, pool.members, pool.held, pool.waiters) for pool in pools]
    return table(("POOL", "ALIAS", "MEMBERS", "HELD", "WAITERS"), rows)


def portrait(lock: LockInfo) -> str:
    """One lock with everything known about it, and its queue below; of a semaphore, its holders."""
    if lock.limit is not None:
        known = {"NAME": with_permits(lock.name, lock), "WAITERS": lock.waiters}
        return "\n\n".join([_listed(known), _holders(lock.permits), *_queue(lock.queue, lock.waiters)])
    facts = {
        "NAME": lock.name,
        "STATE": "somebody else has written it, or removed its expiry" if lock.status is LockStatus.ERROR else "",
        "OWNER": lock.owner,
        "SINCE": f"{timezone.localtime(lock.since):%Y-%m-%d %H:%M:%S %Z}" if lock.fence else "",
        "HELD FOR": duration(lock.held_for) if lock.fence else "",
        "LEASE LEFT": _left(lock),
        "FENCE": lock.fence or "",
        "TOKEN": lock.token_hint,
        "WAITERS": lock.waiters,
        "FOR ANY": f"{lock.pool_waiters} for any member of the pool" if lock.pool_waiters else "",
        "NOTE": lock.note,
        "SUSPENDED": _planned(lock.suspension) if lock.held and lock.suspension else "",
    }
    of_pool = [f"For any member of the pool:\n{text}" for text in _queue(lock.pool_queue, lock.pool_waiters)]
    return "\n\n".join([_listed(facts), *_queue(lock.queue, lock.waiters), *of_pool])


def _holders(permits: Sequence[LockInfo]) -> str:
    titles = ("HOLDER", "HELD FOR", "LEASE LEFT", "FENCE", "NOTE")
    return table(
        titles, [(each.owner, duration(each.held_for), _left(each), each.fence, each.note) for each in permits]
    )


def _left(lock: LockInfo) -> str:
    return duration(lock.lease_left) + " (being handed over)" * lock.handed_over + " (detached)" * lock.detached


def _planned(suspension: SuspensionInfo) -> str:
    text = f"as soon as nobody holds it, for another {duration(suspension.left)}, by {printable(suspension.owner)}"
    return f"{text}: {printable(suspension.note)}" if suspension.note else text


def pool_portrait(pool: PoolInfo) -> str:
    """A pool: its members in numbers, those that are held, and its queue."""
    facts = {"POOL": pool.name, "MEMBERS": pool.members, "FREE": pool.free, "WAITERS": pool.waiters}
    # who waits for any is counted above
    held = [locks_table([replace(lock, pool_waiters=0) for lock in pool.locks])] if pool.locks else []
    return "\n\n".join([_listed(facts), *held, *_queue(pool.queue, pool.waiters)])


def _queue(queue: Sequence[WaiterInfo], waiters: int) -> list[str]:
    """Those who wait, if any; there may be more of them than ``queue`` has."""
    if not queue:
        return []
    rows = [
        (place, waiter.owner, duration(waiter.waited), "gone" * waiter.gone, waiter.note)
        for place, waiter in enumerate(queue, 1)
    ]
    more = waiters - len(queue)
    return [table(("#", "WAITER", "WAITED", "PROCESS", "NOTE"), rows) + f"\n... and {more} more" * (more > 0)]


def _listed(facts: Mapping[str, object]) -> str:
    return _aligned([(title, printable(str(fact))) for title, fact in facts.items() if fact != ""])


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], room: int | None = None) -> str:
    """Without the columns in which nothing stands.

    ``room``: columns of the terminal, in which the widest texts are cut to fit, but none that is not wider than NARROW;
    None: nothing is cut.
    """
    columns = zip(titles, *([printable(str(value)) for value in row] for row in rows), strict=True)
    lines = list(zip(*(column for column in columns if any(column[1:])), strict=True))
    widths = _widths(lines)
    while room is not None and sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths) > NARROW:
        widths[widths.index(max(widths))] -= 1
    return _aligned([list(map(_cut, line, widths)) for line in lines])


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    ends = itertools.accumulate(map(_width, text))  # in one pass: people choose these texts, and may choose long ones
    return f"{text[: sum(end < width for end in ends)]}…"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = _widths(lines)
    padded = ([text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(GAP.join(line).rstrip() for line in padded)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*lines, strict=True)]


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
