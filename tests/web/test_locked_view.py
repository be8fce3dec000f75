"""``locked_view``: one request at a time, for sync and async views."""
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
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

from django_redislock import Lock, LockLost, list_locks, lock_digest, locked_view
from django_redislock.testing import hold
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import queued, value
from tests.helpers.twins import Pages, Twins, lock_names
from tests.inside import keys_of

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

    class Post(Page):
        pass

    key, key_of_post = (locked_view("class:{pk}", methods=methods) for methods in (None, ["POST"]))
    pages.add_view("dispatch/<int:pk>/", method_decorator(key, name="dispatch")(Dispatch).as_view())
    pages.add_view("whole/<int:pk>/", key(Page.as_view()))
    pages.add_view("post/<int:pk>/", method_decorator(key_of_post, name="dispatch")(Post).as_view())
    me, you, lock = crowd(), crowd(), Lock("class:3")
    for path, held, busy in [
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


def test_a_method_is_locked_as_by_method_decorator(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    methods = Twins(locked_view("order:{pk}"), lambda self, request, pk: lock_names(client), HttpResponse)

    class Page(View):
        get = methods.acall if pages.awaits else methods.call

    pages.add_view("order/<int:pk>/", Page.as_view())
    assert crowd()(pages, "get", "/order/3/").content == b"order:3"


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


def test_a_callable_makes_the_name(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    def name(request: HttpRequest, pk: int) -> str:
        return f"by:{request.method}:{pk}"

    pages.add("order/<int:pk>/", name, lambda request, pk: lock_names(client))
    assert crowd()(pages, "get", "/order/3/").content == b"by:GET:3"


def test_no_value_in_a_url_is_too_long_for_a_name(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    pages.add("order/<str:pk>/", "order:{pk}", lambda request, pk: lock_names(client))
    one, other = (crowd()(pages, "get", f"/order/{'x' * 600}{end}/").content.decode() for end in "ab")
    assert one.startswith("order:xxx")
    assert one != other
    assert len(one) <= 512


def test_an_unknown_field_names_those_that_there_are(crowd: Crowd, pages: Pages) -> None:
    pages.add("order/<int:pk>/", "user:{request.user.pk}:{nothing}", lambda request, pk: never())
    with pytest.raises(ValueError, match=r"Available values: pk, request\."):
        crowd()(pages, "get", "/order/1/")


def test_the_lock_is_as_its_options_say(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    def look(request: HttpRequest) -> list[Any]:
        key = keys_of("order").lock
        return [client.get(key), b"\n", client.pttl(key)]

    pages.add("order/", "order", look, ttl=500, note="paid at the desk")
    _, note, left = crowd()(pages, "get", "/order/").content.split(b"\n")
    assert note == b"paid at the desk"
    assert 300_000 < int(left) <= 500_000


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


@pytest.mark.parametrize(
    ("options", "trouble"),
    [({"name": "order:{kp}"}, "lock name 'order:{kp}'"), ({"name": "x", "note": "of {kp}"}, "note 'of {kp}'")],
)
def test_a_field_that_no_request_can_fill_is_an_error_where_it_decorates(options: dict[str, Any], trouble: str) -> None:
    def view(this: HttpRequest, pk: int) -> HttpResponse:
        raise AssertionError("not reached")

    expected = (
        f"Cannot fill the {trouble}: {view.__qualname__}() has no argument 'kp'. Available values: pk, request, this."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        locked_view(**options)(view)
    with pytest.raises(ValueError, match=r"has no argument 'kp'\. Available values: pk, request, self\."):
        locked_view(**options)(lambda self, request, pk: never())


@pytest.mark.parametrize("view", [with_default, Methods.as_view()], ids=["function", "class"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
def test_arguments_have_their_names_however_they_come(method: str, view: Callable[..., HttpResponse]) -> None:
    request = plain(method=method)
    assert view(request, pk=3).content == b"account:3"
    assert view(request, 3).content == b"account:3"
    assert view(request).content == b"account:9"


def test_positional_arguments_of_any_view_have_their_names(crowd: Crowd, client: redis.Redis) -> None:
    me, view = crowd(), Twins(key, lambda request, pk: lock_names(client), HttpResponse)
    assert me(view, "call", plain(), "7").content == b"account:7"
    assert me(view, "call", plain(), pk="7").content == b"account:7"


@pytest.mark.parametrize("argument", ["view", "self", "args", "lease", "name"])
def test_the_arguments_of_a_url_may_have_any_name(argument: str) -> None:
    view = locked_view(f"page:{{{argument}}}")(lambda request, **kwargs: respond(request))
    assert view(plain(), **{argument: "a"}).content == b"page:a"


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


def test_note_and_token_are_templates_too(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    def look(request: HttpRequest, pk: int) -> list[str]:
        holder = " ".join(value(client, "order"))
        return [str(lock_digest(pk) in holder), ",", holder.partition("\n")[2]]

    pages.add("order/<int:pk>/", "order", look, note="{request.method} {pk}", token="{pk:digest}")
    assert crowd()(pages, "get", "/order/3/", "POST").content == b"True,POST 3"


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


@pytest.fixture
def slow(pages: Pages, client: redis.Redis) -> Slow:
    """Add the view /slow/ that sets the first event, waits for the second, and responds with what it holds."""

    def slow(**options: Any) -> tuple[threading.Event, threading.Event]:
        inside, go_on = threading.Event(), threading.Event()

        def body(request: HttpRequest) -> Generator[None, None, Any]:
            inside.set()
            while not go_on.is_set():
                yield
            return lock_names(client)

        pages.add("slow/", "slow", body, **options)
        return inside, go_on

    return slow


def test_of_two_requests_at_once_one_is_refused(crowd: Crowd, pages: Pages, slow: Slow) -> None:
    inside, go_on = slow()
    me, you = crowd(), crowd()
    first = me.start(pages, "get", "/slow/")
    assert inside.wait(GENEROUS)
    assert you(pages, "get", "/slow/").status_code == 423
    go_on.set()
    response = first.result(GENEROUS)
    assert (response.status_code, response.content) == (200, b"slow")
    assert you(pages, "get", "/slow/").status_code == 200


def test_a_request_may_wait_for_another(
    crowd: Crowd,
    pages: Pages,
    slow: Slow,
    client: redis.Redis,
    eventually: Eventually,
) -> None:
    inside, go_on = slow(blocking_timeout=GENEROUS)
    first = crowd().start(pages, "get", "/slow/")
    assert inside.wait(GENEROUS)
    second = crowd().start(pages, "get", "/slow/")
    eventually(lambda: queued(client, "slow"))
    go_on.set()
    for response in (first.result(GENEROUS), second.result(GENEROUS)):
        assert (response.status_code, response.content) == (200, b"slow")
    assert lock_names(client) == []


# -- the end --------------------------------------------------------------------------------------------------------


def test_a_view_that_raises_releases(crowd: Crowd, pages: Pages, client: redis.Redis) -> None:
    def fail(request: HttpRequest) -> None:
        assert lock_names(client) == ["order"]
        raise ValueError("the view's own")

    pages.add("order/", "order", fail)
    with pytest.raises(ValueError, match="the view's own"):
        crowd()(pages, "get", "/order/")
    assert lock_names(client) == []


def test_a_lock_lost_under_the_view_raises_unless_the_view_raised_itself(
    crowd: Crowd, pages: Pages, client: redis.Redis
) -> None:
    def lose(request: HttpRequest) -> None:
        client.flushall()
        if "raise" in request.GET:
            raise ValueError("the view's own")

    pages.add("order/", "order", lose)
    me = crowd()
    with pytest.raises(LockLost, match="'order' was lost"):
        me(pages, "get", "/order/")
    with pytest.raises(ValueError, match="the view's own"):
        me(pages, "get", "/order/?raise")


def test_a_finished_view_responds_even_if_its_release_fails(
    crowd: Crowd,
    pages: Pages,
    own: RedisServer,
    retry_for: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry_for(0.1)

    def work(request: HttpRequest) -> str:
        own.stop()
        return "paid"

    pages.add("pay/", "order", work)
    me = crowd()
    assert me(pages, "get", "/pay/").content == b"paid"
    assert 'event=not-released name=order request="GET /pay/" error=' in caplog.text
    own.start()
    assert me(Lock("order"), "acquire", blocking_timeout=GENEROUS)


def test_a_view_that_is_interrupted_releases(client: redis.Redis) -> None:
    @locked_view("order")
    def view(request: HttpRequest) -> HttpResponse:
        assert lock_names(client) == ["order"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view(plain())
    assert lock_names(client) == []


# -- wrong uses -----------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_errors_that_name_the_choices() -> None:
    with pytest.raises(ValueError, match=r"methods must name some of GET, .*; not PSOT"):
        locked_view("x", methods=["GET", "PSOT"])
    with pytest.raises(ValueError, match=r"methods must name some of GET, .*; not 5"):
        locked_view("x", methods=[5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"not none"):
        locked_view("x", methods=[])
    with pytest.raises(TypeError, match=r"such as \['GET'\]"):
        locked_view("x", methods="GET")
    for wrong in ("nobody", lambda: HttpResponse(), lambda request: HttpResponse(), lambda *, request, info: None):
        with pytest.raises(TypeError, match=r"^on_conflict must be a callable \(request, info\), not .*: .+\.$"):
            locked_view("x", on_conflict=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blocking_timeout must be 0 or more"):
        locked_view("x", blocking_timeout=-1)
    with pytest.raises(
        TypeError, match=r"^locked_view\(\) takes no option 'key'\. The options are: adopt, attempts, .*, using\.$"
    ):
        locked_view("x", key="y")  # type: ignore[call-arg]


def test_a_callable_without_a_signature_may_respond_to_conflicts() -> None:
    class Respond:
        @property
        def __signature__(self) -> None:
            raise ValueError("as some built-in functions do")

        def __call__(self, request: HttpRequest, info: object) -> HttpResponse:
            return HttpResponse("busy")

    locked_view("a", on_conflict=Respond())(lambda request: HttpResponse("ok"))


def test_what_runs_after_its_call_has_returned_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, agenerator):
        with pytest.raises(TypeError, match=r"locked_view cannot decorate .* is free again"):
            locked_view("x")(function)


def test_decorating_a_method_whose_first_argument_is_not_self_is_an_error_that_says_how_to_do_it(crowd: Crowd) -> None:
    methods = Twins(locked_view("x"), lambda this, request: never())

    class Wrong(View):
        call = methods.call
        acall = methods.acall

    with pytest.raises(TypeError, match=r"where a request was expected.*@method_decorator\(locked_view\(\.\.\.\)\)"):
        crowd()(Wrong(), "call", plain())


def test_without_arguments_it_is_refused_where_it_decorates() -> None:
    with pytest.raises(TypeError, match=r'^locked_view was given <function .*: write @locked_view\("order:{pk}"\), or'):
        locked_view(respond)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="A lock's name must be a str or a callable, not None"):
        locked_view()


@pytest.mark.parametrize("options", [{"blocking": True}, {"poll": True, "attempts": 1000}])
def test_an_option_that_says_how_to_wait_waits(options: dict[str, Any]) -> None:
    with hold("order", ttl=0.5):
        assert locked_view("order", **options)(respond)(plain()).content == b"order"


def test_decorating_a_class_is_an_error_that_says_how_to_do_it() -> None:
    with pytest.raises(TypeError, match=r"locked_view cannot decorate the class .*Wrong.*method_decorator\(.*dispatch"):

        @locked_view("x")
        class Wrong(View):
            pass
