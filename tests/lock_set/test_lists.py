"""Decorators with a list of names: all these locks around a transaction, a function or a view."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from django_redislock import (
    Lock,
    LockInfo,
    LockLost,
    LockNotAcquired,
    LockSet,
    LockUnavailable,
    Semaphore,
    force_release,
    limited_view,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.models import Fence
from django_redislock.testing import overtaken, redis_away
from tests.helpers.actors import never, until
from tests.helpers.databases import Account, Commits
from tests.helpers.state import held

A, B = "account:10", "account:3"
LIST = ["account:{b}", "account:{a}"]
AHEAD = 1_000_000_000  # microseconds


def fences() -> dict[str, int]:
    return dict(Fence.objects.values_list("name", "fence"))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Decorates a view of ``a`` and ``b`` that calls another function, and calls it: as it is, and as a coroutine."""

    def call(decorate: Any, inside: Callable[[], Any], a: int = 3, b: int = 10) -> Any:
        def view(request: HttpRequest, a: int, b: int) -> Any:
            return inside()

        async def aview(request: HttpRequest, a: int, b: int) -> Any:
            return await asyncio.to_thread(inside)

        got = RequestFactory().get("/")
        return asyncio.run(decorate(aview)(got, a, b)) if request.param else decorate(view)(got, a, b)

    return call


def test_a_function_holds_all_of_them(call: Any, heard: list[Any]) -> None:
    many = locked((*LIST, lambda request, a, b: f"pair:{a + b}"), note="from {a}", at_least=0)
    assert call(many, held) == [A, B, "pair:13"]
    for event in ("acquired", "released"):
        templates = {facts["name"]: facts["template"] for told, facts in heard if told == event}
        assert (templates[A], templates[B]) == ("account:{b}", "account:{a}")
    assert call(locked(LIST), held, 3, 3) == [B]
    assert call(locked(LIST, template="accounts"), lambda: heard[-1][1]["template"]) == "accounts"
    assert held() == []


def test_a_function_does_not_run_where_one_is_busy_and_ends_with_an_error_where_one_is_lost(
    call: Any, other: Any
) -> None:
    somebody, told = other(), list[LockLost]()
    somebody(Lock(B).acquire)
    with pytest.raises(LockNotAcquired, match=r"Of the set .*, none was acquired") as caught:
        call(locked(LIST, blocking_timeout=0.05), never)
    assert (caught.value.name, held()) == (B, [B])
    force_release(B)
    with pytest.raises(LockLost, match=B):
        call(locked(LIST, on_lost=told.append), lambda: [force_release(B), force_release(A)])
    until(lambda: told)
    assert (len(told), held()) == (1, [])
    with suppress(ZeroDivisionError):
        call(locked(LIST), lambda: 1 / 0)
    assert held() == []


def test_a_function_keeps_all_of_them_at_least_so_long(call: Any) -> None:
    call(locked(LIST, at_least=60), held)
    assert held() == [A, B]


def test_a_function_claims_all_of_them_in_its_transaction(account: Account) -> None:
    def book() -> None:
        assert {*fences()} == {A, B}
        account.book()

    with transaction.atomic():
        locked(LIST, fenced=True)(lambda a, b: book())(3, 10)
    assert account.balance == 1


@pytest.fixture(params=["block", "function"])
def atomic(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs something under a ``locked_atomic`` of both."""

    def run(work: Callable[[], object], **options: Any) -> None:
        if request.param == "function":
            locked_atomic(LIST, **options)(lambda a, b: work())(3, 10)
            return
        with locked_atomic([B, A], **options) as locks:
            assert isinstance(locks, LockSet)
            assert locks.names == (A, B)
            work()

    return run


def test_a_transaction_holds_all_of_them_until_commit(atomic: Any, account: Account, commits: Commits) -> None:
    atomic(account.book)
    assert commits.seen == [("default", [A, B], [A, B])]
    assert (held(), account.balance) == ([], 1)


def test_a_transaction_claims_all_of_them(atomic: Any, account: Account, ledger: Account) -> None:
    atomic(account.book, fenced=True)
    before = fences()
    assert {*before} == {A, B}
    Fence.objects.update(fence=max(before.values()) + AHEAD)  # of both: Redis was restored, say
    with pytest.raises(LockLost, match="was refused by the database"):
        atomic(account.book, fenced=True)
    atomic(account.book, fenced=True)
    assert min(fences().values()) > max(before.values()) + AHEAD
    for name in (A, B):
        with pytest.raises(LockLost, match=name), overtaken(name):
            atomic(account.book, fenced=True, auto_renew=False, poll=True)
    atomic(account.book, fenced=["ledger"], db=["default", "ledger"])
    assert {*Fence.objects.using("ledger").values_list("name", flat=True)} == {A, B}
    assert account.balance == 3


def test_a_transaction_is_rolled_back_where_one_is_lost(atomic: Any, account: Account, heard: list[Any]) -> None:
    def lose() -> None:
        account.book()
        force_release(B)
        until(lambda: [facts["name"] for event, facts in heard if event == "lost"] == [B])

    with pytest.raises(LockLost, match=B):
        atomic(lose, ttl=4)
    assert (account.balance, held()) == (0, [])


def test_a_second_lock_inside_of_a_transaction_is_refused_with_the_list_as_the_way_out(account: Account) -> None:
    with locked_atomic(A), pytest.raises(RuntimeError, match="give one locked_atomic the list of their names"):
        locked_atomic(B).__enter__()
    with locked_atomic(A), pytest.raises(RuntimeError, match=r"^locked_atomic\(\['account:3'\]\) must begin"):
        locked_atomic([B]).__enter__()


def test_a_view_holds_all_of_them_and_answers_423_where_one_is_busy(call: Any, other: Any) -> None:
    somebody, seen = other(), list[Any]()

    def respond(request: HttpRequest, info: LockInfo | None) -> HttpResponse:
        seen.append(info and info.name)
        return HttpResponse(status=409)

    assert call(locked_view(LIST), lambda: HttpResponse(" ".join(held()))).content.decode() == f"{A} {B}"
    assert held() == []
    somebody(Lock(B).acquire)
    assert call(locked_view(LIST), never).status_code == 423
    assert call(locked_view(LIST, on_conflict=respond), never).status_code == 409
    assert (seen, held()) == ([B], [B])


def test_a_view_that_raises_or_loses_one_of_them_raises(call: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        call(locked_view(LIST), lambda: 1 / 0)
    with pytest.raises(LockLost, match=B):
        call(locked_view(LIST), lambda: force_release(B))
    assert held() == []


def test_a_view_answers_while_redis_is_away(call: Any, settings: Any) -> None:
    settings.REDISLOCK = {"VIEW_UNAVAILABLE_STATUS": 503, "RETRY_FOR": 0.05}
    with redis_away():
        assert call(locked_view(LIST), never).status_code == 503
        settings.REDISLOCK = {"RETRY_FOR": 0.05}
        with pytest.raises(LockUnavailable):
            call(locked_view(LIST), never)


@pytest.mark.parametrize("begun", [False, True], ids=["begins inside", "has begun already"])
def test_a_view_holds_and_claims_all_of_them_until_commit(begun: bool, account: Account, commits: Commits) -> None:
    account.options["ATOMIC_REQUESTS"] = True

    @locked_view(LIST, fenced=True)
    def view(request: HttpRequest, a: int, b: int) -> HttpResponse:
        assert {*fences()} == {A, B}
        account.book()
        return HttpResponse()

    with transaction.atomic() if begun else nullcontext():
        view(RequestFactory().get("/"), 3, 10)
        assert held() == ([A, B] if begun else [])
    assert (held(), account.balance) == ([], 1)
    assert commits.seen == [("default", [A, B], [A, B])]


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_holds_all_of_them_until_it_ends() -> None:
    def content() -> Iterator[str]:
        with LockSet(A, B, reentrant=True):
            yield " ".join(held())

    view = locked_view(LIST)(lambda request, a, b: StreamingHttpResponse(content()))
    response = view(RequestFactory().get("/"), 3, 10)
    assert held() == [A, B]
    assert [*response] == [f"{A} {B}".encode()]
    assert held() == []


@pytest.mark.usefixtures("nowhere")
def test_bad_lists_are_errors_when_they_are_given() -> None:
    for decorator in (locked, locked_atomic, locked_view):
        what: Any = decorator
        wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (ValueError, "was given a list without a name", partial(what, [])),
            (ValueError, "was given a token, which is for one lock", partial(what, [A, B], token="t" * 43)),
            (TypeError, "takes no option 'adopt'", partial(what, [A, B], adopt=True)),
            (TypeError, "takes one name, not both", partial(what, [A], name=[B])),
            (TypeError, "must be a str or a callable, not 5", lambda: what([A, 5])(lambda request: None)),  # noqa: B023
            (ValueError, "has no argument 'c'", lambda: what([A, "{c}"])(lambda request: None)),  # noqa: B023
            (ValueError, "must not be empty", lambda: what([A, ""])(lambda request: None)),  # noqa: B023
            (TypeError, "not <Semaphore", lambda: what([A, Semaphore("x", limit=2)])(lambda request: None)),  # noqa: B023
        ]
        for error, text, act in wrong:
            with pytest.raises(error, match=text):
                act()
    with pytest.raises(TypeError, match="takes no option 'limit'"):
        locked([A, B], limit=2)
    with pytest.raises(ValueError, match="'semaphore:5' is a semaphore, and a set has locks alone"):
        locked([A, "semaphore:{a}"])(lambda a: None)(5)
    with pytest.raises(TypeError, match="limited_view takes one name, not a list"):
        limited_view([A, B], limit=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no arguments to fill 'account:\{a\}' with"):
        locked_atomic([A, "account:{a}"]).__enter__()
    with pytest.raises(TypeError, match="A with block has no arguments to make a name of"):
        locked_atomic([A, lambda: B]).__enter__()
    assert not iscoroutinefunction(locked([A])(never))


def test_a_set_is_claimed_in_a_transaction_of_ones_own(account: Account, recwarn: pytest.WarningsRecorder) -> None:
    async def claim() -> None:
        async with LockSet(A, B, fenced=True) as locks:
            atomic = transaction.atomic()
            await sync_to_async(atomic.__enter__)()
            await locks.aclaim()
            await sync_to_async(atomic.__exit__)(None, None, None)

    with LockSet(A, B, fenced=True) as locks:
        with transaction.atomic():
            locks.claim()
        assert fences() == locks.fences
    before = fences()
    async_to_sync(claim)()
    assert {name for name, fence in fences().items() if fence > before[name]} == {A, B}
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match="released without having been claimed"), LockSet(A, B, fenced=True):
        pass
