"""The shop's server processes: ``python -m demo.server`` is one of them, on a socket that the demo has opened."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management.base import CommandError
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from .observer import watch

TESTPROJECT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
START_SECONDS = 30
BACKLOG = 512  # all buyers come at once
KEEP_ALIVE = 60  # seconds; a tab may be idle for a whole sale


class Servers:
    """Several of them on one database, which is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.ports: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def said(self) -> str:
        """The end of what the processes logged."""
        return self.log.read_text(errors="replace")[-3000:].strip()

    def add(self) -> None:
        with socket.create_server((HOST, 0), backlog=BACKLOG) as listener, self.log.open("ab") as log:
            number = listener.fileno()
            process = subprocess.Popen(
                [sys.executable, "-m", "demo.server", str(number)],
                cwd=TESTPROJECT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them
            )
            self.processes.append(process)
            self.ports.append(listener.getsockname()[1])


@contextmanager
def running_servers(count: int, folder: Path) -> Iterator[Servers]:
    """Run so many for the duration of a block."""
    servers = Servers(folder)
    try:
        for _ in range(count):
            servers.add()
        for port in servers.ports:
            try:
                urlopen(f"http://{HOST}:{port}/", timeout=START_SECONDS).close()
            except OSError as error:
                raise CommandError(f"The demo cannot start. A server process said:\n{servers.said()}") from error
        yield servers
    finally:
        for process in servers.processes:
            process.kill()
            process.communicate()


class Handler(WSGIRequestHandler):
    # a response in one piece, else Nagle's algorithm and delayed ACKs cost 40 ms
    wbufsize = -1
    disable_nagle_algorithm = True


def serve_threads(listener: socket.socket) -> None:
    """Django's own WSGI server with a thread per connection, as runserver has it."""
    server = ThreadedWSGIServer(listener.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()
    server.setup_environ()
    server.set_app(get_wsgi_application())
    server.serve_forever()


def serve_coroutines(listener: socket.socket) -> None:
    import uvicorn

    application = get_asgi_application()
    config = uvicorn.Config(
        application, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE
    )
    uvicorn.Server(config).run([listener])


def main() -> None:
    """Serve until the standard input is closed, as it is when the demo ends."""
    django.setup()
    watch()
    settings.MIDDLEWARE.insert(0, "demo.observer.observe")
    name, serve = ("uvicorn", serve_coroutines) if os.environ.get("SHOP_ASYNC") else ("wsgi", serve_threads)
    listener = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=serve, args=(listener,), name=name, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
