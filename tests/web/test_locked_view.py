"""``locked_view``: one request at a time, for sync and async views."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import wraps
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.routers import SimpleRouter

from django_redislock import Lock, list_locks, locked_view
from django_redislock.testing import hold
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.databases import Account
from tests.helpers.servers import LEFT_OPEN, Page, Pages, Twins, Web, arespond, lock_names
from tests.helpers.state import queued

pytestmark = LEFT_OPEN
new_class: Any = type


def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Respond with the names of the held locks."""
    return HttpResponse("|".join(lock.name for lock in list_locks()))


def never(*args: Any, **kwargs: Any) -> HttpResponse:
    raise AssertionError("not reached")


def plain(method: str = "GET") -> HttpRequest:
    return RequestFactory().generic(method, "/")


def test_a_view_runs_under_the_lock_of_its_url_however_long(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/<str:pk>/", "order:{pk}", lambda request, pk: lock_names(client))
    me = crowd()
    assert me(pages, "get", "/order/4:2/").content == b"order:4%3A2"
    one, other = (me(pages, "get", f"/order/{'x' * 600}{end}/").content.decode() for end in "ab")
    assert one.startswith("order:xxx")
    assert one != other
    assert len(one) <= 512
    assert lock_names(client) == []


def test_a_route_that_lacks_an_argument_of_the_name_is_named(settings: Any) -> None:
    view = locked_view("order:{pk}")(lambda request, **kwargs: respond(request))
    settings.ROOT_URLCONF = (path("orders/<int:pk>/", view), path("orders/", view, name="order-list"))
    assert Client().get("/orders/3/").content == b"order:3"
    expected = r"'order:\{pk\}': this URL \(route 'order-list'\) has no 'pk'\. Available values: request\.$"
    with pytest.raises(ValueError, match=expected):
        Client().get("/orders/")


def test_above_or_below_an_action_it_leaves_the_routes_to_rest_framework(account: Account, settings: Any) -> None:
    router = SimpleRouter()
    router.register("accounts", site.Actions, "account")
    settings.ROOT_URLCONF = tuple(router.urls)
    for name in ("above", "below"):
        assert Client().get(f"/accounts/1/{name}/").content == b'"account:1"'


@async_unsafe
def query() -> int:
    """Like the ORM, it must not be called in an event loop."""
    return 7


class User:
    pk = property(lambda self: query())


@pytest.mark.parametrize("name", ["user:{request.user.pk}", lambda request: f"user:{request.user.pk}"])
@pytest.mark.parametrize("user", [SimpleLazyObject(User), User()], ids=["lazy", ""])
async def test_a_name_may_contain_what_asks_the_database(name: Any, user: Any) -> None:
    @locked_view(name=name)
    async def view(request: HttpRequest) -> Any:
        return await site.anames()

    request = AsyncRequestFactory().get("/")
    request.user = user
    assert await view(request) == "user:7"


key = locked_view("account:{pk}")


@never_cache
@key
@never_cache
def with_default(request: HttpRequest, pk: int = 9) -> HttpResponse:
    return respond(request)


def look(self: View, request: HttpRequest, pk: int = 9) -> HttpResponse:
    return respond(request)


class Methods(View):
    get = method_decorator(key)(look)
    post = method_decorator([key, never_cache])(look)
    put = method_decorator([never_cache, key])(look)


@pytest.mark.parametrize("view", [with_default, Methods.as_view()], ids=["function", "class"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_arguments_have_their_names_however_they_come(method: str, view: Callable[..., HttpResponse]) -> None:
    request = plain(method)
    assert view(request, pk=3).content == b"account:3"
    assert view(request, 3).content == b"account:3"
    assert view(request).content == b"account:9"


def test_a_decorator_below_may_change_the_arguments_but_not_hide_their_names() -> None:
    @key
    @wraps(lambda request, order: None)
    def change(request: HttpRequest, pk: int) -> HttpResponse:
        return respond(request)

    assert change(plain(), pk=3).content == b"account:3"
    view = method_decorator(key, name="dispatch")(new_class("OnDispatch", (View,), {"get": never})).as_view()
    with pytest.raises(ValueError, match=r"Available values: args, request\."):
        view(plain(), 3)


def test_all_methods_but_options_lock_unless_some_are_named(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    for route, methods in [("all", None), ("post", ["post"]), ("options", ["options"])]:
        pages.add(f"{route}/", "order", lambda request: lock_names(client), methods=methods)
    me, you, lock = crowd(), crowd(), Lock("order")
    for page, method, locks in [
        *[("/all/", method, True) for method in ("GET", "HEAD", "POST", "PURGE", "get")],
        *[("/all/", "OPTIONS", False), ("/post/", "POST", True), ("/post/", "GET", False)],
        *[("/options/", "OPTIONS", True), ("/options/", "GET", False)],
    ]:
        response = me(pages, "get", page, method)
        assert (page, method, response.content) == (page, method, b"order" if locks and method != "HEAD" else b"")
        you(lock, "acquire")
        assert me(pages, "get", page, method).status_code == (423 if locks else 200)
        you(lock, "release")


@pytest.mark.parametrize("waits", [False, True])
def test_of_two_requests_at_once_one_is_refused_or_waits_if_told_to(
    waits: bool, crowd: Crowd, pages: Pages, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def body(request: HttpRequest) -> Generator[None, None, Any]:
        inside.set()
        while not go_on.is_set():
            yield
        return lock_names(client)

    pages.add("slow/", "slow", body, **({"blocking_timeout": GENEROUS} if waits else {}))
    responses = [crowd().start(pages, "get", "/slow/")]
    assert inside.wait(GENEROUS)
    if waits:
        responses.append(crowd().start(pages, "get", "/slow/"))
        eventually(lambda: queued(client, "slow"))
    else:
        assert crowd()(pages, "get", "/slow/").status_code == 423
    go_on.set()
    for response in (each.result(GENEROUS) for each in responses):
        assert (response.status_code, response.content) == (200, b"slow")
    assert lock_names(client) == []


@pytest.mark.parametrize("options", [{"blocking": True}, {"poll": True, "attempts": 1000}])
def test_an_option_that_says_how_to_wait_waits(options: dict[str, Any]) -> None:
    with hold("order", ttl=0.3):
        assert locked_view("order", **options)(respond)(plain()).content == b"order"


def dispatch(page: Any, *decorators: Any) -> Any:
    return method_decorator(decorators, name="dispatch")(type("Mine", (page,), {}))


class Private(LoginRequiredMixin, Page):
    pass


lock = locked_view("order")
permitted = permission_required("shop.sell")
ABOVE: dict[str, Callable[[], Any]] = {
    "login_required": lambda: lock(login_required(respond)),
    "permission_required, with one in between": lambda: lock(never_cache(permitted(respond))),
    "async": lambda: lock(login_required(arespond)),
    "the whole class": lambda: lock(Private.as_view()),
    "dispatch of the mixin": lambda: dispatch(Private, lock).as_view(),
    "dispatch": lambda: dispatch(Page, lock, login_required).as_view(),
}
BELOW: dict[str, Callable[[], Any]] = {
    "login_required": lambda: login_required(lock(respond)),
    "async": lambda: login_required(lock(arespond)),
    "dispatch": lambda: dispatch(Page, login_required, lock).as_view(),
    "dispatch of the mixin": lambda: new_class("Mine", (LoginRequiredMixin, dispatch(Page, lock)), {}).as_view(),
    "a method": lambda: new_class("Mine", (Private,), {"get": method_decorator(lock)(Page.get)}).as_view(),
}


@pytest.mark.parametrize(
    ("make", "status"),
    [
        *[pytest.param(make, 423, id=f"above {name}") for name, make in ABOVE.items()],
        *[pytest.param(make, 302, id=f"below {name}") for name, make in BELOW.items()],
    ],
)
def test_above_login_required_strangers_learn_what_is_busy_and_the_site_is_warned(
    make: Callable[[], Any], status: int, other: Callable[[], Other]
) -> None:
    async def stranger() -> AnonymousUser:
        return AnonymousUser()

    request: Any = plain()
    request.user, request.auser = AnonymousUser(), stranger
    assert other()(Lock("order").acquire)
    expected = r"^locked_view locks .* before the user is checked: anybody can lock"
    warns = pytest.warns(RuntimeWarning, match=expected) if status == 423 else nullcontext()
    with warns:
        view = make()
        assert (async_to_sync(view) if iscoroutinefunction(view) else view)(request).status_code == status


def test_the_warning_names_the_line_that_decorates() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        lock(login_required(respond))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_async_views_and_sync_views_that_coroutines_run_respond_under_their_lock(account: Account, web: Web) -> None:
    for name in (*site.ASYNC, *site.SYNC_IN_ASYNC):
        assert (name, web.get(f"/{name}/1/").body) == (name, b"account:1")
        assert list_locks() == []
    assert web.get("/async-dispatch/1/", method="PUT").body == b""
    account.options["ATOMIC_REQUESTS"] = True
    for name in site.ASYNC:
        for method in ("GET", "PUT"):
            with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
                Client().generic(method, f"/{name}/1/")


def test_wrong_arguments_are_errors_that_name_the_choices() -> None:
    for methods, trouble in [(["GET", "PSOT"], "PSOT"), ([], "none")]:
        with pytest.raises(ValueError, match=rf"methods must name some of GET, .*; not {trouble}"):
            locked_view("x", methods=methods)
    with pytest.raises(TypeError, match=r"such as \['GET'\]"):
        locked_view("x", methods="GET")
    for wrong in ("nobody", lambda: HttpResponse(), lambda *, request, info: None):
        with pytest.raises(TypeError, match=r"^on_conflict must be a callable \(request, info\), not .*: .+\.$"):
            locked_view("x", on_conflict=wrong)  # type: ignore[arg-type]
    locked_view("x", on_conflict=max)  # type: ignore[arg-type]  # it has no signature
    with pytest.raises(TypeError, match=r"locked_view cannot decorate the class .*: .*method_decorator\(.*dispatch"):
        locked_view("x")(Methods)
    hiding: Any = locked_view("x")(lambda request: arespond(request))
    with pytest.raises(TypeError, match=r"lambda.* returned a coroutine, .*markcoroutinefunction"):
        hiding(plain())
    assert list_locks() == []


def test_a_method_whose_first_argument_is_not_self_is_told_how_to_do_it(crowd: Crowd) -> None:
    methods = Twins(locked_view("x"), lambda this, request: never())
    wrong = type("Wrong", (View,), {"call": methods.call, "acall": methods.acall})
    with pytest.raises(TypeError, match=r"where a request was expected.*@method_decorator\(locked_view\(\.\.\.\)\)"):
        crowd()(wrong(), "call", plain())
