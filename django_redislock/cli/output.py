"""What the command prints: tables for people, JSON for programs, and where they go."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.utils import timezone

from ..base.display import duration, printable
from ..inspection import LockInfo, LockStatus, PoolInfo, PoolSummary, SuspensionInfo, WaiterInfo

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
        except RuntimeError as error:  # one of the streams is closed
            raise EOFError from error


def _write(stream: OutputWrapper, text: str, ending: str | None = None) -> None:
    """Print ``text``; characters that the terminal's encoding lacks are escaped. A closed stream gets nothing."""
    if stream._out is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    known = text.encode(encoding, "backslashreplace").decode(encoding)
    raw = getattr(stream, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        stream.flush()
        whole = io.StringIO()
        OutputWrapper(whole, stream.ending).write(known, style_func=str, ending=ending)
        _write_all(raw, whole.getvalue().encode(encoding))
        return
    stream.write(known, style_func=str, ending=ending)
    stream.flush()


def _write_all(raw: io.RawIOBase, data: bytes) -> None:
    """``python -u``: a raw stream may write only part of it, and Python's text streams do not notice."""
    rest = memoryview(data)
    while rest:
        written = raw.write(rest)
        if written is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]


GAP = "  "
FOREIGN = "somebody else has written it, or removed its expiry"
NARROW = 16  # columns, of a fence: what is no wider is not cut


def json_or(text: Callable[[], str], data: object, format: str, *, indent: int | None = 2) -> str:
    """``data`` as JSON if that is the ``format``, else the ``text``."""
    return json.dumps(data, indent=indent) if format == "json" else text()


def as_json(lock: LockInfo) -> dict[str, Any]:
    """Times in ISO 8601, durations in seconds; None where a lease or a suspension never ends."""
    endless = lock.lease_left == math.inf
    return {
        "name": lock.name,
        "alias": lock.alias,
        "owner": lock.owner,
        "since": lock.since.isoformat(timespec="microseconds"),
        "held_for": lock.held_for,
        "lease_left": None if endless else lock.lease_left,
        "expires": None if endless else lock.expires.isoformat(timespec="microseconds"),
        "fence": lock.fence,
        "waiters": lock.waiters,
        "pool_waiters": lock.pool_waiters,
        "note": lock.note,
        "held": lock.held,
        "suspension": None if lock.suspension is None else _suspension_as_json(lock.suspension),
        "handed_over": lock.handed_over,
    }


def _suspension_as_json(suspension: SuspensionInfo) -> dict[str, Any]:
    return {**asdict(suspension), "left": None if suspension.left == math.inf else suspension.left}


def with_queue(lock: LockInfo) -> dict[str, Any]:
    """The same with those who wait, for this lock and for any member of its pool, the next one first."""
    queues = {"queue": lock.queue, "pool_queue": lock.pool_queue}
    return {**as_json(lock), **{name: [asdict(waiter) for waiter in queue] for name, queue in queues.items()}}


def pool_as_json(pool: PoolInfo, alias: str) -> dict[str, Any]:
    return {
        "name": pool.name,
        "alias": alias,
        "members": pool.members,
        "free": pool.free,
        "waiters": pool.waiters,
        "locks": [as_json(lock) for lock in pool.locks],
        "queue": [asdict(waiter) for waiter in pool.queue],
    }


def table(locks: Sequence[LockInfo], *, aliases: bool = False, room: int | None = None) -> str:
    """``aliases``: with a column of the cache aliases. ``room``: columns of the terminal, in which the long texts are
    cut to fit; None: nothing is cut.
    """
    header = ("NAME", *["ALIAS"] * aliases, "OWNER", "HELD FOR", "LEASE LEFT", "FENCE", "WAITERS", "NOTE")
    rows: list[tuple[str, ...]] = [header]
    for lock in locks:
        name = printable(lock.name), *[printable(lock.alias)] * aliases
        times = duration(lock.held_for), _left(lock)
        numbers = str(lock.fence), str(lock.waiters + lock.pool_waiters)
        rows.append((*name, printable(lock.owner), *times, *numbers, printable(lock.note)))
    if not any(lock.note for lock in locks):
        rows = [row[:-1] for row in rows]
    return columns(rows if room is None else _fit(rows, room))


def portrait(lock: LockInfo) -> str:
    """One lock with everything known about it, and its queue below."""
    since = timezone.localtime(lock.since)
    facts = {
        "NAME": printable(lock.name),
        "STATE": FOREIGN if lock.status is LockStatus.ERROR else "",
        "OWNER": printable(lock.owner),
        "SINCE": f"{since:%Y-%m-%d %H:%M:%S %Z}" if lock.fence else "",
        "HELD FOR": duration(lock.held_for) if lock.fence else "",
        "LEASE LEFT": _left(lock),
        "FENCE": str(lock.fence or ""),
        "TOKEN": printable(lock.token_hint),
        "WAITERS": str(lock.waiters),
        "FOR ANY": f"{lock.pool_waiters} for any member of the pool" if lock.pool_waiters else "",
        "NOTE": printable(lock.note),
        "SUSPENDED": _planned(lock.suspension) if lock.held and lock.suspension else "",
    }
    of_pool = [f"For any member of the pool:\n{text}" for text in _queue(lock.pool_queue, lock.pool_waiters)]
    known = [(title, text) for title, text in facts.items() if text]
    return "\n\n".join([columns(known), *_queue(lock.queue, lock.waiters), *of_pool])


def _left(lock: LockInfo) -> str:
    return duration(lock.lease_left) + " (being handed over)" * lock.handed_over


def _planned(suspension: SuspensionInfo) -> str:
    text = f"as soon as nobody holds it, for another {duration(suspension.left)}, by {printable(suspension.owner)}"
    return f"{text}: {printable(suspension.note)}" if suspension.note else text


def pools_table(pools: Sequence[PoolSummary], *, aliases: bool = False) -> str:
    """``aliases``: with a column of the cache aliases."""
    rows: list[tuple[str, ...]] = [("POOL", *["ALIAS"] * aliases, "MEMBERS", "HELD", "WAITERS")]
    for pool in pools:
        numbers = str(pool.members), str(pool.held), str(pool.waiters)
        rows.append((printable(pool.name), *[printable(pool.alias)] * aliases, *numbers))
    return columns(rows)


def pool_portrait(pool: PoolInfo) -> str:
    """A pool: its members in numbers, those that are held, and its queue."""
    facts = [
        ("POOL", printable(pool.name)),
        ("MEMBERS", str(pool.members)),
        ("FREE", str(pool.free)),
        ("WAITERS", str(pool.waiters)),
    ]
    # who waits for any is counted above
    held = [table([replace(lock, pool_waiters=0) for lock in pool.locks])] if pool.locks else []
    return "\n\n".join([columns(facts), *held, *_queue(pool.queue, pool.waiters)])


def _queue(queue: Sequence[WaiterInfo], waiters: int) -> list[str]:
    """Those who wait, if any; there may be more of them than ``queue`` has."""
    if not waiters:
        return []
    gone, note = any(waiter.gone for waiter in queue), any(waiter.note for waiter in queue)
    rows: list[tuple[str, ...]] = [("#", "WAITER", "WAITED", *["PROCESS"] * gone, *["NOTE"] * note)]
    for place, waiter in enumerate(queue, 1):
        process, text = "gone" if waiter.gone else "", printable(waiter.note)
        rows.append((str(place), printable(waiter.owner), duration(waiter.waited), *[process] * gone, *[text] * note))
    more = waiters - len(queue)
    return [columns(rows) + (f"\n... and {more} more" if more > 0 else "")]


def _fit(rows: Sequence[Sequence[str]], room: int) -> list[list[str]]:
    """The rows with the widest columns cut until all have room, or none is wider than ``NARROW``."""
    widths = _widths(rows)
    while sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths) > NARROW:
        widths[widths.index(max(widths))] -= 1
    return [list(map(_cut, row, widths)) for row in rows]


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    while _width(text) >= width:
        text = text[:-1]
    return f"{text}…"


def columns(rows: Sequence[Sequence[str]]) -> str:
    widths = _widths(rows)
    return "\n".join(GAP.join(map(_pad, row, widths)).rstrip() for row in rows)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
