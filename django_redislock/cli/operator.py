"""Who operates the command line."""

from __future__ import annotations

import os
import pwd
import socket


def system_user() -> str:
    """The name of the user as whom this process runs, by the system and not by the environment; else the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in many containers
        return str(os.getuid())


def operator() -> str:
    """``user@host``."""
    return f"{system_user()}@{socket.gethostname()}"
