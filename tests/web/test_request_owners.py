"""The owner shown for a view's lock: the request, and its user if known."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from rest_framework.authentication import BaseAuthentication
from rest_framework.views import APIView

from django_redislock import get_lock, list_locks, locked_view
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.state import value
from tests.helpers.twins import Pages


def tell_owner(request: Any) -> HttpResponse:
    lock = get_lock("who")
    assert lock is not None
    return HttpResponse(lock.owner.partition(" ")[2])


def not_loaded() -> Any:
    raise AssertionError("the user was loaded")


def test_the_owner_is_the_request(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/", "who", lambda request: " ".join(value(client, "who")))
    assert crowd()(pages, "get", "/order/").content.endswith(b" GET /order/")


@pytest.mark.parametrize(
    ("attributes", "owner"),
    [
        ({"user": SimpleNamespace(pk=7, name="Eve")}, "user=7 GET /a/"),
        ({"user": SimpleNamespace(pk=None)}, "GET /a/"),
        ({"user": SimpleLazyObject(not_loaded)}, "GET /a/"),
        ({"user": SimpleLazyObject(not_loaded), "_cached_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        ({"user": SimpleLazyObject(not_loaded), "_acached_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        ({}, "GET /a/"),
    ],
)
def test_a_loaded_user_is_shown_by_primary_key(attributes: dict[str, Any], owner: str) -> None:
    request = RequestFactory().get("/a/")
    request.__dict__.update(attributes)
    assert locked_view("who")(tell_owner)(request).content.decode() == owner


def test_a_user_in_the_name_of_the_lock_is_shown() -> None:
    @locked_view("who:{request.user.pk}")
    def view(request: HttpRequest) -> HttpResponse:
        (lock,) = list_locks()
        return HttpResponse(f"{lock.name} {lock.owner}")

    request = RequestFactory().get("/a/")
    request.user = SimpleLazyObject(lambda: SimpleNamespace(pk="a b"))  # type: ignore[assignment]
    owner = view(request).content.decode()
    assert owner.startswith("who:a%20b ")
    assert owner.endswith(" user=a%20b GET /a/")


def test_the_user_of_a_rest_view_is_known_once_it_is_authenticated() -> None:
    class Authentication(BaseAuthentication):
        def authenticate(self, request: Any) -> tuple[Any, None]:
            return SimpleNamespace(pk=7, is_active=True, is_authenticated=True), None

    class View(APIView):
        authentication_classes = (Authentication,)
        get = method_decorator(locked_view("who"))(lambda self, request: tell_owner(request))

    assert View.as_view()(RequestFactory().get("/a/")).content == b"user=7 GET /a/"


# -- what the site decides --------------------------------------------------------------------------------------------


def by_agent(request: HttpRequest) -> str:
    return f"agent {request.headers['User-Agent']}"


@async_unsafe  # like everything that queries the database
def by_query(request: HttpRequest) -> str:
    return "user 7"


def by_nothing(request: HttpRequest) -> None:
    return None


def test_a_path_cannot_imitate_another_owner() -> None:
    request = RequestFactory().get("/a%20user=1%20POST%20/b%0Aweb:1:MainThread%25%E2%80%AE")
    owner = locked_view("who")(tell_owner)(request).content.decode()
    assert owner == "GET /a%20user=1%20POST%20/b%0Aweb%3A1%3AMainThread%25?"


@pytest.mark.parametrize(("setting", "owner"), [(None, ""), (f"{__name__}.by_agent", "agent curl/7")])
def test_the_setting_decides_what_is_shown(setting: str | None, owner: str, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": setting}
    request = RequestFactory().get("/a/", headers={"user-agent": "curl/7"})
    request.user = SimpleNamespace(pk=7)  # type: ignore[assignment]
    assert locked_view("who")(tell_owner)(request).content.decode() == owner


def test_the_setting_decides_what_the_log_shows_too(
    crowd: Crowd,
    pages: Pages,
    own: RedisServer,
    retry_for: Callable[[float], None],
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": None, "VIEW_UNAVAILABLE_STATUS": 503}
    retry_for(0.1)
    pages.add("secret/", "who", lambda request: own.stop())
    me = crowd()
    me(pages, "get", "/secret/")
    assert me(pages, "get", "/secret/").status_code == 503
    ours = [record.getMessage() for record in caplog.records if record.name == "django_redislock"]
    assert any("event=not-released" in message for message in ours)
    assert any("event=unavailable" in message for message in ours)
    assert "secret" not in "".join(ours)


def test_a_function_may_ask_the_database_in_async_views_too(
    crowd: Crowd, pages: Pages, client: redis.Redis, settings: Any
) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": f"{__name__}.by_query"}
    pages.add("order/", "who", lambda request: " ".join(value(client, "who")))
    assert crowd()(pages, "get", "/order/").content.endswith(b" user 7")


def test_a_result_that_is_no_text_is_an_error_that_names_the_function(client: redis.Redis, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": f"{__name__}.by_nothing"}
    message = rf"^REDISLOCK\['VIEW_OWNER'\] = '{__name__}.by_nothing' must return a str, not None\.$"
    with pytest.raises(TypeError, match=message):
        locked_view("who")(tell_owner)(RequestFactory().get("/a/"))
    assert client.keys() == []
