"""Who asks for a lock, for people to read: ``host:pid:thread``, and what for."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import Any

MAX_BYTES = 200

_process: tuple[str, str] | None = None  # host and pid, command


def describe_owner(purpose: str, task: asyncio.Task[Any] | None = None) -> str:
    """``purpose`` is a request's path, say; without one it is the management command that runs, if any."""
    global _process
    if _process is None:
        program, *arguments = sys.argv or [""]
        managing = program.endswith(("manage.py", "django-admin", "django/__main__.py"))
        command = arguments[0] if managing and arguments and not arguments[0].startswith("-") else ""
        _process = f"{socket.gethostname()}:{os.getpid()}:", command
    where, command = _process
    thread = threading.current_thread().name
    text = f"{where}{thread if task is None else f'{thread}/{task.get_name()}'} {purpose or command}".rstrip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_BYTES:
        text = "".join(char if char.isprintable() else "?" for char in text)
        text = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
    return text


def _after_fork_in_child() -> None:  # pragma: no cover (runs in forked children only)
    global _process
    _process = None


os.register_at_fork(after_in_child=_after_fork_in_child)
