"""Which locks are claimed, by whom and where: decorators, views, tasks, the setting FENCED."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import warnings
from collections.abc import Callable
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
    force_release,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.models import Fence
from tests.helpers.actors import Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME

pytestmark = pytest.mark.parametrize("account", ["sqlite"], indirect=True)


def never(self: object, **options: object) -> None:
    """The ``handle()`` of a command that claims nothing."""


def claimed(alias: str = "default") -> list[str]:
    return sorted(Fence.objects.using(alias).exclude(key="").values_list("name", flat=True))


def get(view: Callable[..., HttpResponse]) -> HttpResponse:
    return view(RequestFactory().get("/"))


# -- views ----------------------------------------------------------------------------------------------------------


def test_a_view_claims_in_all_of_its_transactions(account: Account, ledger: Account) -> None:
    account.options["ATOMIC_REQUESTS"] = ledger.options["ATOMIC_REQUESTS"] = True

    @locked_view(NAME, fenced=True)
    def view(request: HttpRequest) -> HttpResponse:
        assert (claimed(), claimed("ledger")) == ([NAME], [NAME])
        return HttpResponse()

    assert get(view).status_code == 200


def test_or_in_those_that_are_named(account: Account, ledger: Account) -> None:
    account.options["ATOMIC_REQUESTS"] = ledger.options["ATOMIC_REQUESTS"] = True
    view = locked_view(NAME, fenced=["ledger"])(lambda request: HttpResponse())
    assert get(view).status_code == 200
    assert (claimed(), claimed("ledger")) == ([], [NAME])


def test_a_view_without_a_transaction_cannot_claim(account: Account, ledger: Account) -> None:
    account.options["ATOMIC_REQUESTS"] = False
    with pytest.raises(RuntimeError, match="must be claimed in a transaction, but none is open"):
        get(locked_view(NAME, fenced=True)(lambda request: HttpResponse()))
    elsewhere = pytest.raises(RuntimeError, match="on the database 'ledger', where no transaction is open")
    with elsewhere, transaction.atomic():
        get(locked_view(NAME, fenced="ledger")(lambda request: HttpResponse()))


def test_a_view_claims_in_a_transaction_that_was_begun_before_it(account: Account) -> None:
    with transaction.atomic():
        assert get(locked_view(NAME, fenced=True)(lambda request: HttpResponse())).status_code == 200
        assert claimed() == [NAME]


def test_an_async_view_cannot_claim(account: Account) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match="coroutines have no transactions"):
        locked_view(NAME, fenced=True)(view)

    @method_decorator(locked_view(NAME, fenced=True), name="dispatch")
    class Page(View):
        async def get(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError("not reached")

    as_view: Any = Page.as_view()
    with pytest.raises(TypeError, match="coroutines have no transactions"):
        async_to_sync(as_view)(RequestFactory().get("/"))


def test_what_a_view_has_committed_is_valid_though_its_lock_is_lost(
    account: Account, forget: Callable[[], None]
) -> None:
    account.options["ATOMIC_REQUESTS"] = True

    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        forget()
        return HttpResponse()

    assert get(locked_view(NAME, fenced=True)(view)).status_code == 200
    assert account.balance == 1
    with pytest.raises(LockLost):
        get(locked_view(NAME)(view))


# -- functions ------------------------------------------------------------------------------------------------------


def test_a_function_claims_in_the_transaction_in_which_it_is_called(
    account: Account, other: Callable[[], Other], forget: Callable[[], None]
) -> None:
    book = locked(NAME, fenced=True)(account.book)
    assert transaction.atomic()(book)() == 1  # which does not warn: whoever comes next has to wait for COMMIT
    assert claimed() == [NAME]
    with pytest.raises(RuntimeError, match="must be claimed in a transaction, but none is open"):
        book()
    assert account.balance == 1


def test_a_coroutine_function_cannot(account: Account) -> None:
    async def book() -> None: ...

    with pytest.raises(TypeError, match="coroutines have no transactions"):
        locked(NAME, fenced=True)(book)


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
    account.options["ATOMIC_REQUESTS"] = True
    with locked_atomic("other"):
        pass
    assert claimed() == []
    with locked_atomic("order:1"):
        pass
    get(locked_view("order:2")(lambda request: HttpResponse()))
    with transaction.atomic():
        locked("order:3")(account.book)()
    assert claimed() == ["order:1", "order:2", "order:3"]
    with locked_atomic("order:4", fenced=False):
        pass
    assert "order:4" not in claimed()


@pytest.mark.usefixtures("by_setting")
def test_one_that_never_claimed_warns_when_it_is_released(account: Account) -> None:
    account.options["ATOMIC_REQUESTS"] = False
    warns = pytest.warns(RuntimeWarning, match="is fenced, and was released without having been claimed")

    def call_view() -> None:
        get(locked_view("order:2")(lambda request: HttpResponse()))

    async def coroutine() -> None:
        async with Lock(NAME):
            pass

    def block() -> None:
        with Lock(NAME):
            pass

    def by_hand() -> None:
        lock = Lock(NAME)
        lock.acquire()
        lock.release()

    def call_stream() -> None:
        view = locked_view(NAME)(lambda request: StreamingHttpResponse([b"x"]))
        assert b"".join(view(RequestFactory().get("/"))) == b"x"

    class Command(LockedCommand):
        lock_name = NAME
        handle = never

    class Long(Command):
        lock_at_least = 5

    uses: list[Callable[[], object]] = [block, by_hand, call_view, locked(NAME)(lambda: None), async_to_sync(coroutine)]
    for use in [*uses, call_stream]:
        with warns as caught:
            use()
        assert caught[0].filename == __file__, use
    for command in (Command, Long):
        with warns:
            call_command(command())
    force_release(NAME)


@pytest.mark.usefixtures("by_setting")
def test_one_that_has_claimed_does_not_warn(account: Account) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Lock(NAME) as lock, transaction.atomic():
            lock.claim()


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


def test_without_fence_timeout_the_database_decides(account: Account, settings: Any) -> None:
    settings.REDISLOCK = {"FENCE_TIMEOUT": None}
    connection = connections["default"]
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    late = Other()

    def stand() -> None:
        transaction.atomic().__enter__()
        account.book()

    late(stand)
    book = locked_atomic(NAME, fenced=True)(account.book)
    with pytest.raises(LockUnavailable, match=r"on the database 'default': another transaction that writes"):
        book()
    late(lambda: connections["default"].close())
    late.end()
