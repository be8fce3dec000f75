"""The databases in which locks are claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.db import connections

from tests.helpers.databases import LEVELS, Account, at_level, one_database, with_fences
from tests.helpers.state import LOCK

# whoever holds a lock so asks nobody meanwhile whether it is still there
UNAWARE: dict[str, Any] = {"auto_renew": False, "poll": True}

on_sqlite = pytest.mark.parametrize("account", ["sqlite"], indirect=True)

# how a connection is told how long to wait for others, and asked
LIMITS = {
    "postgresql": ("SET lock_timeout = '7s'", "SHOW lock_timeout"),
    "mysql": ("SET innodb_lock_wait_timeout = 7", "SELECT @@innodb_lock_wait_timeout"),
    "sqlite": ("PRAGMA busy_timeout = 7000", "PRAGMA busy_timeout"),
}


def patience(*, set_to_seven: bool = False) -> Any:
    """How long the connection waits for others."""
    setting, reading = LIMITS[connections["default"].vendor]
    with connections["default"].cursor() as cursor:
        if set_to_seven:
            cursor.execute(setting)
        cursor.execute(reading)
        return cursor.fetchone()


@pytest.fixture(params=LEVELS)
def account(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Account]:
    """A row in each kind of database, at each isolation level, and the table of fences."""
    kind = request.param.partition(" ")[0]
    options = at_level(request.getfixturevalue(kind), request.param)
    with django_db_blocker.unblock(), one_database("default", options) as made, with_fences("default"):
        yield made


@pytest.fixture
def ledger(sqlite: dict[str, Any], account: Account) -> Iterator[Account]:
    """Another database, with fences too."""
    options = {**sqlite, "NAME": f"{sqlite['NAME']}.ledger"}
    with one_database("ledger", options) as made, with_fences("ledger"):
        yield made


@pytest.fixture
def forget(client: redis.Redis) -> Callable[[], None]:
    """Redis forgets who holds the lock, and the holder does not notice, as after a failover or a flush."""

    def forget() -> None:
        assert client.delete(LOCK)

    return forget


@pytest.fixture(autouse=True)
def _closed(django_db_blocker: Any) -> Iterator[None]:
    yield
    with django_db_blocker.unblock():
        connections.close_all()
