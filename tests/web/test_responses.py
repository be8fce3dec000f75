"""The response of ``locked_view`` to a request that cannot acquire its lock."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_redislock import Lock, LockInfo, LockUnavailable, locked_view
from django_redislock.testing import hold
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.databases import Account
from tests.helpers.twins import Pages

Settings = Any  # its type has another name in each pytest-django


def never(*args: Any, **kwargs: Any) -> HttpResponse:
    raise AssertionError("not reached")


@pytest.fixture
def busy(crowd: Crowd, pages: Pages) -> Callable[..., Any]:
    """Request a view whose lock somebody else holds for up to a minute."""
    me, you = crowd(), crowd()
    assert you(Lock("order", ttl=60), "acquire")

    def busy(accept: str = "*/*", **options: Any) -> Any:
        pages.urlpatterns.clear()
        pages.add("order/", "order", never, **options)
        return me(pages, "get", "/order/", accept=accept)

    return busy


def templates(folder: Path, **options: Any) -> list[dict[str, Any]]:
    return [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [str(folder)], "OPTIONS": options}]


# -- 423 ------------------------------------------------------------------------------------------------------------


def test_a_busy_view_responds_with_423_and_when_to_come_back(busy: Callable[..., Any]) -> None:
    response = busy(template="not seen yet")
    assert response.status_code == 423
    assert response.headers["Retry-After"] == "1"  # whatever is left of the lease
    assert response.headers["Vary"] == "Accept"
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "try again in 1 second." in response.content.decode()


def held_by_view(seconds: float) -> HttpResponse:
    sleep(seconds)
    return HttpResponse()


def held_by_content(seconds: float) -> StreamingHttpResponse:
    def content() -> Iterator[bytes]:
        sleep(seconds)
        yield b""

    return StreamingHttpResponse(content())


@pytest.mark.parametrize("respond", [held_by_view, held_by_content])
@pytest.mark.parametrize("begun", [False, True], ids=["", "in a transaction"])
def test_it_says_for_how_long_such_views_usually_hold_the_lock(
    respond: Callable[[float], Any], begun: bool, settings: Settings, account: Account
) -> None:
    """Not those that were held for longer now and then; nor for longer than the setting says."""

    @locked_view("slow:{pk}", template=token_hex())
    def view(request: HttpRequest, pk: int, seconds: str) -> Any:
        return respond(float(seconds))

    settings.ROOT_URLCONF = (path("<int:pk>/<str:seconds>/", transaction.atomic(view) if begun else view),)

    def held_for(*seconds: float) -> int:
        for number, each in enumerate(seconds):
            b"".join(Client().get(f"/{number}/{each}/"))
        with hold("slow:0"):
            return int(Client().get("/0/0/").headers["Retry-After"])

    assert held_for() == 1
    assert held_for(1.1) >= 2
    settings.REDISLOCK = {"VIEW_MAX_RETRY_AFTER": 1}
    assert held_for() == 1
    settings.REDISLOCK = {}
    assert held_for(0, 0) == 1


def test_a_coroutine_function_is_remembered_too(crowd: Crowd, pages: Pages) -> None:
    def body(request: HttpRequest) -> Generator[None, None, str]:
        end = monotonic() + 1.1
        while monotonic() < end:
            yield
        return ""

    me = crowd()
    pages.add("order/", "order", body, template=token_hex())
    assert me(pages, "get", "/order/").status_code == 200
    with hold("order"):
        assert int(me(pages, "get", "/order/").headers["Retry-After"]) >= 2


def test_of_a_thousand_templates_none_is_remembered() -> None:
    def wait(seconds: float, template: str) -> HttpResponse:
        return locked_view("order", template=template)(lambda request: held_by_view(seconds))(RequestFactory().get("/"))

    slow = token_hex()
    wait(1.1, slow)
    for _ in range(1000):
        wait(0, token_hex())
    with hold("order"):
        assert wait(0, slow).headers["Retry-After"] == "1"


def test_of_a_suspended_lock_it_says_what_is_left(crowd: Crowd, pages: Pages) -> None:
    pages.add("order/", "order", never)
    Lock("order").suspend(600)
    assert 500 < int(crowd()(pages, "get", "/order/").headers["Retry-After"]) <= 600


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/html"),
        ("text/html,application/json;q=0.9", "text/html"),
        ("application/json", "application/json"),
        ("application/json;q=0.9,text/html;q=0.5", "application/json"),
        ("application/vnd.api+json; version=2", "application/json"),
        ("application/json; indent=4", "application/json"),
        ("text/plain", "text/plain"),
        ("image/png", "text/plain"),
    ],
)
def test_the_423_comes_in_the_form_that_the_client_prefers(
    accept: str, kind: str, busy: Callable[..., Any], tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ retry_after }} s</h1>")
    settings.TEMPLATES = templates(tmp_path)
    response = busy(accept)
    assert response.status_code == 423
    assert response.headers["Content-Type"].split(";")[0] == kind
    wait = response.headers["Retry-After"]
    if kind == "application/json":
        assert json.loads(response.content)["retry_after"] == int(wait)
    elif kind == "text/html":
        assert response.content.decode() == f"<h1>Locked for {wait} s</h1>"


def test_the_template_of_the_site_may_ask_the_database(
    crowd: Crowd, pages: Pages, tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ request.user }}</h1>")
    settings.TEMPLATES = templates(tmp_path, context_processors=["django.template.context_processors.request"])
    request = RequestFactory().get("/", headers={"accept": "text/html"})
    request.user = SimpleLazyObject(query)  # type: ignore[assignment]
    me, you = crowd(), crowd()
    you(Lock("order"), "acquire")
    pages.add("order/", "order", never)
    response = me(Direct(pages), "call", request)
    assert (response.status_code, response.content) == (423, b"<h1>Locked for 7</h1>")


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


class Direct:
    """Calls the only view of a site, without Django's handler."""

    def __init__(self, pages: Pages) -> None:
        (self.pattern,) = pages.urlpatterns

    def call(self, request: HttpRequest) -> Any:
        return self.pattern.callback(request)

    async def acall(self, request: HttpRequest) -> Any:
        return await self.pattern.callback(request)


def test_the_status_of_a_refusal_is_a_setting(busy: Callable[..., Any], settings: Settings) -> None:
    settings.REDISLOCK = {"VIEW_STATUS": 409}
    assert busy().status_code == 409


def test_views_of_rest_framework_respond_in_json() -> None:
    def get(request: Any) -> HttpResponse:
        raise AssertionError("not reached")

    class OneMethod(APIView):
        get = method_decorator(locked_view("account"))(never)

    class OnDispatch(APIView):
        pass

    method_decorator(locked_view("account"), name="dispatch")(OnDispatch)
    above, below = locked_view("account")(api_view(["GET"])(get)), api_view(["GET"])(locked_view("account")(get))
    with Lock("account", ttl=60):
        for view in (OneMethod.as_view(), OnDispatch.as_view(), above, below):
            response = view(RequestFactory().get("/", headers={"accept": "application/json; version=2"}))
            assert response.status_code == 423
            assert json.loads(response.content)["retry_after"] == int(response.headers["Retry-After"])
            assert "Accept" in response.headers["Vary"]


class Nested:
    """A view that calls another one of the same name."""

    def __init__(self, **options: Any) -> None:
        lock = locked_view("order", **options)

        @lock
        async def ainner(request: HttpRequest) -> HttpResponse:
            return HttpResponse("inside")

        @lock
        async def acall(request: HttpRequest) -> Any:
            return await ainner(request)

        self.call, self.acall = lock(lock(lambda request: HttpResponse("inside"))), acall


@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 0.01}, {"reentrant": True}], ids=str)
def test_a_request_that_holds_the_lock_itself_is_told_so(options: Any, crowd: Crowd, pages: Pages) -> None:
    nested = Nested(**options)
    pages.add_view("order/", nested.acall if pages.awaits else nested.call)
    response = crowd()(pages, "get", "/order/")
    if "reentrant" in options:
        assert (response.status_code, response.content) == (200, b"inside")
    else:
        told = b"This request holds the lock itself. It could acquire it again with reentrant=True."
        assert (response.status_code, response.content) == (423, told)


# -- the site's own -------------------------------------------------------------------------------------------------


calls: list[str] = []


def conflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    calls.append("begun")
    assert info is not None
    assert info.name == "order"
    return HttpResponse(f"{info.owner} has it", status=409)


async def aconflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    await asyncio.sleep(0)
    return conflict(request, info)


def conflict_with_a_query(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    response = conflict(request, info)
    query()
    return response


@pytest.mark.parametrize("respond", [conflict, aconflict, conflict_with_a_query])
def test_the_site_can_respond_to_a_conflict_itself(respond: Any, busy: Callable[..., Any], settings: Settings) -> None:
    for setting, options in [(None, {"on_conflict": respond}), (f"{__name__}.{respond.__name__}", {})]:
        settings.REDISLOCK = {"VIEW_ON_CONFLICT": setting}
        calls.clear()
        response = busy(**options)
        assert response.status_code == 409
        assert response.content.endswith(b" has it")
        assert calls == ["begun"]


def speechless(request: HttpRequest, *info: LockInfo | None) -> None: ...


@pytest.mark.parametrize(
    ("setting", "options", "what"),
    [
        (None, {"on_conflict": speechless}, "on_conflict"),
        (f"{__name__}.speechless", {}, r"REDISLOCK\['VIEW_ON_CONFLICT'\]"),
    ],
)
def test_an_on_conflict_that_returns_no_response_is_named(
    setting: str | None, options: dict[str, Any], what: str, busy: Callable[..., Any], settings: Settings
) -> None:
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": setting}
    with pytest.raises(
        TypeError, match=rf"^{what} must return a response, and <function speechless .*> returned None\.$"
    ):
        busy(**options)


def test_a_conflict_can_be_answered_without_knowing_the_holder(
    busy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis goes away before it can be asked for the holder."""

    def inspect(*args: Any) -> Any:
        raise LockUnavailable("it is away")
        yield

    monkeypatch.setattr("django_redislock.web.responses.inspect", inspect)
    respond: Any = lambda request, info: HttpResponse(repr(info), status=409)  # noqa: E731
    response = busy(on_conflict=respond)
    assert (response.status_code, response.content) == (409, b"None")


def test_an_on_conflict_that_cannot_be_imported_is_an_error_that_names_it(
    busy: Callable[..., Any], settings: Settings
) -> None:
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.missing"}
    with pytest.raises(ImproperlyConfigured, match=r"^Cannot use .*missing"):
        busy()


# -- Redis away -----------------------------------------------------------------------------------------------------


def test_the_view_never_runs_while_redis_is_away(
    crowd: Crowd, pages: Pages, own: RedisServer, settings: Settings
) -> None:
    pages.add("order/", "order", never)
    own.stop()
    me = crowd()
    with pytest.raises(LockUnavailable) as caught:
        me(pages, "get", "/order/")
    assert caught.value.name == "order"
    settings.REDISLOCK = {"VIEW_UNAVAILABLE_STATUS": 503}
    response = me(pages, "get", "/order/")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert b"try again" in response.content
