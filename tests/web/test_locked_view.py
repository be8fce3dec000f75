"""``locked_view``: one request at a time, for sync and async views."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.decorators import action
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from django_redislock import Lock, list_locks, locked_view
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import queued
from tests.helpers.twins import Pages, Twins, lock_names

Eventually = Callable[..., Any]
Slow = Callable[..., tuple[threading.Event, threading.Event]]


def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Respond with the names of the held locks."""
    return HttpResponse("|".join(lock.name for lock in list_locks()))


def never(*args: Any, **kwargs: Any) -> HttpResponse:
    raise AssertionError("not reached")


def plain(path: str = "/", method: str = "GET") -> HttpRequest:
    return RequestFactory().generic(method, path)


# -- the name -------------------------------------------------------------------------------------------------------


def test_a_view_runs_under_the_lock_of_its_url(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/<str:pk>/", "order:{pk}", lambda request, pk: lock_names(client))
    assert crowd()(pages, "get", "/order/4:2/").content == b"order:4%3A2"
    assert lock_names(client) == []


def test_a_class_of_views_runs_under_the_lock_of_its_url(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    methods = Twins(lambda function: function, lambda self, request, pk: HttpResponse(lock_names(client)))

    class Page(View):
        get = post = methods.acall if pages.awaits else methods.call

    class Dispatch(Page):
        pass

    one = Twins(locked_view("class:{pk}"), lambda self, request, pk: HttpResponse(lock_names(client)))

    class Method(View):  # as by method_decorator
        get = post = one.acall if pages.awaits else one.call

    class Post(Page):
        pass

    key, key_of_post = (locked_view("class:{pk}", methods=methods) for methods in (None, ["POST"]))
    pages.add_view("dispatch/<int:pk>/", method_decorator(key, name="dispatch")(Dispatch).as_view())
    pages.add_view("whole/<int:pk>/", key(Page.as_view()))
    pages.add_view("post/<int:pk>/", method_decorator(key_of_post, name="dispatch")(Post).as_view())
    pages.add_view("method/<int:pk>/", Method.as_view())
    me, you, lock = crowd(), crowd(), Lock("class:3")
    for path, held, busy in [
        ("/method/3/", b"class:3", [423, 423, 200, 405]),
        ("/dispatch/3/", b"class:3", [423, 423, 200, 423]),
        ("/whole/3/", b"class:3", [423, 423, 200, 423]),
        ("/post/3/", b"", [200, 423, 200, 405]),
    ]:

        def statuses(path: str = path) -> list[int]:
            return [me(pages, "get", path, method).status_code for method in ("GET", "POST", "OPTIONS", "PUT")]

        assert me(pages, "get", path).content == held
        assert me(pages, "get", path, "POST").content == b"class:3"
        assert statuses() == [200, 200, 200, 405]
        you(lock, "acquire")
        assert (path, statuses()) == (path, busy)
        you(lock, "release")
        assert lock_names(client) == []


def test_it_may_stand_above_or_below_an_action(settings: Any) -> None:
    class Orders(ViewSet):
        @locked_view("order:{pk}")
        @action(detail=True)
        def above(self, request: HttpRequest, pk: str) -> HttpResponse:
            return respond(request)

        @action(detail=True)
        @locked_view("order:{pk}")
        def below(self, request: HttpRequest, pk: str) -> HttpResponse:
            return respond(request)

    router = SimpleRouter()
    router.register("orders", Orders, "order")
    settings.ROOT_URLCONF = tuple(router.urls)
    for name in ("above", "below"):
        assert Client().get(f"/orders/3/{name}/").content == b"order:3"


def test_a_route_that_lacks_an_argument_of_the_name_is_an_error_that_names_it(settings: Any, crowd: Crowd) -> None:
    class Orders(ViewSet):
        list = retrieve = locked_view("order:{pk}")(lambda self, request, **kwargs: respond(request))

    router = SimpleRouter()
    router.register("orders", Orders, "order")
    settings.ROOT_URLCONF = tuple(router.urls)
    assert Client().get("/orders/3/").content == b"order:3"
    expected = (
        "Cannot fill the lock name 'order:{pk}': this URL (route 'order-list') has no 'pk'. Available values: request."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        Client().get("/orders/")


def test_no_value_in_a_url_is_too_long_for_a_name(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/<str:pk>/", "order:{pk}", lambda request, pk: lock_names(client))
    one, other = (crowd()(pages, "get", f"/order/{'x' * 600}{end}/").content.decode() for end in "ab")
    assert one.startswith("order:xxx")
    assert one != other
    assert len(one) <= 512


# -- the arguments --------------------------------------------------------------------------------------------------


key = locked_view("account:{pk}")


@never_cache
@key
@never_cache
def with_default(request: HttpRequest, pk: int = 9) -> HttpResponse:
    return respond(request)


class Methods(View):
    @method_decorator(key)
    def get(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return respond(request)

    @method_decorator([key, never_cache])
    def post(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return respond(request)

    @method_decorator([never_cache, key])
    def put(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return respond(request)

    @method_decorator(key)
    @method_decorator(never_cache)
    def patch(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return respond(request)


@pytest.mark.parametrize("view", [with_default, Methods.as_view()], ids=["function", "class"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
def test_arguments_have_their_names_however_they_come(method: str, view: Callable[..., HttpResponse]) -> None:
    request = plain(method=method)
    assert view(request, pk=3).content == b"account:3"
    assert view(request, 3).content == b"account:3"
    assert view(request).content == b"account:9"


def test_a_decorator_below_may_change_the_arguments() -> None:
    def with_order(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def wrapper(request: HttpRequest, pk: int) -> HttpResponse:
            return view(request, order={"pk": pk})

        return wrapper

    @key
    @with_order
    def change(request: HttpRequest, order: dict[str, int]) -> HttpResponse:
        return respond(request)

    assert change(plain(), pk=3).content == b"account:3"


def test_positional_arguments_without_names_are_an_error_that_lists_what_there_is() -> None:
    class OnDispatch(View):
        get = never

    view = method_decorator(key, name="dispatch")(OnDispatch).as_view()
    with pytest.raises(ValueError, match=r"Available values: args, request\."):
        view(plain(), 3)


# -- the methods ----------------------------------------------------------------------------------------------------


def test_all_methods_but_options_lock_unless_some_are_named(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    for route, methods in [("all", None), ("post", ["post"]), ("options", ["options"])]:
        pages.add(f"{route}/", "order", lambda request: lock_names(client), methods=methods)
    me, you, lock = crowd(), crowd(), Lock("order")
    for path, method, locks in [
        *[("/all/", method, True) for method in ("GET", "HEAD", "POST", "PURGE", "CONNECT", "QUERY", "get")],
        *[("/all/", "OPTIONS", False), ("/post/", "POST", True), ("/post/", "GET", False)],
        *[("/options/", "OPTIONS", True), ("/options/", "GET", False)],
    ]:
        response = me(pages, "get", path, method)
        assert (path, method, response.content) == (path, method, b"order" if locks and method != "HEAD" else b"")
        you(lock, "acquire")
        assert me(pages, "get", path, method).status_code == (423 if locks else 200)
        you(lock, "release")


# -- waiting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_of_two_requests_at_once_one_is_refused_or_waits_if_told_to(
    waits: bool, crowd: Crowd, pages: Pages, client: redis.Redis, eventually: Eventually
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
    with hold("order", ttl=0.5):
        assert locked_view("order", **options)(respond)(plain()).content == b"order"


# -- wrong uses -----------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_errors_that_name_the_choices() -> None:
    for methods, trouble in [(["GET", "PSOT"], "PSOT"), ([5], "5"), ([], "none")]:
        with pytest.raises(ValueError, match=rf"methods must name some of GET, .*; not {trouble}"):
            locked_view("x", methods=methods)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"such as \['GET'\]"):
        locked_view("x", methods="GET")
    for wrong in ("nobody", lambda: HttpResponse(), lambda request: HttpResponse(), lambda *, request, info: None):
        with pytest.raises(TypeError, match=r"^on_conflict must be a callable \(request, info\), not .*: .+\.$"):
            locked_view("x", on_conflict=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="A lock's name must be a str or a callable, not None"):
        locked_view()
    with pytest.raises(TypeError, match=r"locked_view cannot decorate the class .*: .*method_decorator\(.*dispatch"):
        locked_view("x")(Methods)


def test_a_callable_without_a_signature_may_respond_to_conflicts() -> None:
    class Respond:
        @property
        def __signature__(self) -> None:
            raise ValueError("as some built-in functions do")

        def __call__(self, request: HttpRequest, info: object) -> HttpResponse:
            return HttpResponse("busy")

    locked_view("a", on_conflict=Respond())(lambda request: HttpResponse("ok"))


def test_a_method_whose_first_argument_is_not_self_is_told_how_to_do_it(crowd: Crowd) -> None:
    methods = Twins(locked_view("x"), lambda this, request: never())
    wrong = type("Wrong", (View,), {"call": methods.call, "acall": methods.acall})
    with pytest.raises(TypeError, match=r"where a request was expected.*@method_decorator\(locked_view\(\.\.\.\)\)"):
        crowd()(wrong(), "call", plain())
