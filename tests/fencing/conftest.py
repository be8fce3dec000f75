"""The databases in which locks are claimed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.db import connections

from tests.helpers.databases import LEVELS, Account, at_level, one_database, with_fences
from tests.helpers.state import LOCK

# whoever holds a lock so asks nobody meanwhile whether it is still there
UNAWARE: dict[str, Any] = {"auto_renew": False, "poll": True}

# how a connection is told how long to wait for others, and asked
LIMITS = {
    "postgresql": ("SET lock_timeout = '7s'", "SHOW lock_timeout"),
    "mysql": ("SET innodb_lock_wait_timeout = 7", "SELECT @@innodb_lock_wait_timeout"),
    "sqlite": ("PRAGMA busy_timeout = 7000", "PRAGMA busy_timeout"),
}

everywhere = pytest.mark.parametrize("account", LEVELS, indirect=True)


def patience(*, set_to_seven: bool = False) -> Any:
    """How long the connection waits for others."""
    setting, reading = LIMITS[connections["default"].vendor]
    with connections["default"].cursor() as cursor:
        if set_to_seven:
            cursor.execute(setting)
        cursor.execute(reading)
        return cursor.fetchone()


def apart(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, for a thread that leaves no connection."""

    def run() -> Any:
        try:
            return call()
        finally:
            connections.close_all()

    return run


@pytest.fixture(params=["sqlite"])
def account(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Account]:
    """A row in a database, or ``everywhere``: at each isolation level of each kind; and the table of fences."""
    kind = request.param.partition(" ")[0]
    options = at_level(request.getfixturevalue(kind), request.param)
    with django_db_blocker.unblock(), one_database("default", options) as made, with_fences("default"):
        yield made
        connections.close_all()


@pytest.fixture
def ledger(sqlite: dict[str, Any], account: Account) -> Iterator[Account]:
    with one_database("ledger", {**sqlite, "NAME": f"{sqlite['NAME']}.ledger"}) as made, with_fences("ledger"):
        yield made


@pytest.fixture
def forget(client: redis.Redis) -> Callable[[], object]:
    """Redis forgets who holds the lock, and the holder does not notice, as after a failover or a flush."""
    return lambda: client.delete(LOCK)
