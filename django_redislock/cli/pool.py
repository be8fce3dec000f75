"""``redislocks pool``: one pool, or all in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ..base.display import printable
from ..inspection import list_pools
from ..pool import LockPool
from ..store.lock_store import LockStore
from .arguments import add_format, add_using, find_stores, name_of_pool, the_only
from .output import Output, json_or, pool_as_json, pool_portrait, pools_table

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
    stores = find_stores(output, using)
    if name is None:
        output.say(_all(format, stores))
        return
    found = {store.alias: LockPool(name, using=store.alias).info() for store in stores}
    pools = {alias: (alias, pool) for alias, pool in found.items() if pool.members or pool.waiters or pool.locks}
    if pools:
        alias, pool = the_only(pools)
        output.say(json_or(lambda: pool_portrait(pool), pool_as_json(pool, alias), format))
    if not any(pool.members for _, pool in pools.values()):
        raise CommandError(f"The pool {printable(name)} has no members.")


def _all(format: str, stores: Sequence[LockStore]) -> str:
    found = [pool for store in stores for pool in list_pools(using=store.alias)]
    pools = sorted(found, key=lambda pool: pool.name)

    def text() -> str:
        return pools_table(pools, aliases=len(stores) > 1) if pools else "There are no pools."

    return json_or(text, [asdict(pool) for pool in pools], format)
