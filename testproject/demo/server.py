"""One server process of the shop, started by the demo: ``python -m demo.server``.

Django's own WSGI server with a thread per connection, as runserver has it, on a free port, which is the first line of
output. It ends when its standard input does, so it cannot outlive the demo.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import django
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application


class Server(ThreadedWSGIServer):
    request_queue_size = 512  # all buyers come at once


class Handler(WSGIRequestHandler):
    # an answer in one piece, else Nagle's algorithm and delayed ACKs cost 40 ms
    wbufsize = -1
    disable_nagle_algorithm = True


def sabotage() -> None:
    """Set all seats free by force, again and again, under the buyers' hands."""
    from django_redislock import force_release, list_locks

    while True:
        for lock in list_locks("seats:*"):
            force_release(lock.name, by="sabotage")
        time.sleep(0.001)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    django.setup()
    from .observer import Observer

    server = Server(("127.0.0.1", 0), Handler)
    server.set_app(Observer(get_wsgi_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if "--sabotage" in sys.argv:
        threading.Thread(target=sabotage, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
