"""Which locks are claimed, by whom and where: decorators, views, tasks, the setting FENCED."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redislock import Lock, LockedCommand, LockLost, LockUnavailable, locked, locked_atomic, locked_view
from django_redislock.models import Fence
from tests.fencing.conftest import on_sqlite
from tests.helpers.actors import Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME

pytestmark = on_sqlite


def claimed(alias: str = "default") -> list[str]:
    return sorted(Fence.objects.using(alias).exclude(key="").values_list("name", flat=True))


def get(view: Callable[..., Any]) -> Any:
    return view(RequestFactory().get("/"))


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def aanswer(*args: Any) -> HttpResponse:
    return HttpResponse()


@pytest.mark.parametrize(
    ("fenced", "begun", "expected"), [(True, False, [[NAME], [NAME]]), (["ledger"], True, [[], [NAME]])]
)
def test_a_view_claims_in_all_of_its_transactions_or_in_those_that_are_named(
    fenced: Any, begun: bool, expected: list[list[str]], account: Account, ledger: Account
) -> None:
    account.options["ATOMIC_REQUESTS"] = ledger.options["ATOMIC_REQUESTS"] = True
    view = locked_view(NAME, fenced=fenced)(lambda request: [claimed(), claimed("ledger")])
    with transaction.atomic() if begun else nullcontext(), transaction.atomic("ledger") if begun else nullcontext():
        assert get(view) == expected


def test_without_a_transaction_nothing_can_be_claimed(account: Account, ledger: Account) -> None:
    for call in (lambda: get(locked_view(NAME, fenced=True)(answer)), locked(NAME, fenced=True)(account.book)):
        with pytest.raises(RuntimeError, match="must be claimed in a transaction, but none is open"):
            call()
    with pytest.raises(RuntimeError, match="'ledger', where no transaction is open"), transaction.atomic():
        get(locked_view(NAME, fenced="ledger")(answer))
    assert transaction.atomic()(locked(NAME, fenced=True)(account.book))() == 1
    assert claimed() == [NAME]


def test_coroutine_functions_cannot_claim(account: Account) -> None:
    @method_decorator(locked_view(NAME, fenced=True), name="dispatch")
    class Page(View):
        get = aanswer

    as_view: Any = Page.as_view()
    for call in (
        lambda: locked(NAME, fenced=True)(aanswer),
        lambda: locked_view(NAME, fenced=True)(aanswer),
        lambda: async_to_sync(as_view)(RequestFactory().get("/")),
    ):
        with pytest.raises(TypeError, match="coroutines have no transactions"):
            call()


def test_a_coroutine_claims_in_a_transaction_of_the_thread_of_its_database(account: Account) -> None:
    async def book() -> None:
        begin, end = transaction.atomic().__enter__, transaction.atomic().__exit__
        async with Lock(NAME) as lock:
            await sync_to_async(begin)()
            await lock.aclaim()
            await sync_to_async(end)(None, None, None)

    async_to_sync(book)()
    assert claimed() == [NAME]


def test_what_a_view_has_committed_is_valid_though_its_lock_is_lost(
    account: Account, forget: Callable[[], object]
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


@pytest.mark.parametrize("outer", [False, ["ledger"], True])
def test_who_enters_again_claims_if_it_says_so(outer: Any, account: Account, ledger: Account) -> None:
    with Lock(NAME, reentrant=True, fenced=outer):
        with transaction.atomic("ledger"), transaction.atomic():
            assert locked(NAME, reentrant=True, fenced="ledger")(claimed)("ledger") == [NAME]
        with locked_atomic(NAME, reentrant=True, fenced=True):
            assert claimed() == [NAME]


def test_locks_in_memory_are_claimed_too(account: Account) -> None:
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        met = lock.fence + 1_000_000_000
        Fence.objects.update(fence=met)
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        assert lock.fence > met


def test_the_setting_names_locks_that_everybody_claims(
    account: Account, settings: Any, recwarn: pytest.WarningsRecorder
) -> None:
    settings.REDISLOCK = {"FENCED": ["order:*"]}
    account.options["ATOMIC_REQUESTS"] = True
    for unclaimed in (locked_atomic("other"), locked_atomic("order:0", fenced=False)):
        with unclaimed:
            pass
    with locked_atomic("order:1"):
        pass
    get(locked_view("order:2")(answer))
    with transaction.atomic():
        locked("order:3")(account.book)()
    with Lock("order:4") as lock, transaction.atomic():
        lock.claim()
    assert claimed() == ["order:1", "order:2", "order:3", "order:4"]
    assert not recwarn.list


class Command(LockedCommand):
    lock_name = NAME

    def handle(self, *args: Any, **options: Any) -> None:
        """Claims nothing."""


async def acquire() -> None:
    async with Lock(NAME):
        pass


USES: list[Callable[[], object]] = [
    lambda: Lock(NAME).__enter__().release(),
    lambda: get(locked_view(NAME)(answer)),
    lambda: list(get(locked_view(NAME)(lambda request: StreamingHttpResponse([b"x"])))),
    locked(NAME)(lambda: None),
    async_to_sync(acquire),
    lambda: call_command(Command()),
]


@pytest.mark.parametrize("use", USES, ids=["block", "view", "stream", "function", "coroutine", "command"])
def test_one_that_never_claimed_warns_when_it_is_released(
    use: Callable[[], object], account: Account, settings: Any
) -> None:
    settings.REDISLOCK = {"FENCED": ["order:*"]}
    with pytest.warns(RuntimeWarning, match="is fenced, and was released without having been claimed") as caught:
        use()
    assert caught[0].filename == __file__ or use is USES[-1]


def test_what_fenced_takes(account: Account, ledger: Account) -> None:
    for wrong in (1, [], [1], {"default": True}):
        with pytest.raises(TypeError, match="fenced must be True, False, an alias in DATABASES or a list of aliases"):
            Lock(NAME, fenced=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"fenced names 'legder', which is not in DATABASES. The aliases are: "):
        Lock(NAME, fenced="legder")
    with pytest.raises(ValueError, match=r"fenced must name some of the aliases in db \(default\), not \('ledger',\)"):
        locked_atomic(NAME, fenced="ledger")


@pytest.mark.parametrize(("setting", "usual"), [(None, 50), (0.05, 60_000)], ids=["of the database", "of the setting"])
def test_a_claim_waits_as_long_as_the_setting_says_or_else_the_database(
    setting: float | None, usual: int, account: Account, other: Callable[[], Other], settings: Any
) -> None:
    settings.REDISLOCK = {"FENCE_TIMEOUT": setting}
    connections["default"].cursor().execute(f"PRAGMA busy_timeout = {usual}")
    late, began = other(), monotonic()
    late(transaction.atomic().__enter__)
    late(account.book)
    with pytest.raises(LockUnavailable, match=r"on the database 'default': another transaction that writes"):
        locked_atomic(NAME, fenced=True)(account.book)()
    assert monotonic() - began < 8  # by default it waits for 10 s
    late(connections.close_all)
