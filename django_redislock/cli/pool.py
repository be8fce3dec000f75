"""``redislocks pool``: one pool, or all in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ..base.display import printable
from ..inspection import list_pools
from ..pool import LockPool
from ..store.place import Place
from .arguments import add_format, add_using, name_of_pool
from .formats import json_or, pool_as_json, pool_portrait, pools_table
from .lookup import find_places, the_only
from .output import Output

HELP = (
    "Show a pool: how many members are free, who holds the others, who waits. Exits 1 if it has no members. "
    "Without a name: all pools that have members."
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", type=name_of_pool, help="The pool to show; without it, all are listed."
    )
    add_format(parser)
    add_using(parser)


def handle(output: Output, *, name: str | None, format: str, using: str | None, **options: Any) -> None:
    places = find_places(output, using)
    if name is None:
        output.say(_all(format, places))
        return
    found = {place.alias: LockPool(name, using=place.alias).info() for place in places}
    pools = {alias: (alias, pool) for alias, pool in found.items() if pool.members or pool.waiters or pool.locks}
    if pools:
        alias, pool = the_only(pools)
        output.say(json_or(lambda: pool_portrait(pool), pool_as_json(pool, alias), format))
    if not any(pool.members for _, pool in pools.values()):
        raise CommandError(f"The pool {printable(name)} has no members.")


def _all(format: str, places: Sequence[Place]) -> str:
    found = [pool for place in places for pool in list_pools(using=place.alias)]
    pools = sorted(found, key=lambda pool: pool.name)

    def text() -> str:
        return pools_table(pools, aliases=len(places) > 1) if pools else "There are no pools."

    return json_or(text, [asdict(pool) for pool in pools], format)
