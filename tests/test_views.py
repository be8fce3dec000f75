"""``locked_view`` and transactions, run by real servers and by Django's test clients."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import gc
import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_redislock import Lock, get_lock, list_locks, locked_view
from django_redislock.watchdog import watchdog
from redisserver import redis_server

from . import site
from .actors import GENEROUS, Other
from .databases import Account, Commits
from .servers import AsyncTestClient, SyncTestClient, Web, asgi_server, wsgi_server

Settings = Any
Eventually = Callable[..., Any]
# what Django leaves open when a client goes or a stream raises, and its asynchronous test client at any time
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function (SpooledTemporaryFile|BaseConnection)\.__del__|sqlite3\.Connection)"
    ":pytest.PytestUnraisableExceptionWarning"
)
SITE = {"ROOT_URLCONF": site.__name__, "MIDDLEWARE": [f"{site.__name__}.middleware"]}


@pytest.fixture(scope="module")
def webs() -> Iterator[dict[str, Web]]:
    with ExitStack() as stack:
        stack.enter_context(override_settings(**SITE))
        yield {
            "wsgi": stack.enter_context(wsgi_server()),
            "asgi": stack.enter_context(asgi_server()),
            "client": SyncTestClient(),
            "async-client": AsyncTestClient(),
        }
    gc.collect()


@pytest.fixture(params=["wsgi", "asgi", "client", "async-client"])
def web(request: pytest.FixtureRequest, webs: dict[str, Web]) -> Web:
    return webs[request.param]


@pytest.fixture
def gate() -> Iterator[site.Gate]:
    """For ?gate=here."""
    site.gates["here"] = made = site.Gate()
    yield made
    made.go_on.set()


@pytest.fixture(autouse=True)
def _no_ends() -> None:
    site.ends.clear()


@pytest.fixture
def atomic(account: Account) -> Account:
    """ATOMIC_REQUESTS is on."""
    account.options["ATOMIC_REQUESTS"] = True
    return account


def test_the_lock_begins_before_the_transaction_and_ends_after_it(atomic: Account, commits: Commits, web: Web) -> None:
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        commits.seen.clear()
        answer = web.get(f"/{name}/1/")
        assert (name, answer.status, answer.body.strip(b'"')) == (name, 200, b"account:1")
        assert commits.seen == [("default", ["account:1"], ["account:1"])], name
        assert list_locks() == [], name


def test_on_several_databases_the_lock_is_held_until_all_have_committed(
    atomic: Account, second: Account, commits: Commits, web: Web
) -> None:
    second.options["ATOMIC_REQUESTS"] = True
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").status == 200
        assert sorted(commits.seen) == [(alias, ["account:1"], ["account:1"]) for alias in ("default", "second")], name
        assert list_locks() == [], name


def test_who_excludes_a_view_from_transactions_gets_none(atomic: Account, commits: Commits, web: Web) -> None:
    for name in site.EXCLUDED:
        assert web.get(f"/{name}/1/").body.startswith(b"account:1"), name
        assert (commits.seen, list_locks()) == ([], []), name


def test_what_is_excluded_for_one_database_is_not_for_another(
    atomic: Account, second: Account, commits: Commits, web: Web
) -> None:
    second.options["ATOMIC_REQUESTS"] = True
    for name in site.EXCLUDED:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").status == 200
        (seen,) = commits.seen
        assert (seen[0], "account:1" in seen[1], seen[1]) == ("second", True, seen[2]), name
        assert list_locks() == [], name


def test_methods_that_do_not_lock_still_have_their_transaction(atomic: Account, commits: Commits, web: Web) -> None:
    assert web.get("/dispatch/1/", method="PUT").body == b""
    assert commits.seen == [("default", [], [])]


def test_two_locks_are_held_until_the_commit(atomic: Account, commits: Commits, web: Web) -> None:
    assert web.get("/two-locks/1/").body == b"account:1,outer:1"
    assert commits.seen == [("default", ["account:1", "outer:1"], ["account:1", "outer:1"])]
    assert list_locks() == []


def test_a_view_that_raises_rolls_back_and_releases(
    atomic: Account, commits: Commits, eventually: Eventually, web: Web
) -> None:
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        assert web.get(f"/{name}/1/?raise").status == 500
        eventually(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), name


@pytest.mark.parametrize("name", ["rest-dispatch", "rest-one-method"])
def test_an_error_that_rest_framework_answers_rolls_back_and_releases(
    name: str, atomic: Account, eventually: Eventually, web: Web
) -> None:
    assert web.get(f"/{name}/1/?invalid").status == 400
    eventually(lambda: not list_locks())
    assert atomic.balance == 0


@pytest.mark.parametrize("trouble", ["replace", "break", "raise&replace"])
def test_a_middleware_that_replaces_the_response_does_not_keep_the_lock(
    trouble: str, atomic: Account, eventually: Eventually, web: Web
) -> None:
    for name in ["function", "stream", "one-method", "below-api-view"]:
        assert web.get(f"/{name}/1/?{trouble}").status in (500, 503)
        eventually(lambda: not list_locks())


def test_under_the_transaction_of_a_testcase_the_end_of_the_request_releases(
    in_testcase: None, atomic: Account, webs: dict[str, Web]
) -> None:
    for name in ["function", "one-method"]:
        assert webs["client"].get(f"/{name}/1/").body == b"account:1"
        assert list_locks() == []
    assert atomic.balance == 2


def test_what_was_done_under_a_lost_lock_is_not_committed(atomic: Account, commits: Commits, web: Web) -> None:
    for name in ["lost", "lost-late"]:
        assert web.get(f"/{name}/1/").status == 500
        assert (atomic.balance, commits.seen) == (0, [])


def test_when_no_hook_runs_the_lock_goes_with_its_lease(
    atomic: Account, settings: Settings, webs: dict[str, Web], eventually: Eventually
) -> None:
    settings.DEBUG_PROPAGATE_EXCEPTIONS = True
    with pytest.raises(ZeroDivisionError):
        webs["client"].get("/short-method/1/?raise")
    (lease,) = watchdog._leases.values()
    assert not lease.renewing
    assert [lock.name for lock in list_locks()] == ["account:1"]
    eventually(lambda: not list_locks(), within=0.5 + 2)


def test_with_autocommit_off_the_end_of_the_request_releases(account: Account) -> None:
    request = RequestFactory().get("/")
    transaction.set_autocommit(False)
    site.function(request, pk=1)
    assert [lock.name for lock in list_locks()] == ["account:1"]
    transaction.commit()
    request.close()
    assert list_locks() == []
    transaction.set_autocommit(True)


def test_a_late_release_that_redis_does_not_hear_is_made_up_for(
    account: Account, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server() as own:
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own.url}}

        @locked_view("account")
        def view(request: HttpRequest) -> HttpResponse:
            own.stop()
            return HttpResponse("paid")

        with transaction.atomic():
            assert view(RequestFactory().get("/pay/")).content == b"paid"
        assert "event=not-released name=account path=/pay/ error=" in caplog.text
        own.start()
        with Lock("account", blocking_timeout=GENEROUS):
            pass


# -- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_keeps_the_lock_until_it_ends(account: Account, eventually: Eventually, web: Web) -> None:
    for name in site.STREAMS:
        account.options["ATOMIC_REQUESTS"] = name != "async-stream"
        answer = web.get(f"/{name}/1/")
        assert (name, answer.status, answer.body) == (name, 200, b"account:1;account:1;")
        eventually(lambda: not list_locks())
        assert (name, site.ends) == (name, ["account:1;"])
        site.ends.clear()


@pytest.mark.parametrize("kind", ["wsgi", "client"])
def test_a_stream_may_last_longer_than_the_ttl(
    kind: str, webs: dict[str, Web], gate: site.Gate, other: Callable[[], Other], eventually: Eventually
) -> None:
    answer = other().start(lambda: webs[kind].get("/stream/1/?gate=here"))
    assert gate.reached.wait(GENEROUS)
    (lease,) = watchdog._leases.values()
    first_end = lease.ends
    eventually(lambda: lease.ends > first_end + 0.5)
    gate.go_on.set()
    assert answer.result(GENEROUS).body == b"account:1;account:1;"
    eventually(lambda: not list_locks())


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_that_raises_releases(eventually: Eventually, web: Web) -> None:
    with suppress(http.client.HTTPException, ZeroDivisionError):
        web.get("/stream/1/?raise")
    eventually(lambda: not list_locks())
    assert site.ends == ["account:1;"]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_an_answer_without_its_body_releases_too(eventually: Eventually, web: Web) -> None:
    for name in ("stream", "async-stream"):
        assert web.get(f"/{name}/1/", method="HEAD").status == 200
        eventually(lambda: not list_locks())


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_files_and_lists_release_too(eventually: Eventually, web: Web) -> None:
    for name, start in [("file", b'"""'), ("list", b"ab")]:
        assert web.get(f"/{name}/1/").body.startswith(start)
        eventually(lambda: not list_locks())


@pytest.mark.django_db  # closing a response looks after the connections
def test_a_file_stays_one_for_the_server(client: Any) -> None:
    response = site.file(RequestFactory().get("/"), pk=1)
    assert response.file_to_stream is not None  # type: ignore[attr-defined]
    response.close()
    assert list_locks() == []


@pytest.mark.django_db  # closing a response looks after the connections
def test_a_stream_that_is_closed_unread_releases() -> None:
    response = site.stream(RequestFactory().get("/"), pk=1)
    response.close()
    assert (list_locks(), site.ends) == ([], [])


def test_a_stream_keeps_the_lock_while_it_is_alive_and_no_longer(eventually: Eventually) -> None:
    response: Any = site.stream(RequestFactory().get("/"), pk=1)
    (lease,) = watchdog._leases.values()
    first_end = lease.ends
    eventually(lambda: lease.ends > first_end + 0.5)
    del response
    gc.collect()
    eventually(lambda: not list_locks(), within=0.5 + 2)
    assert lease.lost


@pytest.mark.django_db  # closing a response looks after the connections
async def test_a_stream_closed_in_an_event_loop_does_not_block_it(monkeypatch: pytest.MonkeyPatch) -> None:
    response = await sync_to_async(site.stream)(RequestFactory().get("/"), pk=1)
    (lease,) = watchdog._leases.values()
    with monkeypatch.context() as patch:
        patch.setattr(type(lease.backend), "execute", None)  # what would block
        response.close()
        response.close()
    assert lease.closed
    await sync_to_async(Lock("account:1", blocking_timeout=GENEROUS).acquire)()


async def test_an_asynchronous_stream_that_is_left_halfway_ends_under_the_lock(eventually: Eventually) -> None:
    response: Any = await site.async_stream(AsyncRequestFactory().get("/"), pk=1)
    content = response._iterator
    assert await anext(content) == b"account:1;"
    await content.aclose()
    assert site.ends == ["account:1;"]
    await sync_to_async(eventually)(lambda: not list_locks())


def test_a_plain_asynchronous_iterator_will_do(eventually: Eventually) -> None:
    class Numbers:
        left = 2

        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return b"x"

    @locked_view("numbers")
    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(Numbers())

    async def read() -> bytes:
        response: Any = await sync_to_async(view)(RequestFactory().get("/"))
        return b"".join([part async for part in response])

    assert async_to_sync(read)() == b"xx"
    eventually(lambda: not list_locks())


# -- clients that go away -------------------------------------------------------------------------------------------


def ask_and_keep(web: Web, path: str) -> socket.socket:
    """Send a request; the answer is not read."""
    connection = socket.create_connection(("127.0.0.1", web.port), timeout=GENEROUS)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


@pytest.mark.parametrize("name", ["function", "one-method", "stream", "below-api-view"])
def test_a_client_that_goes_while_the_view_works_leaves_no_lock(
    name: str, atomic: Account, webs: dict[str, Web], gate: site.Gate, eventually: Eventually
) -> None:
    for kind in ("wsgi", "asgi"):
        gate.reached.clear()
        gate.go_on.clear()
        before = "gate-before" if name == "stream" else "gate"
        connection = ask_and_keep(webs[kind], f"/{name}/1/?{before}=here")
        assert gate.reached.wait(GENEROUS)
        connection.close()
        eventually(webs[kind].is_idle)
        gate.go_on.set()
        eventually(lambda: gc.collect() is not None and not list_locks(), within=0.5 + 2)


def test_a_client_that_goes_while_it_reads_a_stream_leaves_no_lock(
    webs: dict[str, Web], gate: site.Gate, eventually: Eventually
) -> None:
    for kind, name, query in [("wsgi", "stream", "gate=here"), ("asgi", "async-stream", "endless")]:
        connection = ask_and_keep(webs[kind], f"/{name}/1/?{query}")
        assert connection.recv(10)
        connection.close()
        gate.go_on.set()
        eventually(lambda: not list_locks())


# -- coroutines -----------------------------------------------------------------------------------------------------


def test_asynchronous_views_of_every_kind_lock(account: Account, web: Web) -> None:
    for name in site.ASYNC:
        assert (name, web.get(f"/{name}/1/").body) == (name, b"account:1")
        assert list_locks() == []
    assert web.get("/async-dispatch/1/", method="PUT").body == b""


async def test_a_busy_asynchronous_view_answers_423_with_the_lease_of_the_holder() -> None:
    @locked_view("account")
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("not reached")

    async with Lock("account", ttl=9):
        answer = await view(AsyncRequestFactory().get("/", headers={"accept": "application/json"}))
    assert (answer.status_code, answer.headers["Retry-After"]) == (423, "9")
    assert json.loads(answer.content)["retry_after"] == 9


def test_asynchronous_views_under_atomic_requests_are_refused_as_django_refuses_them(
    atomic: Account, webs: dict[str, Web]
) -> None:
    for name in site.ASYNC:
        for method in ("GET", "PUT"):
            with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
                Client().generic(method, f"/{name}/1/")


# -- methods, and who asks ------------------------------------------------------------------------------------------


def test_head_locks_as_get_does_and_options_when_it_is_named(client: Any) -> None:
    answers = {"HEAD": 423, "GET": 423, "OPTIONS": 200}

    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @locked_view("account", methods=["options"])
    def options(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with Lock("account"):
        for method, status in answers.items():
            request = RequestFactory().generic(method, "/")
            assert (method, view(request).status_code) == (method, status)
        assert options(RequestFactory().options("/")).status_code == 423
        assert options(RequestFactory().get("/")).status_code == 200


@pytest.mark.parametrize("method", ["PURGE", "CONNECT", "get", "QUERY"])
def test_no_client_escapes_the_lock_by_a_method_of_its_own(method: str) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("not reached")

    with Lock("account"):
        assert view(RequestFactory().generic(method, "/")).status_code == 423


def busy(request: Any) -> HttpResponse:
    raise AssertionError("not reached")


def test_rest_views_are_answered_423_in_json() -> None:
    class OneMethod(APIView):
        get = method_decorator(locked_view("account"))(lambda self, request: busy(request))

    class OnDispatch(APIView):
        pass

    method_decorator(locked_view("account"), name="dispatch")(OnDispatch)
    above, below = locked_view("account")(api_view(["GET"])(busy)), api_view(["GET"])(locked_view("account")(busy))
    with Lock("account", ttl=9):
        for view in (OneMethod.as_view(), OnDispatch.as_view(), above, below):
            answer = view(RequestFactory().get("/", headers={"accept": "application/json; version=2"}))
            assert (answer.status_code, answer.headers["Retry-After"]) == (423, "9")
            assert json.loads(answer.content)["retry_after"] == 9
            assert "Accept" in answer.headers["Vary"]


def tell_who(request: Any) -> HttpResponse:
    lock = get_lock("who")
    assert lock is not None
    return HttpResponse(lock.owner.partition(" ")[2])


who = locked_view("who")(tell_who)


def not_loaded() -> Any:
    raise AssertionError("the user was loaded")


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
def test_the_owner_is_the_request_and_the_primary_key_of_a_user_who_is_known(
    attributes: dict[str, Any], owner: str
) -> None:
    request = RequestFactory().get("/a/")
    request.__dict__.update(attributes)
    assert who(request).content.decode() == owner


def test_a_user_who_is_in_the_name_is_known() -> None:
    @locked_view("who:{request.user.pk}")
    def view(request: HttpRequest) -> HttpResponse:
        (lock,) = list_locks()
        return HttpResponse(f"{lock.name} {lock.owner}")

    request = RequestFactory().get("/a/")
    request.user = SimpleLazyObject(lambda: SimpleNamespace(pk="a b"))  # type: ignore[assignment]
    answer = view(request).content.decode()
    assert answer.startswith("who:a%20b ")
    assert answer.endswith(" user=a b GET /a/")


def test_the_user_of_a_rest_view_is_known_once_it_is_authenticated() -> None:
    class Authentication(BaseAuthentication):
        def authenticate(self, request: Any) -> tuple[Any, None]:
            return SimpleNamespace(pk=7, is_active=True, is_authenticated=True), None

    class View(APIView):
        authentication_classes = (Authentication,)
        get = method_decorator(locked_view("who"))(lambda self, request: tell_who(request))

    assert View.as_view()(RequestFactory().get("/a/")).content == b"user=7 GET /a/"


def test_non_atomic_requests_around_a_decorated_class_is_of_that_class_only(atomic: Account, commits: Commits) -> None:
    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Excluded(site.OnDispatch):
        pass

    for view, expected in [(Excluded, 0), (site.OnDispatch, 1), (Excluded, 1)]:
        view.as_view()(RequestFactory().get("/"), pk=1)
        assert len(commits.seen) == expected


def test_djangos_decorator_still_keeps_the_view_where_our_mark_looks_for_it() -> None:
    """If this fails, OpenedHere.add() has to learn how Django calls it now."""

    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("not reached")

    seen = []

    class Mark:
        def add(self, alias: str) -> None:
            seen.append((alias, sys._getframe(1).f_locals["view"]))

    view._non_atomic_requests = Mark()  # type: ignore[attr-defined]
    transaction.non_atomic_requests(using="second")(view)
    transaction.non_atomic_requests(view)
    assert seen == [("second", view), ("default", view)]


def test_what_is_excluded_without_the_decorator_counts_too(atomic: Account, commits: Commits) -> None:
    @locked_view("account")
    def decorated(request: HttpRequest) -> HttpResponse:
        return site.respond(request)  # type: ignore[return-value]

    decorated._non_atomic_requests.add("default")  # type: ignore[attr-defined]
    assert decorated(RequestFactory().get("/")).content == b"account"
    assert commits.seen == []


def test_a_forked_child_does_not_release_what_its_parent_holds(account: Account) -> None:
    response = site.stream(RequestFactory().get("/"), pk=1)
    (lease,) = watchdog._leases.values()
    lease.owner._pid += 1
    response.close()
    assert [lock.name for lock in list_locks()] == ["account:1"]
