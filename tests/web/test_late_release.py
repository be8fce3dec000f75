"""``locked_view`` inside a transaction that Django has begun: the lock must not be released when the view returns."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import gc
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockError, list_locks, locked_view
from redisserver import RedisServer
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.databases import Account
from tests.helpers.processes import Worker
from tests.helpers.servers import LEFT_OPEN, Web
from tests.helpers.state import outlives
from tests.helpers.twins import Pages
from tests.inside import undo_interrupted

Settings = Any  # its type has another name in each pytest-django
Eventually = Callable[..., Any]
pytestmark = LEFT_OPEN


def held() -> list[str]:
    return [lock.name for lock in list_locks()]


def get(view: Callable[..., Any]) -> Any:
    return view(RequestFactory().get("/"))


def fail(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


# -- until COMMIT ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "one is rolled back"])
def test_the_lock_is_held_until_the_last_transaction_has_ended_however_long_that_takes(
    rolled_back: bool, account: Account, second: Account, eventually: Eventually
) -> None:
    view = locked_view("account", ttl=2)(lambda request: HttpResponse())
    with transaction.atomic("second"):
        with suppress(ZeroDivisionError), transaction.atomic("default"):
            get(view)
            if rolled_back:
                raise ZeroDivisionError
        eventually(lambda: outlives(2, "account"))
    if rolled_back:
        eventually(lambda: not list_locks())
    assert held() == []


def test_callbacks_that_a_method_registers_for_its_commit_run_under_its_lock(account: Account) -> None:
    told: list[object] = []

    def again() -> None:
        with Lock("account", reentrant=True) as lock:
            told.append(lock.owned())
        with pytest.raises(LockError, match="would wait for itself"):
            Lock("account").acquire()

    @locked_view("account", reentrant=True)
    def view(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(again)
        return HttpResponse()

    with transaction.atomic():
        for _ in range(2):  # as one request may call the view several times
            get(view)
        again()
        assert held() == ["account"]
    assert (told, held()) == ([True] * 3, [])
    with Lock("account"):
        pass


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("commits", [True, False])
def test_after_a_view_that_raises_the_lock_is_held_until_its_transaction_has_ended(
    commits: bool, error: type[BaseException], account: Account
) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        raise error

    request = RequestFactory().get("/")
    with transaction.atomic():
        with pytest.raises(error):
            view(request)
        assert held() == ["account"]
        transaction.set_rollback(not commits)
    if not commits:
        request.close()
    assert held() == []
    assert account.balance == commits


def test_a_rollback_releases_though_nobody_closes_the_request(
    atomic: Account, settings: Settings, webs: dict[str, Web], eventually: Eventually
) -> None:
    settings.DEBUG_PROPAGATE_EXCEPTIONS = True
    with pytest.raises(ZeroDivisionError):
        webs["client"].get("/one-method/1/?raise")
    eventually(lambda: not list_locks())
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # a savepoint
            site.function(RequestFactory().get("/?raise"), pk=1)
        eventually(lambda: not list_locks())


def test_a_stream_that_its_view_does_not_return_after_all_is_kept_until_commit(account: Account) -> None:
    with transaction.atomic():
        response: Any = site.stream(RequestFactory().get("/"), pk=1)
        assert b"".join(response) == b"account:1;account:1;"
        assert held() == ["account:1"]
    assert held() == []


# -- where no end is seen -------------------------------------------------------------------------------------------


def test_under_the_transaction_of_a_testcase_the_end_of_the_request_releases(
    in_testcase: None, atomic: Account, webs: dict[str, Web]
) -> None:
    for name in ["function", "one-method"]:
        assert webs["client"].get(f"/{name}/1/").body == b"account:1"
        assert held() == []
    assert atomic.balance == 2


def test_with_autocommit_off_the_end_of_the_request_releases(account: Account) -> None:
    request = RequestFactory().get("/")
    transaction.set_autocommit(False)
    site.function(request, pk=1)
    assert held() == ["account:1"]
    transaction.commit()
    assert held() == ["account:1"]
    request.close()
    assert held() == []
    transaction.set_autocommit(True)


# -- responses that are replaced or kept ----------------------------------------------------------------------------


def test_a_middleware_that_replaces_the_response_does_not_keep_the_lock(
    atomic: Account, eventually: Eventually, web: Web
) -> None:
    for trouble in ["replace", "break", "raise&replace"]:
        for name in ["function", "stream", "one-method", "below-api-view"]:
            assert web.get(f"/{name}/1/?{trouble}").status in (500, 503)
            eventually(lambda: not list_locks())


def test_the_page_of_a_locked_method_is_cached(atomic: Account, web: Web) -> None:
    for name, balance in [("cached", 1), ("cached-rest", 2)]:
        first, second = web.get(f"/{name}/1/"), web.get(f"/{name}/1/")
        assert (first.status, second.status, second.body) == (200, 200, first.body)
        assert (atomic.balance, held()) == (balance, [])


def test_a_cached_page_can_be_loaded_without_this_package_and_releases_nothing(account: Account) -> None:
    with transaction.atomic():
        stored = pickle.dumps(site.function(RequestFactory().get("/"), pk=1))
        assert b"django_redislock" not in stored
        assert pickle.loads(stored)._resource_closers == []
        assert held() == ["account:1"]
    assert held() == []


# -- views within views ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "respond",
    [lambda request: StreamingHttpResponse([b"x"]), lambda request: HttpResponse(b"x"), fail],
    ids=["streams", "responds", "raises"],
)
def test_an_inner_view_does_not_release_the_lock_of_the_outer_one(
    respond: Any, account: Account, eventually: Eventually
) -> None:
    short = locked_view("account", reentrant=True, ttl=2)
    inner = short(respond)

    @short
    def outer(request: HttpRequest) -> str:
        with suppress(ZeroDivisionError), transaction.atomic():
            assert b"".join(inner(request)) == b"x"
        undo_interrupted()
        request.close()
        eventually(lambda: outlives(2, "account"))
        return "|".join(held())

    assert get(outer) == "account"
    assert held() == []


# -- trouble --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_a_finished_view_responds_even_if_its_release_fails_and_that_is_sent_again(
    late: bool,
    crowd: Crowd,
    pages: Pages,
    account: Account,
    own: RedisServer,
    retry_for: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    if late and crowd.awaits:
        pytest.skip("coroutines have no transactions")
    account.options["ATOMIC_REQUESTS"] = False
    retry_for(0.1)

    def pay(request: HttpRequest) -> str:
        own.stop()
        return "paid"

    pages.add("pay/", "order", pay)
    if late:
        pages.urlpatterns[0].callback = transaction.atomic(pages.urlpatterns[0].callback)
    me = crowd()
    assert me(pages, "get", "/pay/").content == b"paid"
    assert 'event=not-released name=order request="GET /pay/" error=' in caplog.text
    own.start()
    assert me(Lock("order"), "acquire", blocking_timeout=GENEROUS)


FORKED = """
from django.http import StreamingHttpResponse
from django.test import RequestFactory

@locked_view("report")
def view(request):
    return StreamingHttpResponse([b"x"])

response = view(RequestFactory().get("/"))
child = os.fork()
if child:
    os.waitpid(child, 0)
response.close()
say("child" if not child else "parent", bool(get_lock("report")))
if not child:
    os._exit(0)
"""


def test_a_forked_child_does_not_release_what_its_parent_holds(start: Callable[..., Worker]) -> None:
    worker = start(FORKED)
    assert worker.expect("child") == ["True"]
    assert worker.expect("parent") == ["False"]


def ask_and_keep(web: Web, path: str) -> socket.socket:
    """Send a request, and do not read the response."""
    connection = socket.create_connection(("127.0.0.1", web.port), timeout=GENEROUS)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("trouble", ["", "&raise"])
@pytest.mark.parametrize("name", ["function", "one-method", "stream", "async-stream", "below-api-view"])
def test_a_client_that_disconnects_while_the_view_runs_leaves_no_lock(
    name: str,
    trouble: str,
    kind: str,
    atomic: Account,
    webs: dict[str, Web],
    gate: site.Gate,
    eventually: Eventually,
) -> None:
    atomic.options["ATOMIC_REQUESTS"] = name != "async-stream"
    connection = ask_and_keep(webs[kind], f"/{name}/1/?gate-before=here{trouble}")
    assert gate.reached.wait(GENEROUS)
    assert held() == ["account:1"]
    connection.close()
    eventually(webs[kind].is_idle)
    gate.go_on.set()
    eventually(lambda: gc.collect() is not None and not list_locks())


def test_a_client_that_disconnects_while_it_reads_a_stream_leaves_no_lock(
    webs: dict[str, Web], gate: site.Gate, eventually: Eventually
) -> None:
    for kind, name, query in [("wsgi", "stream", "gate=here"), ("asgi", "async-stream", "endless")]:
        connection = ask_and_keep(webs[kind], f"/{name}/1/?{query}")
        assert connection.recv(10)
        connection.close()
        gate.go_on.set()
        eventually(lambda: not list_locks())
