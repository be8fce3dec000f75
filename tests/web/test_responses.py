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
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_redislock import Lock, LockInfo, LockUnavailable, locked_view
from django_redislock.testing import hold
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.databases import Account
from tests.helpers.proxy import Proxy
from tests.helpers.twins import Pages, Twins
from tests.inside import INFO

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


def test_a_busy_view_responds_with_423_or_as_the_setting_says_and_when_to_come_back(
    busy: Callable[..., Any], settings: Settings
) -> None:
    response = busy(template="not seen yet")
    assert response.status_code == 423
    assert response.headers["Retry-After"] == "1"  # whatever is left of the lease
    assert response.headers["Vary"] == "Accept"
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "try again in 1 second." in response.content.decode()
    settings.REDISLOCK = {"VIEW_STATUS": 409}
    assert busy().status_code == 409


def held_by_view(seconds: float) -> HttpResponse:
    sleep(seconds)
    return HttpResponse()


def held_by_content(seconds: float) -> StreamingHttpResponse:
    def content() -> Iterator[bytes]:
        sleep(seconds)
        yield b""

    return StreamingHttpResponse(content())


def remembered(get: Callable[[str], Any]) -> None:
    """Whole seconds are told: not those of views that took longer now and then, nor more than the setting says."""

    def held_for(*seconds: float) -> int:
        for number, each in enumerate(seconds):
            assert get(f"/{number}/{each}/").status_code == 200
        with hold("slow:0"):
            return int(get("/0/0/").headers["Retry-After"])

    assert held_for() == 1
    assert held_for(1.1) >= 2
    with override_settings(REDISLOCK={"VIEW_MAX_RETRY_AFTER": 1}):
        assert held_for() == 1
    assert held_for(0, 0) == 1


@pytest.mark.parametrize("respond", [held_by_view, held_by_content])
@pytest.mark.parametrize("begun", [False, True], ids=["", "in a transaction"])
def test_it_says_for_how_long_such_views_usually_hold_the_lock(
    respond: Callable[[float], Any], begun: bool, settings: Settings, account: Account
) -> None:
    @locked_view("slow:{pk}", template=token_hex())
    def view(request: HttpRequest, pk: int, seconds: str) -> Any:
        return respond(float(seconds))

    def get(path: str) -> Any:
        response = Client().get(path)
        b"".join(response)
        return response

    settings.ROOT_URLCONF = (path("<int:pk>/<str:seconds>/", transaction.atomic(view) if begun else view),)
    remembered(get)


def test_a_coroutine_function_is_remembered_too(crowd: Crowd, pages: Pages) -> None:
    def body(request: HttpRequest, pk: int, seconds: str) -> Generator[None, None, str]:
        end = monotonic() + float(seconds)
        while monotonic() < end:
            yield
        return ""

    me = crowd()
    pages.add("<int:pk>/<str:seconds>/", "slow:{pk}", body, template=token_hex())
    remembered(lambda path: me(pages, "get", path))


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


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


def user_who_asks_the_database(request: HttpRequest) -> dict[str, Any]:
    return {"user": query}


def test_the_template_of_the_site_may_ask_the_database(
    busy: Callable[..., Any], tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ user }}</h1>")
    settings.TEMPLATES = templates(tmp_path, context_processors=[f"{__name__}.user_who_asks_the_database"])
    assert busy("text/html").content == b"<h1>Locked for 7</h1>"


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


@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 0.01}, {"reentrant": True}], ids=str)
def test_a_request_that_holds_the_lock_itself_is_told_so(options: Any, crowd: Crowd, pages: Pages) -> None:
    view = Twins(locked_view("order", **options), lambda request: HttpResponse("inside"))
    decorate = locked_view("order", **options)

    @decorate
    async def around(request: HttpRequest) -> Any:
        return await view.acall(request)

    pages.add_view("order/", around if pages.awaits else decorate(view.call))
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


def test_an_on_conflict_that_returns_no_response_or_is_missing_is_named(
    busy: Callable[..., Any], settings: Settings
) -> None:
    trouble = r"must return a response, and <function speechless .*> returned None\.$"
    with pytest.raises(TypeError, match=rf"^on_conflict {trouble}"):
        busy(on_conflict=speechless)
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.speechless"}
    with pytest.raises(TypeError, match=rf"^REDISLOCK\['VIEW_ON_CONFLICT'\] {trouble}"):
        busy()
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.missing"}
    with pytest.raises(ImproperlyConfigured, match=r"^Cannot use .*missing"):
        busy()


def test_a_conflict_can_be_answered_without_knowing_the_holder(
    busy: Callable[..., Any], network: Proxy, retry_for: Callable[[float], None]
) -> None:
    """Redis goes away before it can be asked for the holder."""
    retry_for(0.1)
    network.lose_answer(INFO, times=100)
    respond: Any = lambda request, info: HttpResponse(repr(info), status=409)  # noqa: E731
    response = busy(on_conflict=respond)
    assert (response.status_code, response.content) == (409, b"None")


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
