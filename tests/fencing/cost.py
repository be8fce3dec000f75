"""``python -m tests.fencing.cost``: what a claim adds to a lock and a transaction, on each database."""

import os
import sys
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory
from timeit import timeit

import django

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.conf import settings  # noqa: E402

from django_redislock import locked_atomic  # noqa: E402
from redisserver import redis_server  # noqa: E402
from tests.helpers import databases  # noqa: E402
from tests.helpers.databases import Account, one_database, with_fences  # noqa: E402

ROUNDS, SECTIONS = 40, 50


def microseconds(account: Account, *, fenced: bool) -> float:
    section = locked_atomic("account:1", fenced=fenced)(account.book)
    return timeit(section, number=SECTIONS) / SECTIONS * 1e6


with ExitStack() as stack:
    settings.CACHES["default"]["LOCATION"] = stack.enter_context(redis_server()).url
    wal = {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"}
    file = f"{stack.enter_context(TemporaryDirectory())}/cost.sqlite3"
    for name, options in {
        "PostgreSQL": stack.enter_context(databases.postgres_server()),
        "MariaDB": stack.enter_context(databases.mariadb_server()),
        "SQLite": {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": wal},
    }.items():
        with one_database("default", options) as account, with_fences("default"):
            pairs = [(microseconds(account, fenced=False), microseconds(account, fenced=True)) for _ in range(ROUNDS)]
        ratio = median(claimed / plain for plain, claimed in pairs)
        plain, claimed = (median(column) for column in zip(*pairs, strict=True))
        print(f"{name:10}  {plain:5.0f} us without a claim, {claimed:5.0f} us with one, {ratio:.2f} times")
