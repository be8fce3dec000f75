"""Ends servers whose tests died before they could end them: kill -9 of a test run must leave no cluster behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

# PR_SET_PDEATHSIG would end the servers with the *thread* that started them. Servers are recognized by the folder in
# which they run, because their process id may have been reused. (Without /proc, this only removes folders.)
SCRIPT = """
while read -r folder; do set -- "$@" "$folder"; done
for folder; do shift; [ -d "$folder" ] && set -- "$@" "$folder"; done
[ $# -gt 0 ] || exit 0
for process in /proc/[0-9]*; do
    there=$(readlink "$process/cwd")
    for folder; do [ "$there" = "$folder" ] && kill -9 "${process#/proc/}"; done
done
rm -rf "$@"
"""


class Guard:
    """A shell that waits for this process to end, then ends the servers in the watched folders and removes those."""

    def __init__(self) -> None:
        # in a session of its own, or Ctrl-C would end it before the servers
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()
