"""Databases for tests: an account with a balance, and which locks are held at the moment of COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import IsolationLevel

from django_redislock import list_locks
from django_redislock.models import Fence

LEVELS: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgres read committed": {},
    "postgres repeatable read": {"isolation_level": IsolationLevel.REPEATABLE_READ},
    "postgres serializable": {"isolation_level": IsolationLevel.SERIALIZABLE},
    "mariadb read committed": {},
    "mariadb repeatable read": {"isolation_level": "repeatable read"},
}


class Account:
    """One row with a number, read and written over the connection of the calling thread."""

    def __init__(self, alias: str, number: int = 1) -> None:
        self.alias = alias
        self.number = number
        self.options: dict[str, Any] = connections.settings[alias]

    @property
    def balance(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT balance FROM account WHERE id = %s", [self.number])
            return int(cursor.fetchone()[0])

    @balance.setter
    def balance(self, value: int) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE account SET balance = %s WHERE id = %s", [value, self.number])

    def book(self) -> int:
        """Read, add one, write. When two do so at once, one update is lost."""
        self.balance = balance = self.balance + 1
        return balance


def at_level(options: dict[str, Any], level: str) -> dict[str, Any]:
    """The entry for DATABASES with the options for one of the LEVELS."""
    return {**options, "OPTIONS": {**options.get("OPTIONS", {}), **LEVELS[level]}}


def sqlite_file(folder: Path) -> dict[str, Any]:
    """The DATABASES entry for a new file, in which readers see the last commit while somebody writes."""
    options = {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "tests.sqlite3"), "OPTIONS": options}


def configure(alias: str, options: dict[str, Any]) -> None:
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: {**options}})[alias]


@contextmanager
def one_database(alias: str, options: dict[str, Any], accounts: int = 1) -> Iterator[Account]:
    """Put a database with a new table under an alias; the previous database comes back at the end."""
    before = connections[alias] if alias in connections.settings else None
    with patch.dict(connections.settings):
        configure(alias, options)
        connections[alias] = connections.create_connection(alias)
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS account")
                cursor.execute("CREATE TABLE account (id integer PRIMARY KEY, balance integer NOT NULL)")
                cursor.executemany("INSERT INTO account VALUES (%s, 0)", [[1 + number] for number in range(accounts)])
            yield Account(alias)
        finally:
            connections[alias].close()
            del connections[alias]
            if before is not None:
                connections[alias] = before


@contextmanager
def with_fences(alias: str) -> Iterator[None]:
    """Create an empty table of fences in this database."""
    with connections[alias].schema_editor() as editor:
        if Fence._meta.db_table in connections[alias].introspection.table_names():
            editor.delete_model(Fence)
        editor.create_model(Fence)
    yield


class Commits:
    """Every COMMIT: its alias, and the names of the locks that are held before and after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, list[str], list[str]]] = []
        original: Callable[[BaseDatabaseWrapper], None] = BaseDatabaseWrapper.commit

        def commit(connection: BaseDatabaseWrapper) -> None:
            before = [lock.name for lock in list_locks()]
            original(connection)
            self.seen.append((connection.alias, before, [lock.name for lock in list_locks()]))

        monkeypatch.setattr(BaseDatabaseWrapper, "commit", commit)
