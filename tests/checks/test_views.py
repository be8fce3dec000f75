"""Checks of the views, for ``check --deploy``."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from django_redislock import locked, locked_atomic, locked_view
from tests.checks import ids, only
from tests.helpers.servers import Page, arespond, respond

lock = locked_view("order")
limited = locked_view("order", max_hold=60)


@method_decorator(lock, name="dispatch")
class Locked(Page):
    pass


class LockedGet(Page):
    get = method_decorator(lock)(Page.get)


class Free(LockedGet):
    get = Page.get


def itself() -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    view.__wrapped__ = view  # type: ignore[attr-defined]
    return view


WITHOUT_LIMIT = {
    "a function": lock(respond),
    "a coroutine function": lock(arespond),
    "below decorators": login_required(never_cache(lock(respond))),
    "below another lock": limited(lock(respond)),
    "given arguments": partial(lock(respond)),
    "locked": locked("order")(respond),
    "locked_atomic": locked_atomic("order")(respond),
    "a class": lock(Page.as_view()),
    "dispatch": Locked.as_view(),
    "a method": LockedGet.as_view(),
}
OTHERS = {
    "no lock": respond,
    "a limit": limited(respond),
    "not renewed": locked_view("order", auto_renew=False)(respond),
    "a method without a lock": Free.as_view(),
    "one that wraps itself": itself(),
}


@pytest.fixture
def site(settings: Any) -> Callable[..., None]:
    """Give the site these views."""

    def site(*views: Any) -> None:
        inner = [path("inner/", view) for view in views[1:]]
        settings.ROOT_URLCONF = (*[path("", view) for view in views[:1]], path("more/", include(inner)))

    return site


@pytest.mark.parametrize("case", [*WITHOUT_LIMIT, *OTHERS])
def test_a_view_that_locks_for_as_long_as_its_client_likes_is_found(
    case: str, site: Callable[..., None], settings: Any
) -> None:
    site((WITHOUT_LIMIT | OTHERS)[case])
    assert ids(deploy=True) == ["W008"] * (case in WITHOUT_LIMIT)
    assert ids() == []
    settings.REDISLOCK = {"CACHE": "locks", "MAX_HOLD": 60}
    assert ids(deploy=True) == []


def test_they_are_named_once(site: Callable[..., None]) -> None:
    site(lock(respond), Locked.as_view(), Locked.as_view(), respond)
    assert "tests.checks.test_views.Locked, tests.helpers.servers.respond." in only("W008", deploy=True).msg


@pytest.mark.parametrize("urls", ["no.such.module", "broken_urls", None])
def test_settings_and_urls_that_cannot_be_read_are_for_others_to_report(
    urls: Any, site: Callable[..., None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(lock(respond))
    settings.REDISLOCK = {"TLL": 3}
    only("E001", deploy=True)
    settings.REDISLOCK = {"CACHE": "locks"}
    monkeypatch.setitem(sys.modules, "broken_urls", ModuleType("broken_urls"))
    settings.ROOT_URLCONF = urls
    assert ids(deploy=True) == []
    del settings.ROOT_URLCONF
    assert ids(deploy=True) == []
