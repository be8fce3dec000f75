"""How the owner of a lock is described to people."""

from __future__ import annotations

import os
import socket
import sys
import threading

from ...base.per_process import PerProcess
from .background_job import running_job
from .held import running_task

MAX_BYTES = 200


def _describe_process() -> tuple[str, str]:
    """Host and process id; and the management command that runs, if any."""
    program, *arguments = sys.argv or [""]
    managing = program.endswith(("manage.py", "django-admin", "django/__main__.py"))
    command = arguments[0] if managing and arguments and not arguments[0].startswith("-") else ""
    return f"{socket.gethostname()}:{os.getpid()}:", command


_process = PerProcess(_describe_process)


def describe_owner(purpose: str) -> str:
    """``host:pid:thread`` (with the task, if any), then ``purpose``, or without one the management command that runs.

    In a task queue's job, the job's name and id take the place of the thread.
    """
    (where, command), task = _process.get(), running_task()
    who = running_job() or threading.current_thread().name
    text = f"{where}{who if task is None else f'{who}/{task.get_name()}'} {purpose or command}".rstrip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_BYTES:
        text = "".join(char if char.isprintable() else "?" for char in text)
        text = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
    return text
