"""Ends servers whose tests have died before they could: kill -9 of a test run must leave no cluster behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Not PR_SET_PDEATHSIG: it ends the servers with the *thread* that started them. And servers are known by the folder in
# which they run, because the number of one that has ended may belong to a stranger. (Without /proc it only removes.)
SCRIPT = """
while read -r folder; do set -- "$@" "$folder"; done
for folder; do
    shift
    [ -d "$folder" ] && set -- "$@" "$folder"
done
[ $# -gt 0 ] || exit 0
for process in /proc/[0-9]*; do
    there=$(readlink "$process/cwd")
    for folder; do [ "$there" = "$folder" ] && kill -9 "${process#/proc/}"; done
done
rm -rf "$@"
"""


class Guard:
    """A shell that waits for the end of this process; what is left of the watched folders then, it clears away."""

    def __init__(self) -> None:
        # in a session of its own, or Ctrl+C would end it before the servers
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()
