"""``locked_view`` on async views; what they have in common with sync views is in test_locked_view.py."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from django_redislock import list_locks, locked_view
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account
from tests.helpers.pages import arespond
from tests.helpers.servers import LEFT_OPEN, Web
from tests.helpers.state import outlives
from tests.helpers.twins import lock_names

pytestmark = LEFT_OPEN


def test_async_views_and_sync_views_that_coroutines_run_respond_under_their_lock(account: Account, web: Web) -> None:
    for name in (*site.ASYNC, *site.SYNC_IN_ASYNC):
        assert (name, web.get(f"/{name}/1/").body) == (name, b"account:1")
        assert list_locks() == []
    assert web.get("/operations/1/", method="POST").body == b"account:1"
    assert web.get("/async-dispatch/1/", method="PUT").body == b""


def test_async_views_under_atomic_requests_are_refused_as_django_refuses_them(
    atomic: Account, webs: dict[str, Web]
) -> None:
    for name in site.ASYNC:
        for method in ("GET", "PUT"):
            with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
                Client().generic(method, f"/{name}/1/")


def test_a_view_that_hides_that_it_is_async_is_told_so(client: redis.Redis) -> None:
    @locked_view("order")
    def hiding(request: HttpRequest) -> Any:
        return arespond(request)

    with pytest.raises(TypeError, match=r"hiding.* returned a coroutine, .*markcoroutinefunction"):
        hiding(RequestFactory().get("/"))
    assert lock_names(client) == []


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


class User:
    pk = property(lambda self: query())


@pytest.mark.parametrize("name", ["user:{request.user.pk}", lambda request: f"user:{request.user.pk}"])
@pytest.mark.parametrize("lazy", [True, False])
async def test_a_name_may_contain_what_asks_the_database(name: Any, lazy: bool) -> None:
    @locked_view(name=name)
    async def view(request: HttpRequest) -> Any:
        return await site.anames()

    request = AsyncRequestFactory().get("/")
    request.user = SimpleLazyObject(User) if lazy else User()  # type: ignore[assignment]
    assert await view(request) == "user:7"


def test_a_plain_view_keeps_its_lock_while_it_runs_even_if_its_client_disconnects(
    settings: Any, other: Callable[[], Other], client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    gate, sent, gone = site.Gate(), [{"type": "http.request"}], threading.Event()

    @locked_view("slow", ttl=2)
    def view(request: HttpRequest) -> HttpResponse:
        gate()
        return HttpResponse()

    async def receive() -> dict[str, str]:
        if sent:
            return sent.pop()
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gone.set()
        return {"type": "http.disconnect"}

    async def handle() -> None:
        scope = AsyncRequestFactory().get("/slow/").scope
        await ASGIHandler()({**scope, "type": "http"}, receive, AsyncMock())

    settings.ROOT_URLCONF = (path("slow/", view),)
    settings.MIDDLEWARE = []  # with sync middleware, the task of the request would wait for the view
    handling = other().start(lambda: asyncio.run(handle()))
    assert gone.wait(GENEROUS)
    eventually(lambda: outlives(2, "slow"))
    gate.go_on.set()
    eventually(lambda: not lock_names(client))
    handling.exception(GENEROUS)
