"""``locked_view`` above and below decorators that check the user."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from django_redislock import Lock, locked_view
from tests.helpers.actors import Other
from tests.helpers.pages import Page, arespond, respond

lock = locked_view("order")
login = login_required(login_url="/login/")


class Private(LoginRequiredMixin, Page):
    login_url = "/login/"


@method_decorator(lock, name="dispatch")
class Locked(Page):
    pass


class PrivateBelow(LoginRequiredMixin, Locked):
    login_url = "/login/"


ABOVE: dict[str, Callable[[], Any]] = {
    "login_required": lambda: lock(login(respond)),
    "permission_required": lambda: lock(permission_required("shop.sell", login_url="/login/")(respond)),
    "with one in between": lambda: lock(never_cache(login(respond))),
    "async": lambda: lock(login(arespond)),
    "the whole class": lambda: lock(Private.as_view()),
    "dispatch of the mixin": lambda: method_decorator(lock, name="dispatch")(type("Mine", (Private,), {})),
    "dispatch, decorated": lambda: method_decorator(lock, name="dispatch")(
        method_decorator(login, name="dispatch")(type("Mine", (Page,), {}))
    ),
    "dispatch, a list": lambda: method_decorator([lock, login], name="dispatch")(type("Mine", (Page,), {})),
}
BELOW: dict[str, Callable[[], Any]] = {
    "login_required": lambda: login(lock(respond)),
    "async": lambda: login(lock(arespond)),
    "dispatch, decorated": lambda: method_decorator(login, name="dispatch")(
        method_decorator(lock, name="dispatch")(type("Mine", (Page,), {}))
    ),
    "dispatch, a list": lambda: method_decorator([login, lock], name="dispatch")(type("Mine", (Page,), {})),
    "dispatch of the mixin": lambda: PrivateBelow,
    "a method": lambda: type("Mine", (Private,), {"get": method_decorator(lock)(Page.get)}),
}


def status(view: Any) -> int:
    """The status of a request by an anonymous user."""

    async def stranger() -> AnonymousUser:
        return AnonymousUser()

    request: Any = RequestFactory().get("/")
    request.user, request.auser = AnonymousUser(), stranger
    called = view.as_view() if hasattr(view, "as_view") else view
    response = async_to_sync(called)(request) if iscoroutinefunction(called) else called(request)
    return int(response.status_code)


@pytest.mark.parametrize("make", ABOVE.values(), ids=ABOVE.keys())
def test_above_login_required_strangers_learn_what_is_busy_and_the_site_is_warned(
    make: Callable[[], Any], other: Callable[[], Other]
) -> None:
    assert other()(Lock("order").acquire)
    with pytest.warns(RuntimeWarning, match=r"^locked_view locks .* before the user is checked: anybody can lock"):
        assert status(make()) == 423


@pytest.mark.parametrize("make", BELOW.values(), ids=BELOW.keys())
def test_below_login_required_strangers_learn_nothing_and_nobody_is_warned(
    make: Callable[[], Any], other: Callable[[], Other]
) -> None:
    assert other()(Lock("order").acquire)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert status(make()) == 302


def test_the_warning_names_the_line_that_decorates() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        lock(login(respond))
    assert caught[0].filename == __file__
