"""Which locks are claimed, by whom and where: decorators, views, tasks, the setting FENCED."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redislock import (
    Lock,
    LockedCommand,
    LockLost,
    LockUnavailable,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.models import Fence
from tests.helpers.actors import Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME

pytestmark = pytest.mark.parametrize("account", ["sqlite"], indirect=True)


def claimed(alias: str = "default") -> list[str]:
    return sorted(Fence.objects.using(alias).exclude(key="").values_list("name", flat=True))


def get(view: Callable[..., HttpResponse]) -> HttpResponse:
    return view(RequestFactory().get("/"))


def set_atomic_requests(value: bool, *accounts: Account) -> None:
    for account in accounts:
        account.options["ATOMIC_REQUESTS"] = value


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


NOT_OPEN = "must be claimed in a transaction, but none is open"

# -- views and functions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True], ids=["", "in a transaction that was begun before"])
@pytest.mark.parametrize(("fenced", "expected"), [(True, [[NAME], [NAME]]), (["ledger"], [[], [NAME]])])
def test_a_view_claims_in_all_of_its_transactions_or_in_those_that_are_named(
    fenced: Any, expected: list[list[str]], begun: bool, account: Account, ledger: Account
) -> None:
    set_atomic_requests(True, account, ledger)
    view = locked_view(NAME, fenced=fenced)(lambda request: [claimed(), claimed("ledger")])
    request = RequestFactory().get("/")
    with transaction.atomic() if begun else nullcontext(), transaction.atomic("ledger") if begun else nullcontext():
        assert view(request) == expected


def test_without_a_transaction_nothing_can_be_claimed(account: Account, ledger: Account) -> None:
    set_atomic_requests(False, account)
    with pytest.raises(RuntimeError, match=NOT_OPEN):
        get(locked_view(NAME, fenced=True)(answer))
    with pytest.raises(RuntimeError, match=NOT_OPEN):
        locked(NAME, fenced=True)(account.book)()
    elsewhere = pytest.raises(RuntimeError, match="on the database 'ledger', where no transaction is open")
    with elsewhere, transaction.atomic():
        get(locked_view(NAME, fenced="ledger")(answer))
    assert account.balance == 0


def test_a_function_claims_in_the_transaction_in_which_it_is_called(account: Account) -> None:
    book = locked(NAME, fenced=True)(account.book)
    assert transaction.atomic()(book)() == 1  # which does not warn: whoever comes next has to wait for COMMIT
    assert claimed() == [NAME]


@pytest.mark.parametrize("decorator", [locked(NAME, fenced=True), locked_view(NAME, fenced=True)])
def test_a_coroutine_function_cannot_claim(decorator: Any, account: Account) -> None:
    async def function(request: HttpRequest) -> HttpResponse:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match="coroutines have no transactions"):
        decorator(function)


def test_nor_can_a_class_of_async_views(account: Account) -> None:
    @method_decorator(locked_view(NAME, fenced=True), name="dispatch")
    class Page(View):
        async def get(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("not reached")

    as_view: Any = Page.as_view()
    with pytest.raises(TypeError, match="coroutines have no transactions"):
        async_to_sync(as_view)(RequestFactory().get("/"))


def test_a_coroutine_claims_in_a_transaction_of_the_thread_of_its_database(account: Account) -> None:
    async def book() -> None:
        begin, end = transaction.atomic().__enter__, transaction.atomic().__exit__
        async with Lock(NAME) as lock:
            with pytest.raises(RuntimeError, match="only inside a transaction"):
                await lock.aclaim()
            await sync_to_async(begin)()
            await lock.aclaim()
            await sync_to_async(end)(None, None, None)

    async_to_sync(book)()
    assert claimed() == [NAME]


def test_what_a_view_has_committed_is_valid_though_its_lock_is_lost(
    account: Account, forget: Callable[[], None]
) -> None:
    set_atomic_requests(True, account)

    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        forget()
        return HttpResponse()

    assert get(locked_view(NAME, fenced=True)(view)).status_code == 200
    assert account.balance == 1
    with pytest.raises(LockLost):
        get(locked_view(NAME)(view))


@pytest.mark.parametrize("outer", [False, ["ledger"], True])
def test_who_enters_again_claims_if_it_says_so(outer: Any, account: Account, ledger: Account) -> None:
    with Lock(NAME, reentrant=True, fenced=outer) as lock:
        with transaction.atomic("ledger"), transaction.atomic():
            ours = locked(NAME, reentrant=True, fenced="ledger")(claimed)
            assert ours("ledger") == [NAME]
        with locked_atomic(NAME, reentrant=True, fenced=True):
            assert claimed() == [NAME]
        lock.check()


def test_locks_in_memory_are_claimed_too(account: Account) -> None:
    """As in the tests of a site, which may have no Redis."""
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        met = lock.fence + 1_000_000_000
        Fence.objects.update(fence=met)
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        assert lock.fence > met


# -- the setting ----------------------------------------------------------------------------------------------------


@pytest.fixture
def by_setting(settings: Any) -> None:
    settings.REDISLOCK = {"FENCED": ["order:*"]}


@pytest.mark.usefixtures("by_setting")
def test_the_setting_names_locks_that_everybody_claims(account: Account) -> None:
    set_atomic_requests(True, account)
    for unclaimed in (locked_atomic("other"), locked_atomic("order:0", fenced=False)):
        with unclaimed:
            pass
    assert claimed() == []
    with locked_atomic("order:1"):
        pass
    get(locked_view("order:2")(answer))
    with transaction.atomic():
        locked("order:3")(account.book)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Lock("order:4") as lock, transaction.atomic():
            lock.claim()
    assert claimed() == ["order:1", "order:2", "order:3", "order:4"]


class Command(LockedCommand):
    lock_name = NAME

    def handle(self, *args: Any, **options: Any) -> None:
        """Claims nothing."""


class Long(Command):
    lock_at_least = 5


def block() -> None:
    with Lock(NAME):
        pass


def by_hand() -> None:
    lock = Lock(NAME)
    lock.acquire()
    lock.release()


async def coroutine() -> None:
    async with Lock(NAME):
        pass


def call_stream() -> None:
    view = locked_view(NAME)(lambda request: StreamingHttpResponse([b"x"]))
    assert b"".join(view(RequestFactory().get("/"))) == b"x"


USES: dict[str, Callable[[], object]] = {
    "block": block,
    "by hand": by_hand,
    "view": lambda: get(locked_view("order:2")(answer)),
    "stream": call_stream,
    "function": locked(NAME)(lambda: None),
    "coroutine": async_to_sync(coroutine),
    "command": lambda: call_command(Command()),
    "command that keeps it": lambda: call_command(Long()),
}


@pytest.mark.usefixtures("by_setting")
@pytest.mark.parametrize("use", USES)
def test_one_that_never_claimed_warns_when_it_is_released(use: str, account: Account) -> None:
    set_atomic_requests(False, account)
    with pytest.warns(RuntimeWarning, match="is fenced, and was released without having been claimed") as caught:
        USES[use]()
    assert caught[0].filename == __file__ or "command" in use


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1, [], [1], {"default": True}])
def test_what_fenced_takes(account: Account, wrong: Any) -> None:
    with pytest.raises(TypeError, match="fenced must be True, False, an alias in DATABASES or a list of aliases, not"):
        Lock(NAME, fenced=wrong)


def test_aliases_that_it_names_have_to_exist_and_to_be_begun(account: Account, ledger: Account) -> None:
    with pytest.raises(ValueError, match=r"fenced names 'legder', which is not in DATABASES. The aliases are: "):
        Lock(NAME, fenced="legder")
    with pytest.raises(ValueError, match=r"fenced must name some of the aliases in db \(default\), not \('ledger',\)"):
        locked_atomic(NAME, fenced="ledger")


def test_without_fence_timeout_the_database_decides(
    account: Account, other: Callable[[], Other], settings: Any
) -> None:
    settings.REDISLOCK = {"FENCE_TIMEOUT": None}
    late = other()
    with locked_atomic("another", fenced=True):
        assert claimed() == ["another"]
    with connections["default"].cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")

    def stand() -> None:
        transaction.atomic().__enter__()
        account.book()

    late(stand)
    with pytest.raises(LockUnavailable, match=r"on the database 'default': another transaction that writes"):
        locked_atomic(NAME, fenced=True)(account.book)()
    late(lambda: connections["default"].close())
