"""``locked_view`` under ATOMIC_REQUESTS: the lock is held from before BEGIN until after COMMIT."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import sys
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

Eventually = Callable[..., Any]
pytestmark = LEFT_OPEN
UNDER_THE_LOCK = (["account:1"], ["account:1"])  # the locks that are held before and after a COMMIT


def test_the_lock_begins_before_the_transaction_and_ends_after_it(atomic: Account, commits: Commits, web: Web) -> None:
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        commits.seen.clear()
        response = web.get(f"/{name}/1/")
        assert (name, response.status, response.body.strip(b'"')) == (name, 200, b"account:1")
        assert commits.seen == [("default", *UNDER_THE_LOCK)], name
        assert list_locks() == [], name


def test_on_several_databases_the_lock_is_held_until_all_have_committed(
    atomic: Account, second: Account, commits: Commits, web: Web
) -> None:
    second.options["ATOMIC_REQUESTS"] = True
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").status == 200
        assert sorted(commits.seen) == [("default", *UNDER_THE_LOCK), ("second", *UNDER_THE_LOCK)], name
        assert list_locks() == [], name


@pytest.mark.parametrize("method", ["GET", "OPTIONS"], ids=["locked", "not locked"])
def test_callbacks_of_on_commit_run_once_all_databases_have_committed(
    method: str, atomic: Account, second: Account
) -> None:
    second.options["ATOMIC_REQUESTS"] = True

    def fail() -> None:
        raise ZeroDivisionError

    @locked_view("account")
    def view(request: HttpRequest) -> HttpResponse:
        for each in (atomic, second):
            each.book()
            transaction.on_commit(fail, using=each.alias)
        return HttpResponse()

    with pytest.raises(ZeroDivisionError):
        view(RequestFactory().generic(method, "/"))
    assert (atomic.balance, second.balance, list_locks()) == (1, 1, [])


def test_two_locks_are_held_until_the_commit(atomic: Account, commits: Commits, web: Web) -> None:
    assert web.get("/two-locks/1/").body == b"account:1,outer:1"
    assert commits.seen == [("default", ["account:1", "outer:1"], ["account:1", "outer:1"])]
    assert list_locks() == []


def test_methods_that_do_not_lock_still_have_their_transaction(atomic: Account, commits: Commits, web: Web) -> None:
    assert web.get("/dispatch/1/", method="PUT").body == b""
    assert commits.seen == [("default", [], [])]


def test_a_request_that_is_refused_has_no_transaction(
    atomic: Account, commits: Commits, other: Callable[[], Other]
) -> None:
    view = locked_view("account")(lambda request: HttpResponse(site.work(request)))
    assert other()(Lock("account").acquire)
    assert view(RequestFactory().get("/")).status_code == 423
    assert commits.seen == []


def test_a_view_that_raises_rolls_back_and_releases(
    atomic: Account, commits: Commits, eventually: Eventually, web: Web
) -> None:
    for name in [*site.LOCKED_INSIDE, *site.LOCKED_LATE]:
        assert web.get(f"/{name}/1/?raise").status == 500
        eventually(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), name


def test_an_error_that_rest_framework_turns_into_a_response_rolls_back_and_releases(
    atomic: Account, commits: Commits, eventually: Eventually, web: Web
) -> None:
    for name in ["rest-dispatch", "rest-one-method"]:
        assert web.get(f"/{name}/1/?invalid").status == 400
        eventually(lambda: not list_locks())
        assert (atomic.balance, commits.seen) == (0, []), name


def test_work_under_a_lost_lock_is_not_committed(atomic: Account, commits: Commits, web: Web) -> None:
    for name in ["lost", "lost-late"]:
        assert web.get(f"/{name}/1/").status == 500
        assert (atomic.balance, commits.seen) == (0, []), name


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


def test_a_view_that_is_excluded_from_transactions_has_none(atomic: Account, commits: Commits, web: Web) -> None:
    for name in site.EXCLUDED:
        assert web.get(f"/{name}/1/").body.startswith(b"account:1"), name
        assert (commits.seen, list_locks()) == ([], []), name


def test_a_view_that_is_excluded_for_one_database_is_not_for_another(
    atomic: Account, second: Account, commits: Commits, web: Web
) -> None:
    second.options["ATOMIC_REQUESTS"] = True
    for name in site.EXCLUDED:
        commits.seen.clear()
        assert web.get(f"/{name}/1/").status == 200
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
    @locked_view("account")
    def decorated(request: HttpRequest) -> HttpResponse:
        return HttpResponse(site.work(request))

    decorated._non_atomic_requests.add("default")  # type: ignore[attr-defined]
    assert decorated(RequestFactory().get("/")).content == b"account"
    assert commits.seen == []


def test_djangos_decorator_still_passes_the_view_as_our_mark_expects() -> None:
    """If this fails, adapt OpenedHere.add() to how Django calls it now."""

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
