"""Running programs under a lock, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command

NAME = "nightly"
FOREVER = "while :; do sleep 0.02; done"

Background = Callable[[Callable[[], Any]], None]


def run(*arguments: str) -> int:
    """``redislocks run`` in this process; returns its exit status."""
    try:
        call_command("redislocks", "run", *arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except CommandError as error:
        return int(error.returncode)
    return 0


def sh(script: str, *options: str) -> int:
    """A shell script under the lock NAME."""
    return run(NAME, *options, "--", "sh", "-c", script)


def is_running(pid: int) -> bool:
    """Whether the process runs; zombies do not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def number_in(path: Path) -> int:
    """The number in the file, as soon as a script has written it."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0
