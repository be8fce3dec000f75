"""How the command line of ``redislocks`` is read."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ..base.names import check_name
from ..base.times import seconds, ttl_seconds
from ..pool import LockPool

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
