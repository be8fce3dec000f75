"""``locked_view`` under ATOMIC_REQUESTS: the lock is held from before BEGIN until after COMMIT."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator

from django_redislock import Lock, list_locks, locked_view
from tests.helpers import site
from tests.helpers.actors import Other
from tests.helpers.databases import Account, Commits
from tests.helpers.servers import LEFT_OPEN, Web

pytestmark = LEFT_OPEN


@pytest.fixture
def both(atomic: Account, second: Account) -> tuple[Account, Account]:
    """ATOMIC_REQUESTS is on for two databases."""
    second.options["ATOMIC_REQUESTS"] = True
    return atomic, second


def test_the_lock_begins_before_the_transactions_and_ends_after_all_of_them(
    both: tuple[Account, Account], commits: Commits, web: Web
) -> None:
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
def test_callbacks_of_on_commit_run_once_all_databases_have_committed(
    method: str, both: tuple[Account, Account]
) -> None:
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


def test_a_request_that_is_refused_has_no_transaction(
    atomic: Account, commits: Commits, other: Callable[[], Other]
) -> None:
    view = locked_view("account")(lambda request: HttpResponse(site.work(request)))
    assert other()(Lock("account").acquire)
    assert view(RequestFactory().get("/")).status_code == 423
    assert commits.seen == []


def test_what_a_view_did_that_raises_or_has_lost_its_lock_is_rolled_back(
    atomic: Account, commits: Commits, eventually: Callable[..., Any], web: Web
) -> None:
    rows = [
        *[(f"/{name}/1/?raise", 500) for name in (*site.LOCKED_INSIDE, *site.LOCKED_LATE)],
        *[(f"/{name}/1/?invalid", 400) for name in ("rest-dispatch", "rest-one-method")],  # turned into a response
        *[(f"/{name}/1/", 500) for name in ("lost", "lost-late")],
    ]
    for path, status in rows:
        assert web.get(path).status == status
        eventually(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), path


def test_a_view_that_is_interrupted_rolls_back_and_releases(atomic: Account, commits: Commits) -> None:
    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        atomic.book()
        assert site.names() == "account"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view(RequestFactory().get("/"))
    assert (list_locks(), atomic.balance, commits.seen) == ([], 0, [])


# -- views without transactions -------------------------------------------------------------------------------------


def test_a_view_that_is_excluded_for_one_database_is_not_for_another(
    both: tuple[Account, Account], commits: Commits, web: Web
) -> None:
    for name in site.EXCLUDED:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").body.startswith(b"account:1"), name
        ((alias, before, after),) = commits.seen
        assert (alias, "account:1" in before, before) == ("second", True, after), name
        assert list_locks() == [], name


def test_non_atomic_requests_around_a_decorated_class_is_of_that_class_only(atomic: Account, commits: Commits) -> None:
    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Excluded(site.OnDispatch):
        pass

    for view, expected in [(Excluded, 0), (site.OnDispatch, 1), (Excluded, 1)]:
        view.as_view()(RequestFactory().get("/"), pk=1)
        assert len(commits.seen) == expected


def test_a_view_that_is_excluded_without_djangos_decorator_has_no_transaction(
    atomic: Account, commits: Commits
) -> None:
    decorated: Any = locked_view("account")(lambda request: HttpResponse(site.work(request)))
    decorated._non_atomic_requests.add("default")
    assert decorated(RequestFactory().get("/")).content == b"account"
    assert commits.seen == []
