"""A process that has imported Django, the package and perhaps more once, and forks worker processes of the tests.

What it forks goes on as the main program of that process, so it ends as every interpreter does.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings

SERVE = "from tests.helpers.forkserver import serve\nexec(serve({handle}))\n"
VARIABLES = {"PYTEST_CURRENT_TEST", "REDISLOCK_TEST_URL"}  # of the environment; all others are those of the server
MOST = 4
_servers: dict[tuple[str, frozenset[tuple[str, str]]], socket.socket] = {}


class Forked:
    """What :class:`subprocess.Popen` offers, for a process that the server has forked and waits for."""

    def __init__(self, stdin: int, stdout: int, reports: int) -> None:
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._reports = reports
        self.pid = hear(reports)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = hear(self._reports)
            os.close(self._reports)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # else its number may be another's
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(prelude: str, source: str, environment: dict[str, str], cwd: Path) -> Forked | None:
    """Run ``source`` after ``prelude``. None: there are other servers already, or none can be on this system."""
    key = prelude, frozenset((name, value) for name, value in environment.items() if name not in VARIABLES)
    if key not in _servers:
        if len(_servers) == MOST or not hasattr(os, "pidfd_open"):
            return None
        _servers[key] = start(prelude, environment, cwd)
    (stdin, feed), (output, stdout), (reports, report) = os.pipe(), os.pipe(), os.pipe()
    with tempfile.TemporaryFile("w+") as order:
        json.dump((source, environment), order)
        order.seek(0)
        socket.send_fds(_servers[key], [b"f"], [stdin, stdout, 2, report, order.fileno()])
    for handle in stdin, stdout, report:
        os.close(handle)
    return Forked(feed, output, reports)


def start(prelude: str, environment: dict[str, str], cwd: Path) -> socket.socket:
    """A server that ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", prelude + SERVE.format(handle=theirs.fileno())]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [theirs.fileno()]}
        process = subprocess.Popen(command, env=environment, cwd=cwd, **pipes)
    atexit.register(end, ours, process)
    return ours


def end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.shutdown(socket.SHUT_RDWR)  # forked children of this process may have it too
    with ours, process:
        pass


def hear(reports: int) -> int:
    said = os.read(reports, 8)
    assert said, "the fork server has died"
    return int(said)


def serve(handle: int) -> str:
    """In each process that it forks, return the source that is to run there."""
    requests = socket.socket(fileno=handle)
    children: dict[int, tuple[int, int]] = {}  # pidfd: number and report
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this
    while True:
        ready = select.select([handle, *children], [], [])[0]
        if handle in ready:
            _, handles, _, _ = socket.recv_fds(requests, 1, 5)
            if not handles:  # those who ask are gone
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            *standard, report, order = handles
            if not (pid := os.fork()):
                requests.close()
                for inherited in report, *children, *(report for _, report in children.values()):
                    os.close(inherited)
                return begin(standard, order)
            for given in *standard, order:
                os.close(given)
            os.write(report, b"%8d" % pid)
            children[os.pidfd_open(pid)] = pid, report
        for pidfd in children.keys() & set(ready):
            pid, report = children.pop(pidfd)
            ended: Any = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # so that its number is nobody else's yet
            os.write(report, b"%8d" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
            os.waitpid(pid, 0)
            os.close(pidfd)
            os.close(report)


def begin(standard: list[int], order: int) -> str:
    """Become like a process that was just started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, handle in enumerate(standard):
        os.dup2(handle, number)
        os.close(handle)
    with open(order) as file:
        source, environment = json.load(file)
    os.environ.clear()
    os.environ.update(environment)
    if "REDISLOCK_TEST_URL" in environment:  # the settings have read that of the server
        settings.CACHES["default"]["LOCATION"] = environment["REDISLOCK_TEST_URL"]
    return str(source)
