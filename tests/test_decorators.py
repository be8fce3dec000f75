"""``locked`` and ``locked_view``, through Django's own handler where a request is involved."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_redislock import (
    FairLock,
    Lock,
    LockInfo,
    LockLost,
    LockNotAcquired,
    LockUnavailable,
    alist_locks,
    force_release,
    get_lock,
    list_locks,
    locked,
    locked_view,
)
from redisserver import redis_server

inside = threading.Event()
go_on = threading.Event()


@locked_view("order:{pk}")
def order(request: HttpRequest, pk: str) -> HttpResponse:
    return HttpResponse("|".join(lock.name for lock in list_locks()))


@locked_view("order:{pk}", methods=["post"])
def post_only(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("|".join(lock.name for lock in list_locks()))


@locked_view("slow", blocking_timeout=20, fair=True)
def slow(request: HttpRequest) -> HttpResponse:
    inside.set()
    assert go_on.wait(20)
    lock = get_lock("slow")
    assert lock is not None
    return HttpResponse(lock.owner)


@locked_view("broken")
def broken(request: HttpRequest) -> HttpResponse:
    raise ValueError("the view's own")


@locked_view("stolen")
def stolen(request: HttpRequest) -> HttpResponse:
    force_release("stolen")
    if "raise" in request.GET:
        raise ValueError("the view's own")
    return HttpResponse("done")


def conflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    return HttpResponse(f"{info and info.owner} has it", status=409)


@locked_view(lambda request, pk: f"by:{request.method}:{pk}", on_conflict=conflict)
def by_callable(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("|".join(lock.name for lock in list_locks()))


@method_decorator(locked_view("class:{pk}"), name="dispatch")
class ClassView(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("|".join(lock.name for lock in list_locks()))


@locked_view("user:{request.user.pk}:{nothing}")
def unknown_name(request: HttpRequest, pk: int) -> HttpResponse:
    raise AssertionError("not reached")


urlpatterns = [
    path("order/<str:pk>/", order),
    path("post/<int:pk>/", post_only),
    path("slow/", slow),
    path("broken/", broken),
    path("stolen/", stolen),
    path("callable/<int:pk>/", by_callable),
    path("class/<int:pk>/", ClassView.as_view()),
    path("unknown/<int:pk>/", unknown_name),
]


@pytest.fixture
def web() -> Iterator[Client]:
    inside.clear()
    go_on.clear()
    with override_settings(ROOT_URLCONF=__name__):
        yield Client()


# -- locked ---------------------------------------------------------------------------------------------------------


def test_a_function_runs_under_the_lock_of_its_arguments() -> None:
    @locked("report:{year}:{kind}")
    def report(year: int, *rest: int, kind: str = "a b", **more: int) -> list[str]:
        return [lock.name for lock in list_locks()]

    assert report(2026) == ["report:2026:a%20b"]
    assert report(2026, 1, kind="x", other=2) == ["report:2026:x"]
    assert list_locks() == []


def test_keyword_arguments_lie_flat_in_the_template() -> None:
    @locked("job:{queue}")
    def job(**options: str) -> list[str]:
        return [lock.name for lock in list_locks()]

    assert job(queue="mail") == ["job:mail"]


def test_a_function_without_a_name_is_locked_by_its_place_in_the_code() -> None:
    @locked(fair=True)
    def here() -> list[str]:
        return [lock.name for lock in list_locks()]

    assert here() == [
        "tests.test_decorators.test_a_function_without_a_name_is_locked_by_its_place_in_the_code.locals.here"
    ]


def test_a_callable_makes_the_name() -> None:
    @locked(lambda year: f"year-{year}")
    def report(year: int) -> list[str]:
        return [lock.name for lock in list_locks()]

    assert report(7) == ["year-7"]


async def test_a_coroutine_function_runs_under_its_lock() -> None:
    @locked("report:{year}")
    async def report(year: int) -> list[str]:
        return [lock.name for lock in await alist_locks()]

    assert await report(7) == ["report:7"]
    assert await alist_locks() == []


def test_a_busy_function_is_not_called() -> None:
    @locked("busy", blocking_timeout=0)
    def never() -> None:
        raise AssertionError("called")

    with Lock("busy"):
        thread_error: list[LockNotAcquired] = []

        def other() -> None:
            try:
                never()
            except LockNotAcquired as error:
                thread_error.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert thread_error[0].name == "busy"


def test_an_unknown_field_is_an_error_that_lists_the_names_there_are() -> None:
    @locked("report:{yaer}")
    def report(year: int, kind: str = "a") -> None:
        raise AssertionError("called")

    with pytest.raises(ValueError, match=r"'report:\{yaer\}'.*'yaer'. There are: kind, year\."):
        report(2026)


@pytest.mark.parametrize("template", ["x:{}", "x:{0}", "x:{y", "x:y}", ""])
def test_a_template_that_can_never_be_filled_is_an_error_at_once(template: str) -> None:
    with pytest.raises(ValueError, match=r"lock name|lock's name"):
        locked(template)(lambda: None)


def test_a_wrong_option_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="ttl must be at least"):
        locked("x", ttl=0)
    with pytest.raises(TypeError, match="lock's name must be a str or a callable"):
        locked(7)  # type: ignore[arg-type]


def test_what_runs_after_its_call_has_returned_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    for function in (generator, asynchronous):
        with pytest.raises(TypeError, match="would be free again"):
            locked("x")(function)
        with pytest.raises(TypeError, match="would be free again"):
            locked_view("x")(function)


# -- locked_view ----------------------------------------------------------------------------------------------------


def test_a_view_runs_under_the_lock_of_its_url(web: Client) -> None:
    assert web.get("/order/4:2/").content == b"order:4%3A2"
    assert web.get("/class/3/").content == b"class:3"
    assert web.get("/callable/3/").content == b"by:GET:3"
    assert list_locks() == []


def test_no_value_in_a_url_is_too_long_for_a_name(web: Client) -> None:
    one, other = (web.get(f"/order/{'x' * 600}{end}/").content.decode() for end in "ab")
    assert one.startswith("order:xxx")
    assert one != other
    assert len(one) <= 512


def test_positional_url_arguments_have_their_names() -> None:
    request = RequestFactory().get("/")
    assert order(request, "7").content == b"order:7"


def tell_names(request: HttpRequest) -> HttpResponse:
    return HttpResponse("|".join(lock.name for lock in list_locks()))


key = locked_view("account:{pk}")


@never_cache
@key
@never_cache
def with_default(request: HttpRequest, pk: int = 9) -> HttpResponse:
    return tell_names(request)


class Methods(View):
    @method_decorator(key)
    def get(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return tell_names(request)

    @method_decorator([key, never_cache])
    def post(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return tell_names(request)

    @method_decorator([never_cache, key])
    def put(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return tell_names(request)

    @method_decorator(key)
    @method_decorator(never_cache)
    def patch(self, request: HttpRequest, pk: int = 9) -> HttpResponse:
        return tell_names(request)


@pytest.mark.parametrize("view", [with_default, Methods.as_view()], ids=["function", "class"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
def test_arguments_have_their_names_however_they_come(method: str, view: Callable[..., HttpResponse]) -> None:
    request = RequestFactory().generic(method, "/")
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
        return tell_names(request)

    assert change(RequestFactory().get("/"), pk=3).content == b"account:3"


def test_positional_arguments_without_names_are_an_error_that_lists_what_there_is() -> None:
    class OnDispatch(View):
        def get(self, request: HttpRequest, pk: int) -> HttpResponse:
            raise AssertionError("not reached")

    view = method_decorator(key, name="dispatch")(OnDispatch).as_view()
    with pytest.raises(ValueError, match=r"There are: args, request\."):
        view(RequestFactory().get("/"), 3)


def test_methods_that_are_not_named_do_not_lock(web: Client) -> None:
    assert web.get("/post/1/").content == b""
    assert web.post("/post/1/").content == b"order:1"
    assert web.options("/order/1/").content == b""
    assert web.head("/order/1/").status_code == 200


def test_a_busy_view_answers_423_with_retry_after(web: Client) -> None:
    with Lock("order:1", ttl=7):
        answer = web.get("/order/1/")
    assert answer.status_code == 423
    assert answer.headers["Retry-After"] == "7"
    assert answer.headers["Vary"] == "Accept"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert b"try again in 7 seconds" in answer.content


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
    web: Client, accept: str, kind: str, tmp_path: Any, settings: Any
) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ retry_after }} s</h1>")
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [str(tmp_path)]}]
    with Lock("order:1", ttl=7):
        answer = web.get("/order/1/", headers={"accept": accept})
    assert answer.status_code == 423
    assert answer.headers["Content-Type"].split(";")[0] == kind
    if kind == "application/json":
        assert json.loads(answer.content)["retry_after"] == 7
    elif kind == "text/html":
        assert answer.content == b"<h1>Locked for 7 s</h1>"


def test_the_status_of_a_refusal_is_a_setting(web: Client, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_STATUS": 409}
    with Lock("order:1"):
        assert web.get("/order/1/").status_code == 409


def test_the_site_can_answer_a_conflict_itself(web: Client, settings: Any) -> None:
    with Lock("by:GET:3"):
        answer = web.get("/callable/3/")
    assert answer.status_code == 409
    assert b"MainThread has it" in answer.content
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.conflict"}
    with Lock("order:1"):
        assert web.get("/order/1/").status_code == 409
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.missing"}
    with Lock("order:1"), pytest.raises(ImproperlyConfigured, match=r"missing.*cannot be imported"):
        web.get("/order/1/")


def test_a_view_waits_and_says_what_it_does(web: Client, eventually: Callable[..., Any]) -> None:
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(web.get("/slow/")))
    first.start()
    assert inside.wait(20)
    second = threading.Thread(target=lambda: answers.append(Client().get("/slow/")))
    second.start()
    eventually(lambda: (lock := get_lock("slow")) and lock.waiters)
    go_on.set()
    first.join()
    second.join()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(answer.content.endswith(b" GET /slow/") for answer in answers)


def test_a_view_that_raises_releases(web: Client) -> None:
    with pytest.raises(ValueError, match="the view's own"):
        web.get("/broken/")
    assert list_locks() == []


def test_a_lock_lost_under_the_view_goes_up_but_not_over_its_own_error(web: Client) -> None:
    with pytest.raises(LockLost):
        web.get("/stolen/")
    with pytest.raises(ValueError, match="the view's own"):
        web.get("/stolen/?raise")


def test_an_unknown_field_names_those_that_there_are(web: Client) -> None:
    with pytest.raises(ValueError, match=r"There are: pk, request\."):
        web.get("/unknown/1/")


def test_the_view_never_runs_while_redis_is_away(web: Client, settings: Any) -> None:
    with redis_server() as gone:
        url = gone.url
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    with pytest.raises(LockUnavailable) as caught:
        web.get("/order/1/")
    assert caught.value.name == "order:1"
    settings.REDISLOCK = {"VIEW_UNAVAILABLE_STATUS": 503}
    answer = web.get("/order/1/")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"


def test_a_finished_view_answers_though_its_release_fails(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as own:
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own.url}}

        @locked_view("order")
        def view(request: HttpRequest) -> HttpResponse:
            own.stop()
            return HttpResponse("paid")

        assert view(RequestFactory().get("/pay/")).content == b"paid"
        assert "event=not-released name=order path=/pay/ error=" in caplog.text
        own.start()
        with FairLock("order", blocking_timeout=20):
            pass


def test_wrong_arguments_are_errors_that_name_the_choices() -> None:
    with pytest.raises(ValueError, match=r"methods must name some of GET, .*; not PSOT"):
        locked_view("x", methods=["GET", "PSOT"])
    with pytest.raises(ValueError, match=r"not none"):
        locked_view("x", methods=[])
    with pytest.raises(TypeError, match=r"such as \['GET'\]"):
        locked_view("x", methods="GET")
    with pytest.raises(TypeError, match="on_conflict must be a callable"):
        locked_view("x", on_conflict="nobody")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blocking_timeout must be 0 or more"):
        locked_view("x", blocking_timeout=-1)


def test_a_method_decorated_as_a_function_is_told_how_to() -> None:
    class Wrong(View):
        @locked_view("x")
        def get(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("not reached")

    with pytest.raises(TypeError, match="method_decorator"):
        Wrong.as_view()(RequestFactory().get("/"))


def test_a_class_is_told_where_it_is_decorated_how_to() -> None:
    with pytest.raises(TypeError, match=r"locked_view cannot decorate the class .*Wrong.*method_decorator\(.*dispatch"):

        @locked_view("x")
        class Wrong(View):
            pass


def test_a_stop_iteration_of_the_function_itself_goes_up() -> None:
    @locked("a")
    def function() -> None:
        next(iter(()))

    with pytest.raises(StopIteration):
        function()
    assert get_lock("a") is None


def test_a_runtime_error_of_the_function_itself_goes_up() -> None:
    @locked("a")
    def function() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        function()
    assert get_lock("a") is None
