"""Servers that run views for real, Django's two test clients, and functions and views in two versions for them."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from http.client import HTTPConnection
from time import sleep
from typing import Any, NamedTuple

import pytest
import redis
import uvicorn
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.test.testcases import QuietWSGIRequestHandler
from django.urls import URLPattern, path
from django.views import View

from django_redislock import locked_view
from tests.helpers.actors import GENEROUS
from tests.inside import PREFIX

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
        loop="none", timeout_graceful_shutdown=5,  # that of the policy
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


def lock_names(client: redis.Redis) -> list[str]:
    prefix = f"{PREFIX}lock:"
    return sorted(key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*"))


class Twins:
    """``person(twins, "call", ...)`` calls the function, or awaits the coroutine function; both are decorated. ``body``
    is a function, or a generator function that lets others run where it yields; ``finish`` gets what it returns."""

    def __init__(
        self,
        decorator: Callable[[Callable[..., Any]], Callable[..., Any]],
        body: Callable[..., Any],
        finish: Callable[[Any], Any] = lambda x: x,
    ) -> None:
        def play(answers: list[Any], *args: Any, **kwargs: Any) -> Iterator[None]:
            result = body(*args, **kwargs)
            answers.append(finish((yield from result) if isinstance(result, Generator) else result))

        @wraps(body)
        def call(*args: Any, **kwargs: Any) -> Any:
            answers: list[Any] = []
            for _ in play(answers, *args, **kwargs):
                sleep(0.001)
            return answers.pop()

        @wraps(body)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            answers: list[Any] = []
            for _ in play(answers, *args, **kwargs):
                await asyncio.sleep(0.001)
            return answers.pop()

        self.call, self.acall = decorator(call), decorator(acall)


class Pages:
    """A site of sync or async views: ``person(pages, "get", "/order/1/")`` sends a request through Django's own
    handler."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits
        self.urlpatterns: list[URLPattern] = []

    def add(
        self, route: str, name: Any, body: Callable[..., Any], decorator: Any = locked_view, **options: Any
    ) -> None:
        """Add a view with ``decorator(name=name, **options)`` whose response is what ``body(request, ...)`` returns."""
        twins = Twins(decorator(name=name, **options), body, HttpResponse)
        self.add_view(route, twins.acall if self.awaits else twins.call)

    def add_view(self, route: str, view: Any) -> None:
        self.urlpatterns.append(path(route, view))

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        return Client().generic(method, path, headers=headers)

    async def aget(self, path: str, method: str = "GET", **headers: str) -> Any:
        return await AsyncClient().generic(method, path, headers=headers)


def respond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def arespond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Page(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()
