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
from tests.helpers.servers import LEFT_OPEN, Pages, Web, asgi_server
from tests.helpers.state import outlives
from tests.inside import undo_interrupted

pytestmark = LEFT_OPEN
SQLITE = pytest.mark.parametrize("account", ["sqlite"], indirect=True)


def held() -> list[str]:
    return [lock.name for lock in list_locks()]


def get(view: Callable[..., Any]) -> Any:
    return view(RequestFactory().get("/"))


@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "one is rolled back"])
@pytest.mark.usefixtures("account", "second")
def test_the_lock_is_held_until_the_last_transaction_has_ended(rolled_back: bool, eventually: Any) -> None:
    view = locked_view("account", ttl=1)(lambda request: HttpResponse())
    with transaction.atomic("second"):
        with suppress(ZeroDivisionError), transaction.atomic("default"):
            get(view)
            if rolled_back:
                raise ZeroDivisionError
        eventually(lambda: outlives(1, "account"))
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


@pytest.mark.parametrize("commits", [True, False])
def test_after_a_view_that_raises_the_lock_is_held_until_the_end(commits: bool, account: Account) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        raise KeyboardInterrupt

    request = RequestFactory().get("/")
    with transaction.atomic():
        with pytest.raises(KeyboardInterrupt):
            view(request)
        assert held() == ["account"]
        transaction.set_rollback(not commits)
    if not commits:
        request.close()
    assert (held(), account.balance) == ([], commits)


def test_a_rollback_to_a_savepoint_releases(account: Account, eventually: Any) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            site.function(RequestFactory().get("/?raise"), pk=1)
        eventually(lambda: not list_locks())


def test_a_stream_that_its_view_does_not_return_after_all_is_kept_until_commit(account: Account) -> None:
    with transaction.atomic():
        assert b"".join(site.stream(RequestFactory().get("/"), pk=1)) == b"account:1;account:1;"
        assert held() == ["account:1"]
    assert held() == []


def test_a_cached_page_can_be_loaded_without_this_package_and_releases_nothing(account: Account) -> None:
    with transaction.atomic():
        stored = pickle.dumps(site.function(RequestFactory().get("/"), pk=1))
        assert b"django_redislock" not in stored
        assert pickle.loads(stored)._resource_closers == []
    assert held() == []


@SQLITE
def test_in_a_testcase_the_end_of_the_request_releases(in_testcase: None, atomic: Account, webs: Any) -> None:
    for name in ["function", "one-method", "rest-one-method"]:
        assert webs["client"].get(f"/{name}/1/").body.strip(b'"') == b"account:1"
        assert held() == []
    assert atomic.balance == 3


def test_with_autocommit_off_the_end_of_the_request_releases(account: Account) -> None:
    request = RequestFactory().get("/")
    transaction.set_autocommit(False)
    site.function(request, pk=1)
    transaction.commit()
    assert held() == ["account:1"]
    request.close()
    assert held() == []
    transaction.set_autocommit(True)


@SQLITE
def test_a_middleware_that_replaces_or_caches_keeps_no_lock(atomic: Account, eventually: Any, web: Web) -> None:
    for trouble in ["replace", "break", "raise&replace"]:
        for name in ["function", "stream", "one-method", "below-api-view"]:
            assert web.get(f"/{name}/1/?{trouble}").status in (500, 503)
            eventually(lambda: not list_locks())
    before = atomic.balance
    first, second = web.get("/cached/1/"), web.get("/cached/1/")
    assert (first.status, second.status, second.body) == (200, 200, first.body)
    assert (atomic.balance, held()) == (before + 1, [])


def ask_and_keep(web: Web, path: str) -> socket.socket:
    """Send a request, and do not read the response."""
    connection = socket.create_connection(("127.0.0.1", web.port), timeout=GENEROUS)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


@SQLITE
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("name", ["function", "one-method", "stream", "async-stream"])
def test_a_client_that_hangs_up_while_the_view_runs_leaves_no_lock(
    name: str, kind: str, atomic: Account, webs: dict[str, Web], gate: site.Gate, eventually: Any
) -> None:
    atomic.options["ATOMIC_REQUESTS"] = name != "async-stream"
    for trouble in ("", "&raise"):
        connection = ask_and_keep(webs[kind], f"/{name}/1/?gate-before=here{trouble}")
        assert gate.reached.wait(GENEROUS)
        assert held() == ["account:1"]
        connection.close()
        eventually(webs[kind].is_idle)
        gate.go_on.set()
        eventually(lambda: gc.collect() is not None and not list_locks())
        gate.reached.clear()
        gate.go_on.clear()


def test_a_plain_view_keeps_its_lock_while_it_runs_even_if_its_client_hangs_up(
    settings: Any, gate: site.Gate, eventually: Any
) -> None:
    settings.ROOT_URLCONF = site.__name__
    settings.MIDDLEWARE = []  # with sync middleware, the task of the request would wait for the view
    with asgi_server() as web:
        connection = ask_and_keep(web, "/short-stream/1/?gate-before=here")
        assert gate.reached.wait(GENEROUS)
        connection.close()
        eventually(web.is_idle)
        eventually(lambda: outlives(1, "account:1"))
        gate.go_on.set()
        eventually(lambda: not list_locks())


def test_a_client_that_hangs_up_while_it_reads_leaves_no_lock(webs: Any, gate: site.Gate, eventually: Any) -> None:
    for kind, name, query in [("wsgi", "stream", "gate=here"), ("asgi", "async-stream", "endless")]:
        connection = ask_and_keep(webs[kind], f"/{name}/1/?{query}")
        assert connection.recv(10)
        connection.close()
        gate.go_on.set()
        eventually(lambda: not list_locks())


@SQLITE
@pytest.mark.parametrize("response", [StreamingHttpResponse, HttpResponse])
def test_an_inner_view_does_not_release_the_lock_of_the_outer_one(response: Any, account: Any, eventually: Any) -> None:
    inner = locked_view("account", reentrant=True)(lambda request: response([b"x"]))

    @locked_view("account", ttl=1)
    def outer(request: HttpRequest) -> str:
        with transaction.atomic():
            assert b"".join(inner(request)) == b"x"
        undo_interrupted()
        request.close()
        eventually(lambda: outlives(1, "account"))
        return "|".join(held())

    assert (get(outer), held()) == ("account", [])


@SQLITE
@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("late", [False, True])
def test_a_finished_view_responds_even_if_its_release_fails_and_that_is_sent_again(
    late: bool, crowd: Crowd, pages: Pages, own: RedisServer, retry_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    retry_for(0.1)

    def pay(request: HttpRequest) -> str:
        own.stop()
        return "paid"

    pages.add("pay/", "order", pay)
    if late and not crowd.awaits:  # coroutines have no transactions
        pages.urlpatterns[0].callback = transaction.atomic(pages.urlpatterns[0].callback)
    me = crowd()
    assert me(pages, "get", "/pay/").content == b"paid"
    assert 'event=not-released name=order request="GET /pay/" error=' in caplog.text
    own.start()
    assert me(Lock("order"), "acquire", blocking_timeout=GENEROUS)
