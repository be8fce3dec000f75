"""A private MariaDB on a unix socket, for the duration of the tests. Nothing outside of it is touched."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from .requirements import MissingError

REMEDY = "apt-get install mariadb-server, or brew install mariadb"
# Django asks for mysqlclient, which has to be compiled; this is the same interface in Python
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()


def find_server() -> tuple[str, str]:
    """The programs that create a data directory, and that serve it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    install, server = (shutil.which(name, path=path) for name in ("mariadb-install-db", "mariadbd"))
    if install is None or server is None:
        raise MissingError("MariaDB", REMEDY)
    return install, server


@contextmanager
def mariadb_server(programs: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """A running server; yields the entry for DATABASES."""
    install, serve = programs
    folder = Path(tempfile.mkdtemp(prefix="redislock-my-"))
    user = pwd.getpwuid(os.geteuid()).pw_name
    log, socket, data = folder / "log", folder / "socket", folder / "data"
    server: subprocess.Popen[Any] | None = None
    # a folder of its own for temporary tables: servers that start at once would remove each other's
    common = ["--no-defaults", f"--datadir={data}", f"--tmpdir={folder}", f"--user={user}"]
    common += ["--innodb-buffer-pool-size=16M"]
    try:
        with log.open("ab") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": output, "cwd": folder}
            if subprocess.run([install, *common, "--auth-root-authentication-method=normal"], **options).returncode:
                raise RuntimeError(f"mariadb-install-db failed:\n{log.read_text(errors='replace')[-2000:]}")
            command = [serve, *common, f"--socket={socket}", "--skip-networking", f"--pid-file={folder / 'pid'}"]
            command += ["--max-connections=300", "--innodb-flush-log-at-trx-commit=0", "--skip-grant-tables"]
            server = subprocess.Popen(command, **options)
        deadline = time.monotonic() + 60
        while not socket.exists():  # it is created when everything else is ready
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        connection = pymysql.connect(unix_socket=str(socket), user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE tests CHARACTER SET utf8mb4")
        yield {"ENGINE": "django.db.backends.mysql", "NAME": "tests", "USER": "root", "HOST": str(socket)}
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)
