"""A private MariaDB on a unix socket, for the duration of the tests. Nothing outside of it is touched."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from .postgres import run
from .processes import MissingError
from .waiting import until

# Django asks for mysqlclient, which has to be compiled; this is the same interface in Python
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()


def find_server() -> tuple[str, str]:
    """The programs that create a data directory, and that serve it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    install, server = (shutil.which(name, path=path) for name in ("mariadb-install-db", "mariadbd"))
    if install is None or server is None:
        raise MissingError("MariaDB", "apt-get install mariadb-server, or brew install mariadb")
    return install, server


@contextmanager
def mariadb_server(programs: tuple[str, str]) -> Iterator[dict[str, Any]]:
    install, serve = programs
    folder = Path(tempfile.mkdtemp(prefix="redislock-my-"))
    log, socket = folder / "log", folder / "socket"
    # a folder of its own for temporary tables: servers that start at once would remove each other's
    common = ["--no-defaults", f"--datadir={folder / 'data'}", f"--tmpdir={folder}", f"--user={getpass.getuser()}"]
    common += ["--innodb-buffer-pool-size=16M"]
    server: subprocess.Popen[bytes] | None = None
    try:
        run(log, install, *common, "--auth-root-authentication-method=normal")
        command = [serve, *common, f"--socket={socket}", "--skip-networking", f"--pid-file={folder / 'pid'}"]
        command += ["--max-connections=300", "--innodb-flush-log-at-trx-commit=0", "--skip-grant-tables"]
        server = subprocess.Popen([*command, f"--log-error={log}"], cwd=folder)
        until(lambda: socket.exists() or server.poll() is not None)  # it is created when everything else is ready
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        with pymysql.connect(unix_socket=str(socket), user="root") as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE tests CHARACTER SET utf8mb4")
        yield {"ENGINE": "django.db.backends.mysql", "NAME": "tests", "USER": "root", "HOST": str(socket)}
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)
