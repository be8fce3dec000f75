"""The shop's server processes, as the demo sees them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

TESTPROJECT = Path(__file__).resolve().parent.parent
START_SECONDS = 30


class ServerError(RuntimeError):
    """A server process did not start, or ended."""


class Servers:
    """Several server processes on one database, for the duration of a ``with`` block."""

    def __init__(self, count: int, database: Path, log: Path, *, asgi: bool, sabotage: bool) -> None:
        self.log = log
        options = [option for option, given in (("--asgi", asgi), ("--sabotage", sabotage)) if given]
        command = [sys.executable, "-m", "demo.server", *options]
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_DATABASE": str(database)}
        with log.open("ab") as output:
            self.processes = [
                subprocess.Popen(
                    command,
                    cwd=TESTPROJECT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the demo, which then ends them
                )
                for _ in range(count)
            ]
        self.ports: list[int] = []

    def __enter__(self) -> Servers:
        deadline = time.monotonic() + START_SECONDS
        try:
            self.ports = [self._port(process, deadline) for process in self.processes]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _port(self, process: subprocess.Popen[bytes], deadline: float) -> int:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = process.stdout.readline().strip() if ready else b""
        if not line.isdigit():
            raise ServerError(f"A server process did not start. It said:\n{self.said()}")
        return int(line)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}/" for port in self.ports]

    def said(self) -> str:
        """The end of what the processes logged."""
        return self.log.read_text(errors="replace")[-3000:].strip()

    def alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
