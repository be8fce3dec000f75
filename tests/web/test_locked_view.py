"""``locked_view``: one request at a time, the owner that is shown, and the response to the others."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from secrets import token_hex
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.decorators import api_view
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView

from django_redislock import Lock, LockInfo, LockUnavailable, list_locks, locked_view
from django_redislock.testing import hold
from redisserver import RedisServer
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Crowd, Other, never, until
from tests.helpers.databases import Account
from tests.helpers.docs import blocks, page
from tests.helpers.proxy import Proxy
from tests.helpers.servers import LEFT_OPEN, Page, Pages, Twins, Web, arespond, lock_names
from tests.helpers.state import queued, value
from tests.inside import INFO

pytestmark = LEFT_OPEN
new_class: Any = type


def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse(site.names())


def plain(method: str = "GET") -> HttpRequest:
    return RequestFactory().generic(method, "/")


def test_a_view_runs_under_the_lock_of_its_url_however_long(me: Any, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/<str:pk>/", "order:{pk}", lambda request, pk: lock_names(client))
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

    @wraps(never)
    def hide(request: HttpRequest, slug: str) -> Any:
        return never(request, 5)

    with pytest.raises(ValueError, match=r"has no argument 'pk'\. Available values: request, slug\."):
        key(hide)
    of_itself = locked_view("account:{self.pk}")
    with pytest.raises(ValueError, match=r"look\(\) has no argument 'self'\. Available values: pk, request\."):
        of_itself(look)
    assert of_itself(lambda request, self: respond(request))(plain(), self=User()).content == b"account:7"
    view = method_decorator(key, name="dispatch")(new_class("OnDispatch", (View,), {"get": never})).as_view()
    with pytest.raises(ValueError, match=r"Available values: args, request\."):
        view(plain(), 3)


def test_all_methods_but_options_lock_unless_some_are_named(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    for route, methods in [("all", None), ("post", ["post"]), ("options", ["options"])]:
        pages.add(f"{route}/", "order", lambda request: lock_names(client), methods=methods)
    me, you, lock = crowd(), crowd(), Lock("order")
    for url, method, locks in [
        *[("/all/", method, True) for method in ("GET", "HEAD", "POST", "PURGE", "get")],
        *[("/all/", "OPTIONS", False), ("/post/", "POST", True), ("/post/", "GET", False)],
        *[("/options/", "OPTIONS", True), ("/options/", "GET", False)],
    ]:
        response = me(pages, "get", url, method)
        assert (url, method, response.content) == (url, method, b"order" if locks and method != "HEAD" else b"")
        you(lock, "acquire")
        assert me(pages, "get", url, method).status_code == (423 if locks else 200)
        you(lock, "release")


documented: dict[str, Any] = {}
exec(blocks(page("views"))[1], documented)
middleware = documented["one_request_per_session"]


def test_the_documented_middleware_guards_the_session(other: Any, gate: site.Gate, client: Any, settings: Any) -> None:
    settings.SESSION_ENGINE, settings.SESSION_CACHE_ALIAS = "django.contrib.sessions.backends.cache", "memory"
    settings.MIDDLEWARE = [f"{__name__}.middleware", "django.contrib.sessions.middleware.SessionMiddleware"]

    def count(request: Any) -> HttpResponse:
        number = request.session.get("number", 0)
        site.wait_at("gate", request)
        request.session["number"] = number + 1
        return HttpResponse(str(number + 1))

    def visit(query: str) -> Any:
        return Client(headers={"cookie": f"sessionid={browser.cookies['sessionid'].value}"}).get(query).content

    settings.ROOT_URLCONF = (path("", count),)
    browser = Client()
    assert browser.get("/").content == b"1"
    visits = [other().start(lambda: visit("/?gate=here"))]
    assert gate.reached.wait(GENEROUS)
    visits.append(other().start(lambda: visit("/")))
    until(lambda: queued(client, *lock_names(client)))
    gate.go_on.set()
    assert [each.result(GENEROUS) for each in visits] == [b"2", b"3"]


@pytest.mark.parametrize(
    "options", [{"blocking_timeout": GENEROUS}, {"blocking": True}, {"poll": True, "attempts": 999}]
)
def test_an_option_that_says_how_to_wait_waits(options: Any, me: Any, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/", "order", lambda request: lock_names(client), **options)
    with hold("order", ttl=0.3):
        assert me(pages, "get", "/order/").content == b"order"
    assert lock_names(client) == []


Private: Any = new_class("Private", (LoginRequiredMixin, Page), {})
lock = locked_view("order")
permitted = permission_required("shop.sell")
ABOVE: dict[str, Callable[[], Any]] = {
    "login_required": lambda: lock(login_required(respond)),
    "permission_required, with one in between": lambda: lock(never_cache(permitted(respond))),
    "async": lambda: lock(login_required(arespond)),
    "the whole class": lambda: lock(Private.as_view()),
    "dispatch of the mixin": lambda: site.decorated(Private, lock).as_view(),
    "dispatch": lambda: site.decorated(Page, lock, login_required).as_view(),
}
BELOW: dict[str, Callable[[], Any]] = {
    "login_required": lambda: login_required(lock(respond)),
    "async": lambda: login_required(lock(arespond)),
    "dispatch": lambda: site.decorated(Page, login_required, lock).as_view(),
    "dispatch of the mixin": lambda: new_class("Mine", (LoginRequiredMixin, site.decorated(Page, lock)), {}).as_view(),
    "a method": lambda: new_class("Mine", (Private,), {"get": method_decorator(lock)(Page.get)}).as_view(),
}


@pytest.mark.parametrize(
    ("make", "status"),
    [*[(make, 423) for make in ABOVE.values()], *[(make, 302) for make in BELOW.values()]],
    ids=[*[f"above {name}" for name in ABOVE], *[f"below {name}" for name in BELOW]],
)
def test_above_login_required_strangers_learn_what_is_busy(make: Any, status: int, other: Callable[[], Other]) -> None:
    async def stranger() -> AnonymousUser:
        return AnonymousUser()

    request: Any = plain()
    request.user, request.auser = AnonymousUser(), stranger
    assert other()(Lock("order").acquire)
    expected = r"^locked_view locks .* before the user is checked: anybody can lock"
    with pytest.warns(RuntimeWarning, match=expected) if status == 423 else nullcontext() as caught:
        view = make()
        assert (async_to_sync(view) if iscoroutinefunction(view) else view)(request).status_code == status
    if caught and make is ABOVE["login_required"]:  # the warning names the line that decorates
        assert (caught[0].filename, caught[0].lineno) == (__file__, make.__code__.co_firstlineno)


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
    for given in ("GET", 5):
        with pytest.raises(TypeError, match=rf"^methods must be a list .*, such as \['GET'\], not {given!r}\.$"):
            locked_view("x", methods=given)  # type: ignore[arg-type]
    for wrong in ("nobody", lambda: HttpResponse(), lambda *, request, info: None):
        with pytest.raises(TypeError, match=r"^on_conflict must be a callable \(request, info\), not .*: .+\.$"):
            locked_view("x", on_conflict=wrong)  # type: ignore[arg-type]
    locked_view("x", on_conflict=max)  # type: ignore[arg-type]  # it has no signature
    with pytest.raises(TypeError, match=r"locked_view cannot decorate the class .*: .*method_decorator\(.*dispatch"):
        locked_view("x")(Methods)
    with pytest.raises(TypeError, match=r"locked_view cannot decorate .*: no signature found.* Decorate a function"):
        locked_view("x")(async_to_sync(arespond))
    hiding: Any = locked_view("x")(lambda request: arespond(request))
    with pytest.raises(TypeError, match=r"cannot lock .*lambda.* is free again\. .*markcoroutinefunction"):
        hiding(plain())
    assert list_locks() == []


def test_a_method_whose_first_argument_is_not_self_is_told_how_to_do_it(crowd: Crowd) -> None:
    methods = Twins(locked_view("x"), lambda this, request: never())
    wrong = type("Wrong", (View,), {"call": methods.call, "acall": methods.acall})
    with pytest.raises(TypeError, match=r"where a request was expected.*@method_decorator\(locked_view\(\.\.\.\)\)"):
        crowd()(wrong(), "call", plain())


def owner_of(name: str = "who", **attributes: Any) -> str:
    """The owner, without the process, while a request with these attributes holds the lock."""
    request = RequestFactory().get("/a/")
    request.__dict__.update(attributes)
    return locked_view(name)(lambda request: list_locks()[0].owner.partition(" ")[2])(request)


LOADED = SimpleNamespace(pk="a b")


@pytest.mark.parametrize(
    ("attributes", "owner"),
    [
        ({"user": SimpleNamespace(pk=7, name="Eve")}, "user=7 GET /a/"),
        ({"user": SimpleNamespace(pk=None)}, "GET /a/"),
        ({"user": SimpleLazyObject(never)}, "GET /a/"),
        ({"user": SimpleLazyObject(never), "_acached_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        # the name of the lock has loaded it
        ({"user": SimpleLazyObject(lambda: LOADED), "name": "{request.user.pk}"}, "user=a%20b GET /a/"),
        ({}, "GET /a/"),
        # as in a view of Django REST framework, once it is authenticated
        ({"_request": RequestFactory().get("/a/"), "_user": SimpleNamespace(pk=7)}, "user=7 GET /a/"),
        # it cannot imitate another owner
        ({"path": "/a user=1 /b\nweb:1:Main%\u202e"}, "GET /a%20user=1%20/b%0Aweb%3A1%3AMain%25?"),
    ],
)
def test_the_owner_is_the_request_and_a_loaded_user(attributes: dict[str, Any], owner: str) -> None:
    assert owner_of(**attributes) == owner


def by_agent(request: HttpRequest) -> str:
    return f"agent {request.headers['User-Agent']} {query()}"


@pytest.mark.parametrize(("setting", "shown"), [(None, ""), (f"{__name__}.by_agent", " agent curl/7 7")])
def test_the_setting_decides_what_is_shown(
    setting: str | None, shown: str, crowd: Crowd, pages: Pages, client: redis.Redis, settings: Any
) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": setting}
    pages.add("order/", "who", lambda request: " ".join(value(client, "who")))
    found = crowd()(pages, "get", "/order/", **{"user-agent": "curl/7"}).content.decode()
    assert found.endswith(shown)
    assert "order" not in found


def test_without_one_the_log_shows_no_path(crowd: Crowd, pages: Pages, own: Any, settings: Any, caplog: Any) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": None, "VIEW_UNAVAILABLE_STATUS": 503, "RETRY_FOR": 0.1}
    pages.add("secret/", "who", lambda request: own.stop())
    assert [crowd()(pages, "get", "/secret/").status_code for _ in range(2)] == [200, 503]
    ours = [record.getMessage() for record in caplog.records if record.name == "django_redislock"]
    assert {"event=not-released", "event=unavailable"} <= {message.split()[0] for message in ours}
    assert "secret" not in "".join(ours)


def test_a_result_that_is_no_text_is_an_error_that_names_the_function(client: redis.Redis, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_OWNER": f"{__name__}.speechless"}
    message = rf"^REDISLOCK\['VIEW_OWNER'\] = '{__name__}.speechless' must return a str, not None\.$"
    with pytest.raises(TypeError, match=message):
        owner_of()
    assert client.keys() == []


Busy = Callable[..., Any]


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
    assert (response.status_code, response.headers["Vary"]) == (423, "Accept")
    assert response.headers["Retry-After"] == "1"  # whatever is left of the lease
    assert "try again in 1 second." in response.content.decode()
    settings.REDISLOCK = {"VIEW_STATUS": 409}
    assert busy().status_code == 409


def user_who_asks_the_database(request: HttpRequest) -> dict[str, Any]:
    return {"user": query}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/html"),
        ("application/json;q=0.9,text/html;q=0.5", "application/json"),
        ("application/vnd.api+json; version=2", "application/json"),
        ('*/*;q=0.1, application/vnd.api+json; ext="a;b"', "application/json"),
        ("text/html;q=0.4, application/problem+json;q=0.5", "application/json"),
        ("text/html;q=0.5, application/problem+json;q=0.4", "text/html"),
        ("text/plain", "text/plain"),
        ("image/png", "text/plain"),
    ],
)
def test_the_423_comes_in_the_form_that_clients_prefer(accept: str, kind: str, busy: Busy, tmp_path: Path) -> None:
    # an operator in {% if %} takes any error for False, also that something asks the database in an event loop
    text = "<h1>Locked for {% if user == 7 %}{{ user }}{% endif %}, {{ retry_after }} s</h1>"
    (tmp_path / "423.html").write_text(text)
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


def test_it_says_for_how_long_such_views_usually_hold_the_lock_or_it_is_suspended(me: Any, pages: Pages) -> None:
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

    pages.add("<int:pk>/<str:seconds>/", "slow:{pk}", body, template=token_hex())
    assert (held_for(), held_for(1.01) >= 2) == (1, True)  # whole seconds
    with override_settings(REDISLOCK={"VIEW_MAX_RETRY_AFTER": 1}):
        assert held_for() == 1
    assert held_for(0, 0) == 1  # some took longer
    Lock("slow:0").suspend(600)
    assert 500 < int(me(pages, "get", "/0/0/").headers["Retry-After"]) <= 600


def test_it_remembers_no_more_than_1000_templates() -> None:
    for _ in range(1001):
        view = locked_view("order", template=token_hex())(respond)
        view(plain())
    with hold("order"):
        assert view(plain()).headers["Retry-After"] == "1"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_request_that_holds_the_lock_itself_is_told_so(reentrant: bool, crowd: Crowd, pages: Pages) -> None:
    view = Twins(locked_view("order", reentrant=reentrant), lambda request: HttpResponse("inside"))
    decorate = locked_view("order")

    pages.add_view("order/", decorate(view.acall if pages.awaits else view.call))
    response = crowd()(pages, "get", "/order/")
    told = b"This request holds the lock itself. It could acquire it again with reentrant=True."
    assert (response.status_code, response.content) == ((200, b"inside") if reentrant else (423, told))


calls: list[str] = []


def conflict(request: HttpRequest, info: LockInfo) -> HttpResponse:
    calls.append("begun")
    return HttpResponse(f"{info.owner} has {info.name}", status=409)


async def aconflict(request: HttpRequest, info: LockInfo) -> HttpResponse:
    await asyncio.sleep(0)
    return conflict(request, info)


def conflict_with_a_query(request: HttpRequest, info: LockInfo) -> HttpResponse:
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


def test_the_view_never_runs_while_redis_is_away(me: Any, pages: Pages, own: RedisServer, settings: Any) -> None:
    pages.add("order/", "order", never)
    own.stop()
    with pytest.raises(LockUnavailable) as caught:
        me(pages, "get", "/order/")
    assert caught.value.name == "order"
    settings.REDISLOCK = {"VIEW_UNAVAILABLE_STATUS": 503}
    response = me(pages, "get", "/order/")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert b"try again" in response.content
