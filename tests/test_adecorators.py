"""``locked`` on coroutine functions, ``locked_view`` on async views, through Django's own asynchronous handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

import asgiref.sync
import pytest
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View

from django_redislock import (
    FairLock,
    Lock,
    LockInfo,
    LockLost,
    LockNotAcquired,
    LockUnavailable,
    aforce_release,
    aget_lock,
    alist_locks,
    locked,
    locked_view,
)
from redisserver import redis_server

from .actors import GENEROUS, Actor

AEventually = Callable[..., Awaitable[Any]]
Settings = Any  # its type has another name in each pytest-django


class Stage:
    """Where a slow view is, and whether it may go on."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.go_on = asyncio.Event()

    async def wait(self) -> None:
        self.inside.set()
        await asyncio.wait_for(self.go_on.wait(), GENEROUS)


stage: Stage


async def names() -> str:
    return "|".join(lock.name for lock in await alist_locks())


@locked_view("order:{pk}")
async def order(request: HttpRequest, pk: str) -> HttpResponse:
    return HttpResponse(await names())


@locked_view("order:{pk}", methods=["post"])
async def post_only(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(await names())


@locked_view("slow")
async def slow(request: HttpRequest) -> HttpResponse:
    await stage.wait()
    return HttpResponse(await names())


@locked_view("slow", blocking_timeout=GENEROUS, fair=True)
async def patient(request: HttpRequest) -> HttpResponse:
    await stage.wait()
    lock = await aget_lock("slow")
    assert lock is not None
    return HttpResponse(lock.owner)


@locked_view("broken")
async def broken(request: HttpRequest) -> HttpResponse:
    raise ValueError("the view's own")


@locked_view("stolen")
async def stolen(request: HttpRequest) -> HttpResponse:
    await aforce_release("stolen")
    if "raise" in request.GET:
        raise ValueError("the view's own")
    return HttpResponse("done")


def conflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    return HttpResponse(f"{info and info.owner} has it", status=409)


async def aconflict(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    await asyncio.sleep(0)
    return conflict(request, info)


calls: list[str] = []


def conflict_with_a_query(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
    calls.append("begun")
    query()
    return conflict(request, info)


@async_unsafe
def query() -> int:
    """What the ORM is: not to be called in an event loop."""
    return 7


@locked_view("own", on_conflict=conflict)
async def own_answer(request: HttpRequest) -> HttpResponse:
    raise AssertionError("not reached")


@locked_view("own", on_conflict=aconflict)  # type: ignore[arg-type]
async def own_async_answer(request: HttpRequest) -> HttpResponse:
    raise AssertionError("not reached")


@locked_view("own", on_conflict=conflict_with_a_query)
async def own_answer_with_a_query(request: HttpRequest) -> HttpResponse:
    raise AssertionError("not reached")


class User:
    pk = property(lambda self: query())


@locked_view("user:{request.user.pk}")
async def of_a_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse(await names())


@locked_view(lambda request: f"user:{request.user.pk}")
async def of_a_user_by_callable(request: HttpRequest) -> HttpResponse:
    return HttpResponse(await names())


@method_decorator(locked_view("class:{pk}"), name="dispatch")
class ClassView(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(await names())


@method_decorator(locked_view("class:{pk}", methods=["POST"]), name="dispatch")
class PostClassView(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(await names())

    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(await names())


class Whole(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(await names())


urlpatterns = [
    path("order/<str:pk>/", order),
    path("post/<int:pk>/", post_only),
    path("slow/", slow),
    path("patient/", patient),
    path("broken/", broken),
    path("stolen/", stolen),
    path("own/", own_answer),
    path("own-async/", own_async_answer),
    path("own-query/", own_answer_with_a_query),
    path("class/<int:pk>/", ClassView.as_view()),
    path("class-post/<int:pk>/", PostClassView.as_view()),
    path("whole/<int:pk>/", locked_view("whole:{pk}")(Whole.as_view())),
]


@pytest.fixture
async def web() -> AsyncIterator[AsyncClient]:
    global stage
    stage = Stage()
    calls.clear()
    with override_settings(ROOT_URLCONF=__name__):
        yield AsyncClient()


# -- locked ---------------------------------------------------------------------------------------------------------


async def test_a_coroutine_function_runs_under_the_lock_of_its_arguments() -> None:
    @locked("report:{year}:{kind}")
    async def report(year: int, kind: str = "a b") -> str:
        return await names()

    assert iscoroutinefunction(report)
    assert asgiref.sync.iscoroutinefunction(report)
    assert report.__name__ == "report"
    assert await report(2026) == "report:2026:a%20b"
    assert await report(2026, kind="x") == "report:2026:x"
    assert await alist_locks() == []


async def test_a_coroutine_method_runs_under_the_lock_of_its_object() -> None:
    class Report:
        pk = 7

        @locked("report:{self.pk}", fair=True)
        async def build(self) -> str:
            return await names()

    assert await Report().build() == "report:7"


async def test_a_busy_coroutine_function_is_not_called(actor: Callable[[], Actor]) -> None:
    @locked("busy", blocking_timeout=0)
    async def never() -> None:
        raise AssertionError("called")

    async with Lock("busy"):
        with pytest.raises(LockNotAcquired) as caught:
            await actor()(never)
    assert caught.value.name == "busy"


async def test_calls_at_the_same_time_run_one_after_the_other() -> None:
    inside: list[int] = []

    @locked("section", blocking_timeout=GENEROUS)
    async def section(number: int) -> int:
        inside.append(number)
        await asyncio.sleep(0.001)
        assert inside == [number]
        inside.clear()
        return number

    assert await asyncio.gather(*(section(number) for number in range(20))) == list(range(20))


async def test_a_coroutine_function_that_raises_or_is_cancelled_releases(
    actor: Callable[[], Actor], aeventually: AEventually
) -> None:
    inside = asyncio.Event()

    @locked("section")
    async def section(what: str) -> None:
        if what == "raise":
            raise ValueError("the function's own")
        inside.set()
        await asyncio.sleep(GENEROUS)

    with pytest.raises(ValueError, match="the function's own"):
        await section("raise")
    assert await alist_locks() == []
    task = actor()
    task.start(lambda: section("wait"))
    await asyncio.wait_for(inside.wait(), GENEROUS)
    assert await names() == "section"
    await task.end()
    await aeventually(_nothing_is_locked)


async def _nothing_is_locked() -> bool:
    return await alist_locks() == []


async def test_a_coroutine_function_learns_that_its_lock_was_lost() -> None:
    @locked("section")
    async def section() -> None:
        await aforce_release("section")

    with pytest.raises(LockLost):
        await section()


async def test_a_coroutine_function_is_cancelled_when_its_lock_is_lost() -> None:
    @locked("section", ttl=0.3, auto_renew=False, on_lost="cancel")
    async def section() -> None:
        await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        await section()


async def test_a_sync_function_that_is_locked_may_not_be_called_in_a_coroutine() -> None:
    @locked("section")
    def section() -> None:
        raise AssertionError("called")

    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        section()
    assert await alist_locks() == []


async def test_wrong_arguments_are_errors_when_the_coroutine_is_awaited() -> None:
    @locked("report:{yaer}")
    async def report(year: int) -> None:
        raise AssertionError("called")

    with pytest.raises(ValueError, match=r"There are: year\."):
        await report(2026)
    with pytest.raises(TypeError, match="missing a required argument"):
        await report()  # type: ignore[call-arg]


# -- locked_view ----------------------------------------------------------------------------------------------------


async def test_an_async_view_runs_under_the_lock_of_its_url(web: AsyncClient) -> None:
    assert iscoroutinefunction(order)
    assert asgiref.sync.iscoroutinefunction(order)
    assert (await web.get("/order/4:2/")).content == b"order:4%3A2"
    assert (await web.get("/class/3/")).content == b"class:3"
    assert (await web.get("/whole/3/")).content == b"whole:3"
    assert await alist_locks() == []


async def test_positional_url_arguments_have_their_names() -> None:
    assert (await order(AsyncRequestFactory().get("/"), "7")).content == b"order:7"


async def test_methods_that_are_not_named_do_not_lock(web: AsyncClient) -> None:
    assert (await web.get("/post/1/")).content == b""
    assert (await web.post("/post/1/")).content == b"order:1"
    assert (await web.options("/order/1/")).content == b""
    assert (await web.get("/class-post/1/")).content == b""
    assert (await web.post("/class-post/1/")).content == b"class:1"
    assert (await web.options("/class/1/")).status_code == 200
    assert (await web.put("/class/1/")).status_code == 405


@pytest.mark.parametrize("url", ["/order/1/", "/class/1/", "/whole/1/"])
async def test_a_busy_view_answers_423_with_retry_after(url: str, web: AsyncClient) -> None:
    name = url.strip("/").replace("/", ":")
    async with Lock(name, ttl=7):
        answer = await web.get(url)
    assert answer.status_code == 423
    assert answer.headers["Retry-After"] == "7"
    assert answer.headers["Vary"] == "Accept"
    assert b"try again in 7 seconds" in answer.content
    async with Lock(name):
        answer = await web.get(url, headers={"accept": "application/json"})
    assert json.loads(answer.content)["retry_after"] == 30


async def test_the_template_of_the_site_may_ask_the_database(
    web: AsyncClient, tmp_path: Any, settings: Settings
) -> None:
    (tmp_path / "423.html").write_text("<h1>Locked for {{ request.user.pk }}</h1>")
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [str(tmp_path)],
            "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
        }
    ]
    request = AsyncRequestFactory().get("/", headers={"accept": "text/html"})
    request.user = SimpleLazyObject(User)  # type: ignore[assignment]
    async with Lock("order:1"):
        answer = await order(request, "1")
    assert (answer.status_code, answer.content) == (423, b"<h1>Locked for 7</h1>")


async def test_of_two_requests_at_once_one_is_refused(web: AsyncClient) -> None:
    first = asyncio.create_task(web.get("/slow/"))
    await asyncio.wait_for(stage.inside.wait(), GENEROUS)
    assert (await AsyncClient().get("/slow/")).status_code == 423
    stage.go_on.set()
    answer = await first
    assert (answer.status_code, answer.content) == (200, b"slow")
    assert (await web.get("/slow/")).status_code == 200


async def test_a_view_waits_and_says_what_it_does(web: AsyncClient, aeventually: AEventually) -> None:
    async def waiting() -> bool:
        lock = await aget_lock("slow")
        return lock is not None and lock.waiters == 1

    first = asyncio.create_task(web.get("/patient/"))
    await asyncio.wait_for(stage.inside.wait(), GENEROUS)
    second = asyncio.create_task(AsyncClient().get("/patient/"))
    await aeventually(waiting)
    stage.go_on.set()
    answers = await asyncio.gather(first, second)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(answer.content.endswith(b" GET /patient/") for answer in answers)


async def test_a_request_that_is_cancelled_sets_the_lock_free(web: AsyncClient, aeventually: AEventually) -> None:
    request = AsyncRequestFactory().get("/slow/")
    handling = asyncio.create_task(_handle(request))
    await asyncio.wait_for(stage.inside.wait(), GENEROUS)
    assert await names() == "slow"
    handling.cancel()
    await asyncio.wait([handling])
    assert handling.cancelled()
    await aeventually(_nothing_is_locked)


async def _handle(request: HttpRequest) -> HttpResponse:
    return await slow(request)


@pytest.mark.parametrize("url", ["/own/", "/own-async/", "/own-query/"])
async def test_the_site_can_answer_a_conflict_itself(url: str, web: AsyncClient) -> None:
    async with Lock("own"):
        answer = await web.get(url)
    assert answer.status_code == 409
    assert b"MainThread" in answer.content
    assert b"has it" in answer.content


async def test_the_sites_own_answer_to_a_conflict_is_made_once(web: AsyncClient) -> None:
    async with Lock("own"):
        assert (await web.get("/own-query/")).status_code == 409
    assert calls == ["begun"]


@pytest.mark.parametrize("answer", ["conflict", "aconflict"])
async def test_the_sites_own_answer_to_a_conflict_is_a_setting(
    answer: str, web: AsyncClient, settings: Settings
) -> None:
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.{answer}"}
    async with Lock("order:1"):
        assert (await web.get("/order/1/")).status_code == 409
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.missing"}
    async with Lock("order:1"):
        with pytest.raises(ImproperlyConfigured, match=r"missing.*cannot be imported"):
            await web.get("/order/1/")


@locked_view("own")
def sync_view(request: HttpRequest) -> HttpResponse:
    raise AssertionError("not reached")


def test_an_async_answer_to_a_conflict_serves_sync_views_as_well(settings: Settings) -> None:
    settings.REDISLOCK = {"VIEW_ON_CONFLICT": f"{__name__}.aconflict"}
    with Lock("own"):
        answer = sync_view(RequestFactory().get("/"))
        if asyncio.iscoroutine(answer):
            answer.close()
        assert getattr(answer, "status_code", None) == 409


@pytest.mark.parametrize("view", [of_a_user, of_a_user_by_callable])
@pytest.mark.parametrize("lazy", [True, False])
async def test_a_name_may_hold_what_has_to_be_loaded(
    view: Callable[[HttpRequest], Awaitable[HttpResponse]], lazy: bool
) -> None:
    request = AsyncRequestFactory().get("/")
    request.user = SimpleLazyObject(User) if lazy else User()  # type: ignore[assignment]
    assert (await view(request)).content == b"user:7"


async def test_a_view_that_raises_releases(web: AsyncClient) -> None:
    with pytest.raises(ValueError, match="the view's own"):
        await web.get("/broken/")
    assert await alist_locks() == []


async def test_a_lock_lost_under_the_view_goes_up_but_not_over_its_own_error(web: AsyncClient) -> None:
    with pytest.raises(LockLost):
        await web.get("/stolen/")
    with pytest.raises(ValueError, match="the view's own"):
        await web.get("/stolen/?raise")


async def test_the_view_never_runs_while_redis_is_away(web: AsyncClient, settings: Settings) -> None:
    with redis_server() as gone:
        url = gone.url
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    with pytest.raises(LockUnavailable) as caught:
        await web.get("/order/1/")
    assert caught.value.name == "order:1"
    settings.REDISLOCK = {"VIEW_UNAVAILABLE_STATUS": 503}
    answer = await web.get("/order/1/")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"


async def test_a_finished_view_answers_though_its_release_fails(settings: Settings) -> None:
    with redis_server() as own:
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own.url}}

        @locked_view("order")
        async def view(request: HttpRequest) -> HttpResponse:
            own.stop()
            return HttpResponse("paid")

        assert (await view(AsyncRequestFactory().get("/"))).content == b"paid"
        own.start()
        async with FairLock("order", blocking_timeout=20):
            pass


async def test_a_sync_view_that_is_locked_runs_under_the_asynchronous_handler(settings: Settings) -> None:
    settings.ROOT_URLCONF = "tests.test_decorators"
    assert (await AsyncClient().get("/order/1/")).content == b"order:1"
    async with Lock("order:1"):
        assert (await AsyncClient().get("/order/1/")).status_code == 423
    assert await alist_locks() == []


async def test_a_sync_view_may_not_be_called_in_a_coroutine() -> None:
    with pytest.raises(SynchronousOnlyOperation, match="an async view"):
        sync_view(RequestFactory().get("/"))


async def test_an_async_method_decorated_as_a_function_is_told_how_to() -> None:
    class Wrong(View):
        @locked_view("x")
        async def get(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("not reached")

    with pytest.raises(TypeError, match="method_decorator"):
        await Wrong.as_view()(AsyncRequestFactory().get("/"))  # type: ignore[misc]
