"""``locked_view`` under ATOMIC_REQUESTS: the lock is held from before BEGIN until after COMMIT."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import caches
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import Lock, list_locks, locked_view
from redisserver import RedisServer
from tests.helpers import site
from tests.helpers.actors import Other
from tests.helpers.databases import Account, Commits
from tests.helpers.servers import LEFT_OPEN, Web

Both = tuple[Account, Account]
pytestmark = LEFT_OPEN
REQUESTS = 500


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
    for name, method, held in rows:
        commits.seen.clear()
        response = web.get(f"/{name}/1/", method=method)
        assert (name, response.status, response.body.strip(b'"').decode()) == (name, 200, ",".join(held))
        assert sorted(commits.seen) == [("default", held, held), ("second", held, held)], name
        assert list_locks() == [], name


@pytest.mark.parametrize("method", ["GET", "OPTIONS"], ids=["locked", "not locked"])
def test_callbacks_of_on_commit_run_once_all_databases_have_committed(method: str, both: Both) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        for each in both:
            each.book()
            transaction.on_commit(fail, using=each.alias)
        return HttpResponse()

    with pytest.raises(ZeroDivisionError):
        view(RequestFactory().generic(method, "/"))
    assert ([each.balance for each in both], list_locks()) == ([1, 1], [])


def test_what_raises_or_has_lost_its_lock_is_rolled_back(atomic: Any, commits: Any, eventually: Any, web: Web) -> None:
    rows = [
        *[(f"/{name}/1/?raise", 500) for name in (*site.LOCKED_INSIDE, *site.LOCKED_LATE)],
        *[(f"/{name}/1/?invalid", 400) for name in ("rest-dispatch", "rest-one-method")],  # turned into a response
        *[(f"/{name}/1/", 500) for name in ("lost", "lost-late")],
    ]
    for path, status in rows:
        assert web.get(path).status == status
        eventually(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), path


def test_a_view_that_is_interrupted_rolls_back_and_one_that_is_refused_does_not_begin(
    atomic: Account, commits: Commits, other: Callable[[], Other]
) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        atomic.book()
        assert site.names() == "account"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view(RequestFactory().get("/"))
    assert (list_locks(), atomic.balance) == ([], 0)
    assert other()(Lock("account").acquire)
    assert view(RequestFactory().get("/")).status_code == 423
    assert commits.seen == []


def test_a_view_is_excluded_for_one_database_and_no_other_view_is(both: Both, commits: Commits, web: Web) -> None:
    for name in site.EXCLUDED:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").body.startswith(b"account:1"), name
        ((alias, before, after),) = commits.seen
        assert (alias, "account:1" in before, before) == ("second", True, after), name
        assert list_locks() == [], name
    excluded = site.decorated(site.OnDispatch, transaction.non_atomic_requests)
    for each, expected in [(excluded, {"second"}), (site.OnDispatch, {"second", "default"}), (excluded, {"second"})]:
        commits.seen.clear()
        each.as_view()(RequestFactory().get("/"), pk=1)
        assert {alias for alias, *_ in commits.seen} == expected
    commits.seen.clear()
    without_django: Any = locked_view("account")(lambda request: HttpResponse(site.work(request)))
    for alias in ("default", "second"):
        without_django._non_atomic_requests.add(alias)
    assert without_django(RequestFactory().get("/")).content == b"account"
    assert commits.seen == []


async def ask_all(port: int, path: str, requests: int = REQUESTS) -> Counter[int]:
    """Send all requests at once; return how many got which status."""

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
        return int(response.split()[1])

    return Counter(await asyncio.gather(*(ask() for _ in range(requests))))


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_50_requests_at_once_lose_no_update(webs: dict[str, Web], atomic: Account) -> None:
    assert asyncio.run(ask_all(webs["wsgi"].port, "/twice/1/", 50)) == {200: 50}
    assert atomic.balance == 50


@pytest.mark.complete
@pytest.mark.parametrize("account", ["postgres"], indirect=True)
def test_500_requests_at_once_lose_no_update_with_our_lock_and_some_with_another(
    webs: dict[str, Web], atomic: Account, server: RedisServer, own_pools: None, settings: Any
) -> None:
    options = {"CONNECTION_POOL_KWARGS": {"max_connections": 2 * REQUESTS}}
    own = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url.replace("/0", "/1"), "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "cache-lock": own}
    lost = {}
    for name in ("cache-lock", "twice", "twice-late"):
        atomic.balance = 0
        assert asyncio.run(ask_all(webs["wsgi"].port, f"/{name}/1/")) == {200: REQUESTS}
        lost[name] = REQUESTS - atomic.balance
    caches["cache-lock"].client.get_client().connection_pool.disconnect()  # type: ignore[attr-defined]
    assert lost.pop("cache-lock") > 0
    assert lost == {"twice": 0, "twice-late": 0}
