"""Databases of the tests' own: an account with a balance, and who holds which lock at the moment of COMMIT."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_redislock import list_locks
from django_redislock.models import Fence
from tests.helpers.actors import GENEROUS


class Account:
    """One row with a number, read and written by whatever connection the calling thread has."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.options: dict[str, Any] = connections.settings[alias]

    @property
    def balance(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT balance FROM account WHERE id = 1")
            return int(cursor.fetchone()[0])

    @balance.setter
    def balance(self, value: int) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE account SET balance = %s WHERE id = 1", [value])

    def book(self) -> int:
        """Read, add one, write: two at once lose one of their updates."""
        self.balance = balance = self.balance + 1
        return balance


@contextmanager
def one_database(alias: str, options: dict[str, Any]) -> Iterator[Account]:
    """Put a database under an alias, with a new table; what was there before comes back at the end."""
    before = connections.settings.get(alias)
    kept = connections[alias] if before is not None else None
    if kept is not None:
        del connections[alias]
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: {**options}})[alias]
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS account")
            cursor.execute("CREATE TABLE account (id integer PRIMARY KEY, balance integer NOT NULL)")
            cursor.execute("INSERT INTO account VALUES (1, 0)")
        yield Account(alias)
    finally:
        connections[alias].close()
        del connections[alias]
        if before is None or kept is None:
            del connections.settings[alias]
        else:
            connections.settings[alias] = before
            connections[alias] = kept


@contextmanager
def with_fences(alias: str) -> Iterator[None]:
    """The table of fences is in this database, and empty."""
    with connections[alias].schema_editor() as editor:
        if Fence._meta.db_table in connections[alias].introspection.table_names():
            editor.delete_model(Fence)
        editor.create_model(Fence)
    yield


class Commits:
    """Every COMMIT: its alias, and the names of the locks that are held before and after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, list[str], list[str]]] = []
        self.reached = threading.Event()  # by the first COMMIT while :attr:`go_on` is not set
        self.go_on = threading.Event()
        self.go_on.set()
        self._first = threading.Lock()
        original: Callable[[BaseDatabaseWrapper], None] = BaseDatabaseWrapper.commit

        def commit(connection: BaseDatabaseWrapper) -> None:
            before = [lock.name for lock in list_locks()]
            if not self.go_on.is_set() and self._first.acquire(blocking=False):
                self.reached.set()
                assert self.go_on.wait(GENEROUS)
            original(connection)
            self.seen.append((connection.alias, before, [lock.name for lock in list_locks()]))

        monkeypatch.setattr(BaseDatabaseWrapper, "commit", commit)
