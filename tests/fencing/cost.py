"""``python -m tests.fencing.cost``: what a claim adds to a lock and a transaction, on each database."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import django

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.conf import settings  # noqa: E402

from django_redislock import locked_atomic  # noqa: E402
from redisserver import redis_server  # noqa: E402
from tests.helpers import mariadb, postgres  # noqa: E402
from tests.helpers.databases import Account, one_database, with_fences  # noqa: E402

ROUNDS, SECTIONS = 40, 50


@contextmanager
def databases() -> Iterator[dict[str, dict[str, Any]]]:
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        wal = {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"}
        yield {
            "PostgreSQL": stack.enter_context(postgres.postgres_server(postgres.find_programs())),
            "MariaDB": stack.enter_context(mariadb.mariadb_server(mariadb.find_server())),
            "SQLite": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/cost.sqlite3", "OPTIONS": wal},
        }


def microseconds(account: Account, *, fenced: bool) -> float:
    """For one section."""
    began = perf_counter()
    for _ in range(SECTIONS):
        with locked_atomic("account:1", fenced=fenced):
            account.book()
    return (perf_counter() - began) / SECTIONS * 1e6


def main() -> None:
    with redis_server() as server, databases() as found:
        settings.CACHES["default"]["LOCATION"] = server.url
        for name, options in found.items():
            with one_database("default", options) as account, with_fences("default"):
                pairs = [
                    (microseconds(account, fenced=False), microseconds(account, fenced=True)) for _ in range(ROUNDS)
                ]
            ratio = median(claimed / plain for plain, claimed in pairs)
            plain, claimed = (median(column) for column in zip(*pairs, strict=True))
            print(f"{name:10}  {plain:5.0f} us without a claim, {claimed:5.0f} us with one, {ratio:.2f} times")


if __name__ == "__main__":
    main()
