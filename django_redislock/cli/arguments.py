"""How the command line of ``redislocks`` is read, and which locks it means."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser

from ..base.display import printable
from ..base.names import check_name
from ..base.times import seconds, ttl_seconds
from ..inspection import LockInfo, get_lock
from ..inspection.lists import list_everywhere
from ..pool import LockPool
from ..store.lock_store import LockStore
from ..store.stores import get_stores
from .output import Output

LONGEST = timedelta(days=36500)  # calendars begin somewhere


class SubcommandParser(CommandParser):
    """``takes_program``: what follows ``--`` is a program with its arguments, and is not parsed."""

    takes_program = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.takes_program:
            return super().parse_known_args(args, namespace)
        end = args.index("--") if "--" in args else len(args)
        if args[end + 2 : end + 3] == ["--"] and args[end + 1].startswith("-"):
            end += 2  # a name that begins with a dash
        parsed: Namespace
        parsed, rest = super().parse_known_args(args[:end], namespace)
        parsed.program = args[end + 1 :]
        if not any(parsed.program[:1]) and not any(word.startswith("-") for word in rest):  # argparse reports those
            self.error("the program to run must follow --, as in: run nightly -- make report")
        return parsed, rest


def add_format(parser: CommandParser) -> None:
    parser.add_argument(
        "--format", choices=["table", "json"], default="table", help="table: for people; json: for programs."
    )


def add_using(parser: CommandParser, default: str = "all that have locks") -> None:
    parser.add_argument("--using", metavar="ALIAS", help=f"Alias in CACHES; by default {default}.")


def name_of_lock(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def name_of_pool(text: str) -> str:
    try:
        return LockPool(text).name
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def positive(text: str) -> float:
    return _seconds(text, seconds)


def ttl_of(text: str) -> float:
    return _seconds(text, ttl_seconds)


def not_negative(text: str) -> float:
    return _seconds(text, partial(seconds, positive=False))


def _seconds(text: str, check: Callable[[object, str], float]) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    try:
        return check(number, "it")
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def age(text: str) -> timedelta:
    found = re.fullmatch(r"([1-9]\d{0,5})([dhm])", text)
    if found is None:
        raise ArgumentTypeError(f"must be a time such as 30d, 12h or 90m, not {text!r}")
    time = timedelta(**{{"d": "days", "h": "hours", "m": "minutes"}[found[2]]: int(found[1])})
    if time > LONGEST:
        raise ArgumentTypeError(f"must be at most {LONGEST.days}d, not {text!r}")
    return time


def exit_status(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise ArgumentTypeError(f"an exit status must be a number from 0 to 255, not {text!r}")
    return int(text)


T = TypeVar("T")


def find_stores(output: Output, using: str | None) -> list[LockStore]:
    """That of ``using``; None: those of all aliases that have locks."""
    stores = get_stores(using)
    for store in stores:
        warn_of_memory(output, store)
    return stores


def other_aliases(using: str | None) -> str:
    """What to say behind the error of one alias of several."""
    return "" if using or len(get_stores(None)) == 1 else " (With --using, only one alias is asked.)"


def warn_of_memory(output: Output, store: LockStore) -> None:
    if store.memory:
        output.warn(
            f"The cache alias {store.alias!r} is not Redis: its locks live in the memory of each process, and this one "
            f"sees and guards only its own."
        )


def find_held(names: Iterable[str], stores: Sequence[LockStore]) -> list[LockInfo]:
    """The locks of these names that are held, wherever they are."""
    found = [get_lock(name, using=store.alias) for name in names for store in stores]
    return [lock for lock in found if lock is not None]


def the_only(found: Mapping[str, T]) -> T:
    """What there is under one alias; CommandError if there are several."""
    if len(found) > 1:
        raise CommandError(f"Found in several cache aliases ({', '.join(found)}): give --using.", returncode=2)
    return next(iter(found.values()))


def matching(pattern: str, stores: Sequence[LockStore]) -> list[LockInfo]:
    """The held locks whose names match, wherever they are, by name."""
    return list_everywhere(pattern, stores[0].alias if len(stores) == 1 else None)


def none_matches(pattern: str) -> str:
    return "No locks are held." if pattern == "*" else f"No held lock matches {printable(pattern) or repr(pattern)}."


def label(lock: LockInfo, several: bool) -> str:
    """The lock's name, with its alias where there are several."""
    return f"{printable(lock.name)} ({printable(lock.alias)})" if several else printable(lock.name)


def not_held(names: Iterable[str]) -> list[str]:
    """What to say of locks that nobody holds."""
    free = [printable(name) for name in names]
    lines = [f"Not held: {', '.join(free)}"] if free else []
    if any(character in name for name in free for character in "*?["):
        lines.append("NAME is not a pattern: use list PATTERN, or clear --match PATTERN.")
    return lines
