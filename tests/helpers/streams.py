"""Streams that take nothing."""

from __future__ import annotations

import errno
import io
import os


class Full(io.StringIO):
    """As a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
