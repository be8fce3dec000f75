"""The owner shown for a view's lock: the request, and its user if known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.http import HttpRequest
from django.test import RequestFactory
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from django_redislock import list_locks, locked_view
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.servers import Pages
from tests.helpers.state import value


def owner_of(path: str = "/a/", name: str = "who", **attributes: Any) -> str:
    """The owner, without the process, while a request with these attributes holds the lock."""

    @locked_view(name)
    def view(request: HttpRequest) -> str:
        (lock,) = list_locks()
        return lock.owner.partition(" ")[2]

    request = RequestFactory().get(path, headers={"user-agent": "curl/7"})
    request.__dict__.update(attributes)
    return view(request)


def not_loaded() -> Any:
    raise AssertionError("the user was loaded")


@pytest.mark.parametrize(
    ("attributes", "owner"),
    [
        ({"user": SimpleNamespace(pk=7, name="Eve")}, "user=7 GET /a/"),
        ({"user": SimpleNamespace(pk=None)}, "GET /a/"),
        ({"user": SimpleLazyObject(not_loaded)}, "GET /a/"),
        ({"user": SimpleLazyObject(not_loaded), "_acached_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        # the name of the lock has loaded it
        (
            {"user": SimpleLazyObject(lambda: SimpleNamespace(pk="a b")), "name": "{request.user.pk}"},
            "user=a%20b GET /a/",
        ),
        ({}, "GET /a/"),
        # as in a view of Django REST framework, once it is authenticated
        ({"_request": RequestFactory().get("/a/"), "_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        # a path cannot imitate another owner
        (
            {"path": "/a%20user=1%20POST%20/b%0Aweb:1:MainThread%25%E2%80%AE"},
            "GET /a%20user=1%20POST%20/b%0Aweb%3A1%3AMainThread%25?",
        ),
    ],
)
def test_the_owner_is_the_request_and_a_loaded_user(attributes: dict[str, Any], owner: str) -> None:
    assert owner_of(**attributes) == owner


@async_unsafe  # like everything that queries the database
def by_agent(request: HttpRequest) -> str:
    return f"agent {request.headers['User-Agent']}"


def by_nothing(request: HttpRequest) -> None:
    return None


@pytest.mark.parametrize(("setting", "shown"), [(None, ""), (f"{__name__}.by_agent", " agent curl/7")])
def test_the_setting_decides_what_is_shown_in_async_views_too(
    setting: str | None, shown: str, crowd: Crowd, pages: Pages, client: redis.Redis, settings: Any
) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": setting}
    pages.add("order/", "who", lambda request: " ".join(value(client, "who")))
    found = crowd()(pages, "get", "/order/", **{"user-agent": "curl/7"}).content.decode()
    assert found.endswith(shown)
    assert "order" not in found


def test_without_one_the_log_shows_no_path_either(
    crowd: Crowd, pages: Pages, own: RedisServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": None, "VIEW_UNAVAILABLE_STATUS": 503, "RETRY_FOR": 0.1}
    pages.add("secret/", "who", lambda request: own.stop())
    statuses = [crowd()(pages, "get", "/secret/").status_code for _ in range(2)]
    assert statuses == [200, 503]
    ours = [record.getMessage() for record in caplog.records if record.name == "django_redislock"]
    assert {"event=not-released", "event=unavailable"} <= {message.split()[0] for message in ours}
    assert "secret" not in "".join(ours)


def test_a_result_that_is_no_text_is_an_error_that_names_the_function(client: redis.Redis, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": f"{__name__}.by_nothing"}
    message = rf"^REDISLOCK\['VIEW_OWNER'\] = '{__name__}.by_nothing' must return a str, not None\.$"
    with pytest.raises(TypeError, match=message):
        owner_of()
    assert client.keys() == []
