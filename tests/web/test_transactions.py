"""``locked_view`` and transactions: what Django begins after the lock, and before it."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
import gc
import pickle
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockError, list_locks, locked_view
from redisserver import RedisServer
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.databases import Account, Commits
from tests.helpers.servers import LEFT_OPEN, Pages, Web, asgi_server
from tests.helpers.state import held, outlives
from tests.inside import leases, undo_interrupted

Both = tuple[Account, Account]
pytestmark = LEFT_OPEN
SQLITE = pytest.mark.parametrize("account", ["sqlite"], indirect=True)


def get(view: Callable[..., Any]) -> Any:
    return view(RequestFactory().get("/"))


@pytest.fixture
def both(atomic: Account, second: Account) -> Both:
    """ATOMIC_REQUESTS is on for two databases."""
    second.options["ATOMIC_REQUESTS"] = True
    return atomic, second


def test_the_lock_is_held_from_before_begin_until_all_have_committed(both: Both, commits: Commits, web: Web) -> None:
    one = ["account:1"]
    rows = [
        *[(name, "GET", one) for name in (*site.LOCKED_INSIDE, *site.LOCKED_LATE)],
        ("two-locks", "GET", ["account:1", "outer:1"]),
        ("dispatch", "PUT", []),  # a method that does not lock still has its transactions
    ]
    for name, method, locked in rows:
        commits.seen.clear()
        response = web.get(f"/{name}/1/", method=method)
        assert (name, response.status, response.body.strip(b'"').decode()) == (name, 200, ",".join(locked))
        assert sorted(commits.seen) == [("default", locked, locked), ("second", locked, locked)], name
        assert list_locks() == [], name


@pytest.mark.parametrize("method", ["GET", "OPTIONS"], ids=["locked", "not locked"])
def test_callbacks_of_on_commit_run_once_all_databases_have_committed(method: str, both: Both) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        for each in both:
            each.book()
            transaction.on_commit(Mock(side_effect=ZeroDivisionError), using=each.alias)
        return HttpResponse()

    with pytest.raises(ZeroDivisionError):
        view(RequestFactory().generic(method, "/"))
    assert ([each.balance for each in both], list_locks()) == ([1, 1], [])


def test_what_raises_or_has_lost_its_lock_is_rolled_back(atomic: Any, commits: Any, web: Web) -> None:
    rows = [
        *[(f"/{name}/1/?raise", 500) for name in (*site.LOCKED_INSIDE, *site.LOCKED_LATE)],
        *[(f"/{name}/1/?invalid", 400) for name in ("rest-dispatch", "rest-one-method")],  # turned into a response
        *[(f"/{name}/1/", 500) for name in ("lost", "lost-late")],
    ]
    for path, status in rows:
        assert web.get(path).status == status
        until(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), path


def test_an_interrupted_view_rolls_back_and_a_refused_one_does_not_begin(atomic: Any, commits: Any, other: Any) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        atomic.book()
        assert site.names() == "account"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(view)
    assert (held(), atomic.balance) == ([], 0)
    assert other()(Lock("account").acquire)
    assert (get(view).status_code, commits.seen) == (423, [])


def test_a_view_is_excluded_for_one_database_below_the_lock(both: Both, commits: Commits, web: Web) -> None:
    for name in site.EXCLUDED:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").body.startswith(b"account:1"), name
        ((alias, before, after),) = commits.seen
        assert (alias, "account:1" in before, before) == ("second", True, after), name
        assert held() == [], name
    for above in (site.function, site.OnDispatch.as_view()):
        with pytest.raises(RuntimeError, match=r"^Put non_atomic_requests below locked_view"):
            transaction.non_atomic_requests(above)


@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "one is rolled back"])
@pytest.mark.usefixtures("account", "second")
@pytest.mark.complete
def test_the_lock_is_held_until_the_last_transaction_has_ended(rolled_back: bool) -> None:
    with transaction.atomic("second"):
        with transaction.atomic("default"):
            get(locked_view("account", ttl=3)(lambda request: HttpResponse()))
            transaction.set_rollback(rolled_back)
        until(lambda: outlives(3, "account"))
    if rolled_back:
        until(lambda: not list_locks())
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
    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        raise KeyboardInterrupt

    request = RequestFactory().get("/")
    with transaction.atomic():
        with pytest.raises(KeyboardInterrupt):
            locked_view("account")(view)(request)
        assert held() == ["account"]
        transaction.set_rollback(not commits)
    if not commits:
        request.close()
    assert (held(), account.balance) == ([], commits)


def test_a_rollback_to_a_savepoint_releases_and_the_fate_of_a_response_not(account: Any) -> None:
    request = RequestFactory().get("/")
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            site.function(RequestFactory().get("/?raise"), pk=1)
        until(lambda: not list_locks())
        assert b"".join(site.stream(request, pk=1)) == b"account:1;account:1;"  # the view does not return it
        assert held() == ["account:1"]
    assert held() == []
    with transaction.atomic():
        stored = pickle.dumps(site.function(request, pk=1))  # a cache loads it, maybe without this package
        assert b"django_redislock" not in stored
        assert pickle.loads(stored)._resource_closers == []
    assert held() == []


@SQLITE
def test_in_a_testcase_the_end_of_the_request_releases(in_testcase: None, atomic: Account, webs: Any) -> None:
    for name in ["function", "one-method", "rest-one-method"]:
        assert webs["client"].get(f"/{name}/1/").body.strip(b'"') == b"account:1"
        assert held() == []
    assert atomic.balance == 3


def test_with_autocommit_off_the_end_of_the_request_releases_not_that_of_a_stream(account: Account) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"x"

    async def read(response: Any) -> list[bytes]:
        return [part async for part in response]

    request = RequestFactory().get("/")
    transaction.set_autocommit(False)
    response = locked_view("account")(lambda request: StreamingHttpResponse(content()))(request)
    assert (asyncio.run(read(response)), held()) == ([b"x"], ["account"])
    transaction.commit()
    assert held() == ["account"]
    request.close()
    assert held() == []
    transaction.set_autocommit(True)


@pytest.mark.parametrize("raises", [False, True])
def test_with_autocommit_off_a_view_that_is_the_first_to_connect_keeps_its_lock(raises: bool, account: Account) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        return HttpResponse(1 / (not raises))

    account.options["AUTOCOMMIT"] = False
    connection.close()
    request = RequestFactory().get("/")
    with pytest.raises(ZeroDivisionError) if raises else nullcontext():
        locked_view("account")(view)(request)
    assert held() == ["account"]
    transaction.commit()
    request.close()
    assert held() == []


@SQLITE
def test_a_middleware_that_replaces_or_caches_keeps_no_lock(atomic: Account, web: Web) -> None:
    for trouble in ["replace", "break", "raise&replace"]:
        for name in ["function", "stream", "one-method", "below-api-view"]:
            assert web.get(f"/{name}/1/?{trouble}").status in (500, 503)
            until(lambda: not list_locks())
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
    name: str, kind: str, atomic: Account, webs: dict[str, Web], gate: site.Gate
) -> None:
    atomic.options["ATOMIC_REQUESTS"] = name != "async-stream"
    for trouble in ("", "&raise"):
        connection = ask_and_keep(webs[kind], f"/{name}/1/?gate-before=here{trouble}")
        assert gate.reached.wait(GENEROUS)
        assert held() == ["account:1"]
        connection.close()
        until(webs[kind].is_idle)
        gate.go_on.set()
        until(lambda: gc.collect() is not None and not list_locks())
        gate.reached.clear()
        gate.go_on.clear()


@pytest.mark.complete
def test_a_plain_view_whose_client_hangs_up_keeps_its_lock(settings: Any, gate: site.Gate) -> None:
    settings.ROOT_URLCONF = site.__name__
    settings.MIDDLEWARE = []  # with sync middleware, the task of the request would wait for the view
    with asgi_server() as web:
        connection = ask_and_keep(web, "/short-stream/1/?gate-before=here")
        assert gate.reached.wait(GENEROUS)
        connection.close()
        until(web.is_idle)
        until(lambda: outlives(3, "account:1"))
        gate.go_on.set()
        until(lambda: not list_locks())


def test_a_client_that_hangs_up_while_it_reads_leaves_no_lock(webs: Any, gate: site.Gate) -> None:
    for kind, name, query in [("wsgi", "stream", "gate=here"), ("asgi", "async-stream", "endless")]:
        connection = ask_and_keep(webs[kind], f"/{name}/1/?{query}")
        assert connection.recv(10)
        connection.close()
        gate.go_on.set()
        until(lambda: not list_locks())


@SQLITE
@pytest.mark.parametrize("response", [StreamingHttpResponse, HttpResponse])
@pytest.mark.complete
def test_an_inner_view_does_not_release_the_lock_of_the_outer_one(response: Any, account: Any) -> None:
    inner = locked_view("account", reentrant=True)(lambda request: response([b"x"]))

    @locked_view("account", ttl=3)
    def outer(request: HttpRequest) -> str:
        with transaction.atomic():
            assert b"".join(inner(request)) == b"x"
        undo_interrupted()
        request.close()
        until(lambda: outlives(3, "account"))
        return "|".join(held())

    assert (get(outer), held()) == ("account", [])


@SQLITE
@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("late", [False, True])
def test_a_finished_view_responds_even_if_its_release_fails_and_that_is_sent_again(
    late: bool, me: Any, crowd: Crowd, pages: Pages, own: RedisServer, retry_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    retry_for(0.1)

    def pay(request: HttpRequest) -> str:
        own.stop()
        return "paid"

    pages.add("pay/", "order", pay)
    if late and not crowd.awaits:  # coroutines have no transactions
        pages.urlpatterns[0].callback = transaction.atomic(pages.urlpatterns[0].callback)
    assert me(pages, "get", "/pay/").content == b"paid"
    assert 'event=not-released name=order request="GET /pay/" error=' in caplog.text
    own.start()
    assert me(Lock("order"), "acquire", blocking_timeout=GENEROUS)


@SQLITE
def test_the_log_says_how_long_a_lock_stays_whose_release_after_the_rollback_fails_as_well(
    account: Account, own: RedisServer, retry_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        own.stop()
        raise ZeroDivisionError

    retry_for(0.1)
    request = RequestFactory().get("/")
    with suppress(ZeroDivisionError), transaction.atomic():
        locked_view("order", ttl=30)(view)(request)
    until(lambda: not leases())  # it is being released in the background
    request.close()
    (line,) = [text for text in caplog.messages if text.startswith("event=not-released ")]
    assert 15 < float(line.rpartition("lease_left=")[2]) < 30
