"""``locked_view`` on async views; what they have in common with sync views is in test_locked_view.py."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any
from unittest.mock import AsyncMock

import asgiref.sync
import pytest
import redis
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from django_redislock import Lock, list_locks, locked_view
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Actor, Other
from tests.helpers.databases import Account
from tests.helpers.servers import LEFT_OPEN, Web
from tests.helpers.twins import abandon, lock_names
from tests.inside import leases

AEventually = Callable[..., Awaitable[Any]]
pytestmark = LEFT_OPEN


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


class User:
    pk = property(lambda self: query())


@locked_view("user:{request.user.pk}")
async def of_a_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse(await site.anames())


@locked_view(lambda request: f"user:{request.user.pk}")
async def of_a_user_by_callable(request: HttpRequest) -> HttpResponse:
    return HttpResponse(await site.anames())


@locked_view("order")
def sync_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(site.names())


def test_async_views_of_every_kind_lock(account: Account, web: Web) -> None:
    for name in site.ASYNC:
        assert (name, web.get(f"/{name}/1/").body) == (name, b"account:1")
        assert list_locks() == []
    assert web.get("/async-dispatch/1/", method="PUT").body == b""


def test_a_sync_view_that_a_coroutine_runs_responds_under_its_lock(account: Account, web: Web) -> None:
    for name in site.SYNC_IN_ASYNC:
        assert (name, web.get(f"/{name}/1/").body) == (name, b"account:1")
    assert web.get("/operations/1/", method="POST").body == b"account:1"
    assert list_locks() == []


def test_a_view_that_hides_that_it_is_async_is_told_so(settings: Any, client: redis.Redis) -> None:
    @locked_view("order")
    def hiding(request: HttpRequest) -> Any:
        return of_a_user(request)

    settings.ROOT_URLCONF = (path("order/", hiding),)
    with pytest.raises(TypeError, match=r"hiding.* returned a coroutine, .*markcoroutinefunction"):
        Client().get("/order/")
    assert lock_names(client) == []


def test_async_views_under_atomic_requests_are_refused_as_django_refuses_them(
    atomic: Account, webs: dict[str, Web]
) -> None:
    for name in site.ASYNC:
        for method in ("GET", "PUT"):
            with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
                Client().generic(method, f"/{name}/1/")


def test_a_decorated_async_view_is_still_async() -> None:
    assert iscoroutinefunction(of_a_user)
    assert asgiref.sync.iscoroutinefunction(of_a_user)
    assert of_a_user.__name__ == "of_a_user"


@pytest.mark.parametrize("view", [of_a_user, of_a_user_by_callable])
@pytest.mark.parametrize("lazy", [True, False])
async def test_a_name_may_contain_lazy_values(
    view: Callable[[HttpRequest], Awaitable[HttpResponse]], lazy: bool
) -> None:
    request = AsyncRequestFactory().get("/")
    request.user = SimpleLazyObject(User) if lazy else User()  # type: ignore[assignment]
    assert (await view(request)).content == b"user:7"


# -- plain views in an event loop -----------------------------------------------------------------------------------


async def test_a_plain_view_runs_under_the_async_handler(
    actor: Callable[[], Actor], settings: Any, client: redis.Redis
) -> None:
    settings.ROOT_URLCONF = (path("order/", sync_view),)
    assert (await AsyncClient().get("/order/")).content == b"order"
    lock = Lock("order")
    await actor()(lock.aacquire)
    assert (await AsyncClient().get("/order/")).status_code == 423


async def test_a_plain_view_called_in_a_coroutine_is_told_what_to_do(client: redis.Redis) -> None:
    with pytest.raises(
        SynchronousOnlyOperation,
        match=r"would block the event loop .*\. Decorate an async view, or call it through sync_to_async\.$",
    ):
        sync_view(RequestFactory().get("/"))
    assert lock_names(client) == []
    assert (await sync_to_async(sync_view)(RequestFactory().get("/"))).content == b"order"


# -- interrupted ----------------------------------------------------------------------------------------------------


class Slow:
    """A view that waits until it is interrupted."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()

        @locked_view("slow")
        async def view(request: HttpRequest) -> HttpResponse:
            self.inside.set()
            await asyncio.sleep(GENEROUS)
            raise AssertionError("not reached")

        self.view = view


async def test_a_request_that_is_cancelled_releases(client: redis.Redis, aeventually: AEventually) -> None:
    slow = Slow()
    handling = asyncio.ensure_future(slow.view(AsyncRequestFactory().get("/")))
    await asyncio.wait_for(slow.inside.wait(), GENEROUS)
    assert lock_names(client) == ["slow"]
    handling.cancel()
    await asyncio.wait([handling])
    assert handling.cancelled()
    await aeventually(lambda: not lock_names(client))


def test_a_plain_view_keeps_its_lock_while_it_runs_even_if_its_client_disconnects(
    settings: Any, other: Callable[[], Other], client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    gate, sent, gone = site.Gate(), [{"type": "http.request"}], threading.Event()

    @locked_view("slow", ttl=1)
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
    (lease,) = leases()
    first_end = lease.ends
    eventually(lambda: lease.ends > first_end + lease.ttl)
    assert lock_names(client) == ["slow"]
    gate.go_on.set()
    eventually(lambda: not lock_names(client))
    handling.exception(GENEROUS)


async def test_a_request_that_is_closed_releases(client: redis.Redis, aeventually: AEventually) -> None:
    slow = Slow()
    await abandon(slow.view(AsyncRequestFactory().get("/")), slow.inside.is_set)
    await aeventually(lambda: not lock_names(client))


def test_a_request_that_is_interrupted_releases(client: redis.Redis, eventually: Callable[..., Any]) -> None:
    @locked_view("order")
    async def view(request: HttpRequest) -> HttpResponse:
        assert lock_names(client) == ["order"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(view(AsyncRequestFactory().get("/")))
    eventually(lambda: not lock_names(client))
