"""The response of ``locked_view`` to a request that cannot acquire its lock."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_redislock import Lock, LockInfo, LockUnavailable, locked_view
from django_redislock.testing import hold
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.servers import Pages, Twins
from tests.inside import INFO

Busy = Callable[..., Any]
new_class: Any = type


def never(*args: Any, **kwargs: Any) -> HttpResponse:
    raise AssertionError("not reached")


@pytest.fixture
def busy(crowd: Crowd, pages: Pages) -> Busy:
    """Request a view whose lock somebody else holds for up to a minute."""
    me, you = crowd(), crowd()
    assert you(Lock("order", ttl=60), "acquire")

    def busy(accept: str = "*/*", **options: Any) -> Any:
        pages.urlpatterns.clear()
        pages.add("order/", "order", never, **options)
        return me(pages, "get", "/order/", accept=accept)

    return busy


def test_a_busy_view_responds_with_423_or_as_set_and_when_to_come_back(busy: Busy, settings: Any) -> None:
    response = busy(template="not seen yet")
    assert response.status_code == 423
    assert response.headers["Retry-After"] == "1"  # whatever is left of the lease
    assert response.headers["Vary"] == "Accept"
    assert "try again in 1 second." in response.content.decode()
    settings.REDISLOCK = {"VIEW_STATUS": 409}
    assert busy().status_code == 409


def test_of_a_suspended_lock_it_says_what_is_left(crowd: Crowd, pages: Pages) -> None:
    pages.add("order/", "order", never)
    Lock("order").suspend(600)
    assert 500 < int(crowd()(pages, "get", "/order/").headers["Retry-After"]) <= 600


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


def user_who_asks_the_database(request: HttpRequest) -> dict[str, Any]:
    return {"user": query}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/html"),
        ("application/json;q=0.9,text/html;q=0.5", "application/json"),
        ("application/vnd.api+json; version=2", "application/json"),
        ("text/plain", "text/plain"),
        ("image/png", "text/plain"),
    ],
)
def test_the_423_comes_in_the_form_that_clients_prefer(accept: str, kind: str, busy: Busy, tmp_path: Path) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ user }}, {{ retry_after }} s</h1>")
    options = {"context_processors": [f"{__name__}.user_who_asks_the_database"]}
    backend = "django.template.backends.django.DjangoTemplates"
    with override_settings(TEMPLATES=[{"BACKEND": backend, "DIRS": [tmp_path], "OPTIONS": options}]):
        response = busy(accept)
    wait = response.headers["Retry-After"]
    assert (response.status_code, response.headers["Content-Type"].split(";")[0]) == (423, kind)
    if kind == "application/json":
        assert json.loads(response.content)["retry_after"] == int(wait)
    elif kind == "text/html":
        assert response.content.decode() == f"<h1>Locked for 7, {wait} s</h1>"


def test_views_of_rest_framework_respond_in_json() -> None:
    key, api = locked_view("account"), api_view(["GET"])
    methods = {"get": method_decorator(key)(never)}
    one_method, on_dispatch = (new_class("Page", (APIView,), each) for each in (methods, {"get": never}))
    method_decorator(key, name="dispatch")(on_dispatch)
    above, below = key(api(lambda request: never())), api(key(lambda request: never()))
    with hold("account"):
        for view in (one_method.as_view(), on_dispatch.as_view(), above, below):
            response = view(RequestFactory().get("/", headers={"accept": "application/json; version=2"}))
            assert response.status_code == 423
            assert json.loads(response.content)["retry_after"] == int(response.headers["Retry-After"])
            assert "Accept" in response.headers["Vary"]


def test_it_says_for_how_long_such_views_usually_hold_the_lock(crowd: Crowd, pages: Pages) -> None:
    def body(request: HttpRequest, pk: int, seconds: str) -> Generator[None, None, str]:
        end = monotonic() + float(seconds)
        while monotonic() < end:
            yield
        return ""

    def held_for(*seconds: float) -> int:
        for number, each in enumerate(seconds):
            assert me(pages, "get", f"/{number}/{each}/").status_code == 200
        with hold("slow:0"):
            return int(me(pages, "get", "/0/0/").headers["Retry-After"])

    me = crowd()
    pages.add("<int:pk>/<str:seconds>/", "slow:{pk}", body, template=token_hex())
    assert (held_for(), held_for(1.01) >= 2) == (1, True)  # whole seconds
    with override_settings(REDISLOCK={"VIEW_MAX_RETRY_AFTER": 1}):
        assert held_for() == 1
    assert held_for(0, 0) == 1  # some took longer


def test_it_remembers_no_more_than_1000_templates() -> None:
    for _ in range(1001):
        view = locked_view("order", template=token_hex())(lambda request: HttpResponse())
        view(RequestFactory().get("/"))
    with hold("order"):
        assert view(RequestFactory().get("/")).headers["Retry-After"] == "1"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_request_that_holds_the_lock_itself_is_told_so(reentrant: bool, crowd: Crowd, pages: Pages) -> None:
    view = Twins(locked_view("order", reentrant=reentrant), lambda request: HttpResponse("inside"))
    decorate = locked_view("order")

    @decorate
    async def around(request: HttpRequest) -> Any:
        return await view.acall(request)

    pages.add_view("order/", around if pages.awaits else decorate(view.call))
    response = crowd()(pages, "get", "/order/")
    told = b"This request holds the lock itself. It could acquire it again with reentrant=True."
    assert (response.status_code, response.content) == ((200, b"inside") if reentrant else (423, told))


calls: list[str] = []


def conflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    calls.append("begun")
    assert info is not None
    return HttpResponse(f"{info.owner} has {info.name}", status=409)


async def aconflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    await asyncio.sleep(0)
    return conflict(request, info)


def conflict_with_a_query(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    response = conflict(request, info)
    query()
    return response


@pytest.mark.parametrize("respond", [conflict, aconflict, conflict_with_a_query])
def test_the_site_can_respond_to_a_conflict_itself(respond: Any, busy: Busy, settings: Any) -> None:
    for setting, options in [(None, {"on_conflict": respond}), (f"{__name__}.{respond.__name__}", {})]:
        settings.REDISLOCK = {"VIEW_ON_CONFLICT": setting}
        calls.clear()
        response = busy(**options)
        assert (response.status_code, calls) == (409, ["begun"])
        assert response.content.endswith(b" has order")


def speechless(request: HttpRequest, *info: LockInfo | None) -> None: ...


def test_an_on_conflict_that_returns_no_response_or_is_missing_is_named(busy: Busy, settings: Any) -> None:
    trouble = r"must return a response, and <function speechless .*> returned None\.$"
    with pytest.raises(TypeError, match=rf"^on_conflict {trouble}"):
        busy(on_conflict=speechless)
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.missing"}
    with pytest.raises(ImproperlyConfigured, match=r"^Cannot use .*missing"):
        busy()


def test_a_conflict_is_answered_though_redis_does_not_say_who_it_is(busy: Busy, network: Proxy, retry_for: Any) -> None:
    retry_for(0.1)
    network.lose_answer(INFO, times=100)
    response = busy(on_conflict=lambda request, info: HttpResponse(repr(info), status=409))
    assert (response.status_code, response.content) == (409, b"None")


def test_the_view_never_runs_while_redis_is_away(crowd: Crowd, pages: Pages, own: RedisServer, settings: Any) -> None:
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
