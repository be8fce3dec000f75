"""Output streams that cannot be written to."""

from __future__ import annotations

import errno
import io


class Full(io.StringIO):
    """Like a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")
