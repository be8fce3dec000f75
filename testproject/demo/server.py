"""One server process of the shop, started by the demo: ``python -m demo.server``.

Django's own WSGI server, or uvicorn with ``--asgi``, on a free port, which is the first line of output. It ends when
its standard input is closed, so it cannot outlive the demo.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.core.asgi import get_asgi_application
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

HOST = "127.0.0.1"
BACKLOG = 512  # all buyers come at once
KEEP_ALIVE = 60  # seconds; a tab may be idle for a whole sale


class Server(ThreadedWSGIServer):
    request_queue_size = BACKLOG


class Handler(WSGIRequestHandler):
    # a response in one piece, else Nagle's algorithm and delayed ACKs cost 40 ms
    wbufsize = -1
    disable_nagle_algorithm = True


def sabotage() -> None:
    """Force-release the locks of all seats again and again while buyers hold them."""
    from django_redislock import force_release, list_locks

    while True:
        for lock in list_locks("seats:*"):
            force_release(lock.name, by="sabotage")
        time.sleep(0.001)


@contextmanager
def wsgi() -> Iterator[int]:
    """Django's own WSGI server with a thread per connection, as runserver has it."""
    from .observer import observed

    server = Server((HOST, 0), Handler)
    server.set_app(observed(get_wsgi_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@contextmanager
def asgi() -> Iterator[int]:
    """Uvicorn. At the end, requests that still wait for the lock are cancelled."""
    import uvicorn

    from .observer import aobserved

    listener = socket.create_server((HOST, 0), backlog=BACKLOG)
    config = uvicorn.Config(
        aobserved(get_asgi_application()),
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn", daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    os.environ["SHOP_ASYNC"] = "yes" if "--asgi" in sys.argv else ""
    django.setup()
    from .observer import watch

    watch()
    if "--sabotage" in sys.argv:
        threading.Thread(target=sabotage, daemon=True).start()
    with asgi() if "--asgi" in sys.argv else wsgi() as port:
        print(port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
