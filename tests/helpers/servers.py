"""Servers that run views for real: a WSGI server with a thread per request, uvicorn, and Django's two test clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest
import uvicorn
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer
from django.test import AsyncClient, Client
from django.test.testcases import QuietWSGIRequestHandler

from tests.helpers.actors import GENEROUS

# what Django leaves open when a client disconnects or a stream raises, and its async test client always
LEFT_OPEN = pytest.mark.filterwarnings(
    r"ignore:Exception ignored [^<]+<(function (SpooledTemporaryFile|BaseConnection)\.__del__|sqlite3\.Connection)"
    ":pytest.PytestUnraisableExceptionWarning"
)


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Web:
    """Something that responds to requests. ``is_idle``: whether the server has noticed that no client is connected any
    more (a WSGI server does not notice)."""

    def __init__(self, port: int = 0, is_idle: Callable[[], bool] = lambda: True) -> None:
        self.port, self.is_idle = port, is_idle

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=GENEROUS)) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())


class SyncTestClient(Web):
    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        response = Client(raise_request_exception=False).generic(method, path, headers=headers)
        body = b"".join(response) if response.streaming else response.content
        return Reply(response.status_code, response.headers, body)


class AsyncTestClient(Web):
    @async_to_sync
    async def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        response: Any = await AsyncClient(raise_request_exception=False).generic(method, path, headers=headers)
        body = b"".join([part async for part in response]) if response.streaming else response.content
        return Reply(response.status_code, response.headers, body)


class _Server(ThreadedWSGIServer):
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client has disconnected, or the test wants this error


@contextmanager
def wsgi_server() -> Iterator[Web]:
    with _Server(("127.0.0.1", 0), QuietWSGIRequestHandler) as server:
        server.set_app(WSGIHandler())
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Web(server.server_port)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def asgi_server() -> Iterator[Web]:
    config = uvicorn.Config(
        ASGIHandler(), port=0, log_config=None, log_level="critical", lifespan="off", http="h11", ws="none",
        loop="asyncio", timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.005)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Web(port, lambda: not server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join()
