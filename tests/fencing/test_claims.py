"""The database refuses a holder who has lost the lock without noticing; which locks are claimed, and where."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models.signals import pre_delete
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View

from django_redislock import (
    Lock,
    LockedCommand,
    LockLost,
    LockNotOwned,
    LockSet,
    LockUnavailable,
    force_release,
    get_lock,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.fencing import prune
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, apart, everywhere, patience
from tests.helpers.actors import GENEROUS, Crowd, Other, server_time, until
from tests.helpers.databases import Account, configure, one_database
from tests.helpers.servers import arespond, respond
from tests.helpers.site import Gate
from tests.helpers.state import FENCE, NAME
from tests.inside import on_claim, own_process

Forget = Callable[[], object]
Others = Callable[[], Other]
AHEAD = 1_000_000_000  # microseconds
new_class: Any = type
MONTH = timedelta(days=30)
REFUSED = r"was refused by the database: the database 'default' already has the fence \d+"


def claim(lock: Lock) -> None:
    with transaction.atomic():
        lock.claim()


def book(account: Account) -> None:
    """By a holder that does not notice when Redis forgets the lock."""
    apart(locked_atomic(NAME, fenced=True, **UNAWARE)(account.book))()


def fence_in_database() -> int:
    return int(Fence.objects.get(name=NAME).fence)


def claimed(alias: str = "default") -> list[str]:
    return sorted(Fence.objects.using(alias).values_list("name", flat=True))


def get(view: Callable[..., Any]) -> Any:
    return view(RequestFactory().get("/"))


def draw_again(client: redis.Redis, fence: int) -> None:
    """As after a failover, with a clock that is behind, to a process that has not seen that fence."""
    client.set(FENCE, fence - 1)
    own_process().highest_fence(0)


@everywhere
@pytest.mark.parametrize("same", [False, True], ids=["a higher fence", "the same fence"])
def test_who_was_overtaken_is_refused(same: bool, account: Account, forget: Forget, other: Others, client: Any) -> None:
    client.set(FENCE, server_time(client) + AHEAD)
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    with transaction.atomic():
        late.claim()
        transaction.set_rollback(True)
    forget()
    if same:
        draw_again(client, late.fence)
    other()(lambda: book(account))
    assert (fence_in_database() == late.fence) is same
    with pytest.raises(LockLost, match=REFUSED):
        claim(late)
    assert account.balance == 1


@everywhere
def test_a_successor_waits_until_a_claim_is_committed_or_fence_timeout(account: Any, forget: Any, other: Any) -> None:
    """Even at isolation levels that refuse a claim that had to wait: the transaction is repeated."""
    gate = Gate()

    def book_late() -> None:
        with locked_atomic(NAME, fenced=True, **UNAWARE):
            balance = account.balance
            gate()
            account.balance = balance + 1

    first = other().start(apart(book_late))
    assert gate.reached.wait(GENEROUS)
    forget()
    usual = patience(set_to_seven=True)
    with pytest.raises(LockUnavailable, match=r"on the database 'default', which says .+\. Another tr"):
        locked_atomic(NAME, fenced=True, fence_timeout=0.1, **UNAWARE)(account.book)()
    assert patience() == usual
    assert get_lock(NAME) is None
    second = other().start(lambda: book(account))
    while (lock := get_lock(NAME)) is None or not lock.fence:
        assert not second.done()
    gate.go_on.set()
    first.result(GENEROUS)
    second.result(GENEROUS)
    assert account.balance == 2  # it has not read what was about to change
    for name in (NAME, "new"):  # a row that is there, and one that is not
        with Lock(name, fence_timeout=timedelta(days=3000)) as longest, transaction.atomic():
            longest.claim()  # waits longer than databases can
            assert patience() == usual


@pytest.mark.parametrize(
    ("account", "setting"),
    [
        ("postgres read committed", "SET statement_timeout = '100ms'"),
        ("mariadb read committed", "SET max_statement_time = 0.1"),
    ],
    indirect=["account"],
)
def test_a_claim_that_has_to_wait_may_be_cancelled_by_the_database(setting: str, account: Account, other: Any) -> None:
    late = other()
    late(transaction.atomic().__enter__)
    late(lambda: claim_in_block(Lock(NAME)))
    connections["default"].cursor().execute(setting)
    text = r"on the database 'default', which says .+\. Another transaction that has claimed it"
    with pytest.raises(LockUnavailable, match=text):
        locked_atomic(NAME, fenced=True)(account.book)()
    late(connections.close_all)


@everywhere
def test_what_was_claimed_stays_valid(account: Any, ledger: Any, forget: Any, caplog: Any) -> None:
    with locked_atomic(NAME, fenced=True, **UNAWARE):
        account.book()
        forget()
    assert account.balance == 1
    until(lambda: "lost" in caplog.text)
    with pytest.raises(LockLost), locked_atomic(NAME, db=["default", "ledger"], fenced="ledger", **UNAWARE):
        forget()  # one of the two was not claimed
    account.options["ATOMIC_REQUESTS"] = True

    def view(request: HttpRequest) -> HttpResponse:
        account.book()
        forget()
        return HttpResponse()

    assert get(locked_view(NAME, fenced=True, **UNAWARE)(view)).status_code == 200
    assert account.balance == 2
    with pytest.raises(LockLost):
        get(locked_view(NAME, **UNAWARE)(view))


@pytest.mark.parametrize(
    "account", ["postgres read committed", "postgres repeatable read", "mariadb read committed"], indirect=True
)
def test_the_first_claim_of_all_holds_up_no_other_name(account: Account, other: Others) -> None:
    with locked_atomic("first", fenced=True, **UNAWARE):
        other()(apart(partial(claim_now, "second", fence_timeout=0.1)))
    assert claimed() == ["first", "second"]


@pytest.mark.parametrize("account", ["postgres repeatable read", "mariadb repeatable read"], indirect=True)
def test_nobody_claims_who_has_read_the_past(account: Account, other: Others) -> None:
    """What was read before the claim is older than what a later holder has committed."""
    claim_now(NAME)  # the row is there

    @transaction.atomic
    def book_late() -> None:
        read = account.balance
        other()(lambda: book(account))
        with Lock(NAME) as lock:
            lock.claim()
            account.balance = read + 1

    with pytest.raises((RuntimeError, DatabaseError), match=r"was claimed too late in this|could not serialize"):
        book_late()
    assert account.balance == 1


@pytest.fixture
def met(account: Account) -> int:
    """A fence in the database that is higher than any that Redis gave: after a restore of Redis, say."""
    claim_now(NAME)
    Fence.objects.update(fence=fence_in_database() + AHEAD)
    return fence_in_database()


def book_after_claim(account: Account) -> None:
    with Lock(NAME) as lock, transaction.atomic():
        lock.claim()
        account.book()


async def book_after_aclaim(account: Account, run: Callable[[Any], Any] = lambda call: call) -> None:
    block = transaction.atomic()
    async with Lock(NAME) as lock, AsyncExitStack() as stack:
        await sync_to_async(block.__enter__)()
        stack.push_async_exit(sync_to_async(block.__exit__))
        await run(lock.aclaim())
        await sync_to_async(account.book)()


@everywhere
def test_where_the_database_is_ahead_of_redis_one_holder_is_refused_before_its_block_and_the_next_is_not(
    account: Account, met: int
) -> None:
    view = locked_view(NAME, fenced=True)(lambda request: account.book())
    uses: list[Callable[[], object]] = [
        locked_atomic(NAME, fenced=True)(account.book),
        transaction.atomic()(lambda: get(view)),
        transaction.atomic()(locked(NAME, fenced=True)(account.book)),
        lambda: book_after_claim(account),
        lambda: async_to_sync(book_after_aclaim)(account),
    ]
    for balance, use in enumerate(uses):
        met += AHEAD
        Fence.objects.filter(name=NAME).update(fence=met)
        with pytest.raises(LockLost, match=REFUSED):
            use()
        assert (fence_in_database(), account.balance) == (met, balance)
        until(lambda: get_lock(NAME) is None)  # where the transaction was open already, in the background
        own_process().highest_fence(0)  # the next one is in another process, which has not seen that fence
        use()
        assert account.balance == balance + 1


@everywhere
def test_an_absurd_fence_in_the_database_stops_nothing_but_its_own_name(account: Account) -> None:
    book(account)
    Fence.objects.filter(name=NAME).update(fence=2**53 - 2)
    with pytest.raises(LockLost, match="already has the fence 9007199254740990"):
        book(account)
    for _ in range(3):
        with Lock("another") as lock:
            assert lock.fence < 8 * 10**15
    Fence.objects.filter(name=NAME).delete()
    book(account)
    assert account.balance == 2


@pytest.mark.parametrize(("state", "times"), [("40001", 10), ("08006", 1)])
def test_a_refused_transaction_is_repeated_some_times(account: Any, state: str, times: int, monkeypatch: Any) -> None:
    refusal = OperationalError()
    refusal.__cause__ = type("Refusal", (Exception,), {"sqlstate": state})()
    on_claim(refuse := Mock(side_effect=refusal), patch=monkeypatch)
    with pytest.raises(OperationalError):
        book(account)
    assert refuse.call_count == times


@everywhere
def test_two_names_are_claimed_in_one_transaction_and_again_and_by_whoever_adopts_one(account: Account) -> None:
    """The second claim is in time, although the first one is an earlier statement."""
    with Lock("order") as first, Lock("Order") as second:
        for _ in range(2):
            with transaction.atomic():
                assert account.balance < 2  # to have read what has not changed is no harm
                first.claim()
                second.claim()
                first.claim()
                account.book()
        token = second.detach(30)
    with Lock("Order", token=token, adopt=True) as adopted:
        claim(adopted)
    assert claimed() == ["Order", "order"]


def test_several_databases_are_claimed_or_those_that_are_named(account: Account, ledger: Account) -> None:
    for fenced, expected in ((True, ["default", "ledger"]), ("ledger", ["ledger"]), (["default"], ["default"])):
        with locked_atomic(NAME, db=["default", "ledger"], fenced=fenced):
            account.book()
            ledger.book()
        assert [alias for alias in ("default", "ledger") if Fence.objects.using(alias).all().delete()[0]] == expected
    assert (account.balance, ledger.balance) == (3, 3)


@everywhere
def test_a_lock_that_blocks_itself_through_a_second_alias_of_the_database_says_so(account: Account) -> None:
    both: dict[str, Any] = {"db": ["default", "again"], "fence_timeout": 0.1}
    itself = r"or, if two aliases lead to the same database, it is this lock's own claim on the other one\.$"
    with patch.dict(connections.settings):
        configure("again", account.options)
        with pytest.raises(LockUnavailable, match=itself), locked_atomic(NAME, fenced=True, **both):
            pass
        with locked_atomic(NAME, fenced=["default"], **both):
            account.book()
        connections["again"].close()
        del connections["again"]
    assert account.balance == 1


def test_a_lock_is_claimed_by_its_holder_inside_a_transaction_alone(account: Account, ledger: Account) -> None:
    for call in (lambda: get(locked_view(NAME, fenced=True)(respond)), locked(NAME, fenced=True)(account.book)):
        with pytest.raises(RuntimeError, match="must be claimed in a transaction, but none is open"):
            call()
    expected = r"the database 'ledger', where no transaction is open\. Those with a transaction are: 'default'\.$"
    with patch.dict(connections.settings):
        configure("again", account.options)
        with pytest.raises(RuntimeError, match=expected), transaction.atomic():
            get(locked_view(NAME, fenced=["ledger", "again"])(respond))
    assert transaction.atomic()(locked(NAME, fenced=True)(account.book))() == 1
    assert claimed() == [NAME]
    lock = Lock(NAME, **UNAWARE)
    with pytest.raises(LockNotOwned):
        claim(lock)
    assert lock.acquire()
    with pytest.raises(RuntimeError, match="can be claimed only inside a transaction, and none is open on"):
        lock.claim()
    force_release(NAME)
    for late in (lambda: lock.extend(1), lambda: claim(lock)):  # who knows that already does not ask the database
        with pytest.raises(LockLost):
            late()


@pytest.mark.parametrize(
    ("account", "reason", "remedy"),
    [
        ("sqlite", "not migrated", r"'redislock_fence'.*\. Run manage.py migrate --database default"),
        ("postgres read committed", "not migrated", r"Run manage.py migrate --database default"),
        ("mariadb read committed", "not migrated", r"Run manage.py migrate --database default"),
        ("sqlite", "not installed", r"Add 'django_redislock' to INSTALLED_APPS, then run .* migrate"),
    ],
    indirect=["account"],
)
def test_without_the_table_the_error_says_what_to_do(account: Account, reason: str, remedy: str, settings: Any) -> None:
    if reason == "not installed":
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    with pytest.raises(ImproperlyConfigured, match=remedy):
        book(account)
    with pytest.raises(ImproperlyConfigured, match=remedy), Lock(NAME) as lock:
        claim(lock)
    assert get_lock(NAME) is None


# how a connection is told to write nothing
READ_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = ON",
}


@everywhere
def test_where_nothing_can_be_written_the_error_says_to_claim_elsewhere(account: Account, ledger: Account) -> None:
    """On a replica, say, that has a transaction open as well."""
    connections["default"].cursor().execute(READ_ONLY[connections["default"].vendor])
    way_out = r"cannot be claimed on the database 'default', which is read-only: .* fenced=\[\.\.\.\]"
    with transaction.atomic("ledger"):
        for use in (
            locked_atomic(NAME, fenced=True)(account.book),
            transaction.atomic()(locked(NAME, fenced=True)(account.book)),
        ):
            with pytest.raises(ImproperlyConfigured, match=way_out):
                use()
    account.options["ATOMIC_REQUESTS"] = ledger.options["ATOMIC_REQUESTS"] = True
    with pytest.raises(ImproperlyConfigured, match=way_out):
        get(locked_view(NAME, fenced=True)(respond))
    assert claimed("ledger") == []
    get(locked_view(NAME, fenced=["ledger"])(respond))
    assert claimed("ledger") == [NAME]


def claim_now(*names: str, **options: Any) -> None:
    for name in names:
        with locked_atomic(name, fenced=True, **UNAWARE, **options):
            pass


def claim_long_ago(*names: str) -> None:
    claim_now(*names)
    Fence.objects.filter(name__in=names).update(claimed=timezone.now() - 2 * MONTH)


def test_prune_deletes_old_rows_in_one_statement_and_none_that_is_younger_than_a_day(account: Account) -> None:
    claim_long_ago("a", "b")
    claim_now("c")
    pre_delete.connect(receiver := Mock())  # for which Django would read the rows first
    try:
        assert prune(MONTH, dry_run=True) == (2, 1)
        with CaptureQueriesContext(connections["default"]) as said:
            assert prune(MONTH) == (2, 1)
    finally:
        pre_delete.disconnect(receiver)
    assert said[0]["sql"].startswith("DELETE")
    assert claimed() == ["c"]
    claim_now("a")
    with pytest.raises(
        ValueError, match=r"^older_than must be at least one day, not datetime\.timedelta\(seconds=86399\)"
    ):
        prune(timedelta(days=1, seconds=-1))
    with pytest.raises(TypeError, match=r"^older_than must be a timedelta, not 30\.$"):
        prune(30)  # type: ignore[arg-type]


@everywhere
def test_what_is_claimed_while_prune_is_at_work_stays(account: Account, other: Others) -> None:
    claim_long_ago("old", "older")
    struck: list[str] = []

    def claim_between(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith("DELETE"):
            struck.append(sql)
            other()(apart(partial(claim_now, "old")))
        return execute(sql, *more)

    with connections["default"].execute_wrapper(claim_between):
        assert prune(MONTH) == (1, 1)
    assert len(struck) == 1
    assert claimed() == ["old"]


def test_the_command_prunes(account: Account, ledger: Account, capsys: Any) -> None:
    command = partial(call_command, "redislocks", "fences", "prune")
    claim_long_ago("a")
    for words, told in [
        (["--older-than", "30d", "--dry-run"], "Would delete 1 fence, and keep 0 (database default).\n"),
        (["--older-than", "30d"], "Deleted 1 fence, kept 0 (database default).\n"),
    ]:
        command(*words)
        assert capsys.readouterr().out == told
    with connections["ledger"].schema_editor() as editor:
        editor.delete_model(Fence)
    for words, told in [
        *[
            ([f"--older-than={wrong}"], "--older-than: must be a number of days such")
            for wrong in ("30", "0d", "12h", "999999d")
        ],
        (["--older-than", "1d", "--database", "ledger"], r"no such table: .*\. Run manage.py migrate"),
        (["--older-than", "1d", "--database", "nowhere"], "argument --database: invalid choice: 'nowhere'"),
    ]:
        with pytest.raises(CommandError, match=told):
            command(*words)


def test_the_command_commits_where_autocommit_is_off(account: Account) -> None:
    claim_long_ago("a")
    account.options["AUTOCOMMIT"] = False
    connections["default"].close()
    call_command("redislocks", "fences", "prune", "--older-than", "30d")
    connections["default"].close()
    assert claimed() == []


@pytest.mark.parametrize(
    ("fenced", "begun", "expected"), [(True, False, [[NAME], [NAME]]), (["ledger"], True, [[], [NAME]])]
)
def test_a_view_claims_where_it_is_told_to(fenced: Any, begun: bool, expected: Any, account: Any, ledger: Any) -> None:
    account.options["ATOMIC_REQUESTS"] = ledger.options["ATOMIC_REQUESTS"] = True
    view = locked_view(NAME, fenced=fenced)(lambda request: [claimed(), claimed("ledger")])
    with transaction.atomic() if begun else nullcontext(), transaction.atomic("ledger") if begun else nullcontext():
        assert get(view) == expected


@pytest.mark.parametrize(("fenced", "expected"), [(True, ([NAME], [])), (["ledger"], ([], [NAME]))])
def test_with_autocommit_off_who_is_the_first_to_connect_claims_on_default_or_where_it_is_told_to(
    fenced: Any, expected: object, account: Account, ledger: Account
) -> None:
    account.options["AUTOCOMMIT"] = ledger.options["AUTOCOMMIT"] = False
    request = RequestFactory().get("/")
    view = locked_view(NAME, fenced=fenced)(respond)
    for use in (partial(view, request), locked(NAME, fenced=fenced)(lambda: None)):
        connections.close_all()
        use()
        request.close()
        assert (claimed(), claimed("ledger")) == expected


def test_with_autocommit_off_a_claim_may_be_the_first_to_connect(account: Account) -> None:
    account.options["AUTOCOMMIT"] = False
    connections["default"].close()
    claim_in_block(Lock(NAME))
    assert claimed() == [NAME]


def test_coroutine_functions_cannot_claim(account: Account) -> None:
    fenced = locked_view(NAME, fenced=True)
    as_view = method_decorator(fenced, name="dispatch")(new_class("Page", (View,), {"get": arespond})).as_view()
    for call in (
        lambda: locked(NAME, fenced=True)(arespond),
        lambda: fenced(arespond),
        lambda: async_to_sync(as_view)(RequestFactory().get("/")),
    ):
        with pytest.raises(TypeError, match="coroutines have no transactions"):
            call()


@pytest.mark.parametrize("run", [lambda call: asyncio.wait_for(call, GENEROUS), asyncio.gather], ids=["wait", "gather"])
def test_a_coroutine_claims_in_a_transaction_of_the_thread_of_its_database(run: Any, account: Account) -> None:
    async_to_sync(book_after_aclaim)(account, run)
    assert (claimed(), account.balance) == ([NAME], 1)


@pytest.mark.parametrize("outer", [False, ["ledger"], True])
def test_who_enters_again_claims_if_it_says_so(outer: Any, account: Account, ledger: Account) -> None:
    with Lock(NAME, reentrant=True, fenced=outer):
        with transaction.atomic("ledger"), transaction.atomic():
            assert locked(NAME, reentrant=True, fenced="ledger")(claimed)("ledger") == [NAME]
        with locked_atomic(NAME, reentrant=True, fenced=True):
            assert claimed() == [NAME]


def test_locks_in_memory_are_claimed_too(account: Account) -> None:
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        met = lock.fence + AHEAD
    Fence.objects.update(fence=met)
    with pytest.raises(LockLost, match=REFUSED), locked_atomic(NAME, fenced=True, using="memory"):
        pass
    with locked_atomic(NAME, fenced=True, using="memory") as lock:
        assert lock.fence > met


def test_the_setting_names_locks_that_everybody_claims(account: Account, settings: Any, recwarn: Any) -> None:
    settings.REDISLOCK = {"FENCED": ["order:*"]}
    account.options["ATOMIC_REQUESTS"] = True
    for block in (locked_atomic("other"), locked_atomic("order:0", fenced=False), locked_atomic("order:1")):
        with block:
            pass
    get(locked_view("order:2")(respond))
    with transaction.atomic():
        locked("order:3")(account.book)()
    with Lock("order:4") as lock, transaction.atomic():
        lock.claim()
    assert claimed() == ["order:1", "order:2", "order:3", "order:4"]
    assert not recwarn.list


def claim_by_hand() -> None:
    lock = Lock(NAME)
    lock.acquire()
    lock.claim()
    lock.release()


def claim_in_block(lock: Any) -> None:
    with lock:
        lock.claim()


class Command(LockedCommand):
    lock_name = NAME
    claims = False

    def handle(self, *args: Any, **options: Any) -> None:
        if self.claims:
            self.lock.claim()


CLAIMS: dict[str, Callable[[], object]] = {
    "by hand": claim_by_hand,
    "block": lambda: claim_in_block(Lock(NAME)),
    "set": lambda: claim_in_block(LockSet(NAME, "order:43")),
    "function": locked(NAME, fenced=["default"])(lambda: None),
    "command": lambda: call_command(type("Claiming", (Command,), {"claims": True})()),
}


@pytest.mark.parametrize("section", CLAIMS.values(), ids=CLAIMS)
def test_a_lock_may_be_released_inside_the_transactions_that_have_claimed_it_alone(
    section: Any, account: Account, ledger: Account, settings: Any
) -> None:
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "error"}
    with transaction.atomic():
        section()
    assert NAME in claimed()
    inside = r"was released inside an open transaction \(database ledger\)"
    with transaction.atomic("ledger"), transaction.atomic(), pytest.raises(RuntimeError, match=inside):
        section()


def test_a_claim_counts_for_its_own_transaction_alone(account: Account, settings: Any) -> None:
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "error"}
    lock = Lock(NAME, reentrant=True)
    lock.acquire()
    claim(lock)
    with transaction.atomic(), pytest.raises(RuntimeError, match="was released inside an open transaction"):
        lock.release()

    def lose() -> None:
        force_release(NAME)
        until(lambda: lock.lost)

    lock.acquire()
    claim(lock)
    with pytest.raises(LockLost), locked_atomic(NAME, reentrant=True):
        transaction.on_commit(lose)
    with pytest.raises(LockLost):
        lock.release()


async def acquire() -> None:
    async with Lock(NAME):
        pass


USES: list[Callable[[], object]] = [
    lambda: Lock(NAME).__enter__().release(),
    lambda: get(locked_view(NAME)(respond)),
    lambda: list(get(locked_view(NAME)(lambda request: StreamingHttpResponse([b"x"])))),
    locked(NAME)(lambda: None),
    async_to_sync(acquire),
    lambda: call_command(Command()),
]


@pytest.mark.parametrize("use", USES, ids=["block", "view", "stream", "function", "coroutine", "command"])
def test_one_that_never_claimed_warns_when_it_is_released(use: Any, account: Account, settings: Any) -> None:
    settings.REDISLOCK = {"FENCED": ["order:*"]}
    with pytest.warns(RuntimeWarning, match="is fenced was released without having been claimed") as caught:
        use()
    assert caught[0].filename == __file__ or use is USES[-1]


def test_a_claim_names_the_choices_where_there_is_no_such_database(crowd: Crowd, account: Account) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    with pytest.raises(
        ValueError, match=r"^using names 'legder', which is not in DATABASES\. The aliases are: default"
    ):
        me(lock, "claim", "legder")
    me(lock, "release")


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
    setting: float | None, usual: int, account: Account, other: Others, settings: Any
) -> None:
    settings.REDISLOCK = {"FENCE_TIMEOUT": setting}
    connections["default"].cursor().execute(f"PRAGMA busy_timeout = {usual}")
    late = other()
    late(transaction.atomic().__enter__)
    late(account.book)
    refused = pytest.raises(LockUnavailable, match=r"on the database 'default', which says 'database is locked'\. ")
    with CaptureQueriesContext(connections["default"]) as said, refused:
        locked_atomic(NAME, fenced=True)(account.book)()
    assert ("PRAGMA busy_timeout = 50" in [query["sql"] for query in said]) == (setting is not None)
    late(connections.close_all)


def test_a_claim_waits_no_longer_where_begin_does_the_waiting(account: Account, other: Others) -> None:
    options = {**account.options["OPTIONS"], "transaction_mode": "IMMEDIATE"}
    with one_database("default", {**account.options, "OPTIONS": options, "ATOMIC_REQUESTS": True}):
        usual = patience(set_to_seven=True)
        late = other()
        late(transaction.atomic().__enter__)
        at_most: dict[str, Any] = {"fenced": True, "fence_timeout": 0.1}
        for call in (locked_atomic(NAME, **at_most)(account.book), lambda: get(locked_view(NAME, **at_most)(respond))):
            with pytest.raises(LockUnavailable, match="which says 'database is locked'") as caught:
                call()
            assert caught.value.name == NAME
        assert (patience(), get_lock(NAME)) == (usual, None)
        late(connections.close_all)
        locked_atomic(NAME, fenced=True)(account.book)()
        assert account.balance == 1
