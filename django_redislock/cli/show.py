"""``redislocks show``: one lock and its queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from .arguments import add_format, add_using, find_held, find_stores, name_of_lock, not_held, the_only
from .output import Output, json_or, portrait, with_queue

HELP = "Show one lock: its holder, and its queue in order. Exits 1 if it is free."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", type=name_of_lock, help="The lock to show.")
    add_format(parser)
    add_using(parser)


def handle(output: Output, *, name: str, format: str, using: str | None, **options: Any) -> None:
    locks = find_held([name], find_stores(output, using))
    if not locks:
        raise CommandError("\n".join(not_held([name])))
    lock = the_only({lock.alias: lock for lock in locks})
    output.say(json_or(lambda: portrait(lock), with_queue(lock), format))
