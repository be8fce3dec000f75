"""A lock that was lost without its holder noticing: the database refuses the holder, after pruning too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from io import StringIO
from itertools import count
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connections, transaction
from django.utils import timezone

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, force_release, get_lock, locked_atomic
from django_redislock.fencing import prune
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, apart, on_sqlite, patience
from tests.helpers.actors import GENEROUS, Other, server_time
from tests.helpers.databases import Account, configure
from tests.helpers.state import FENCE, NAME
from tests.inside import limit, on_claim, own_process

Forget = Callable[[], object]
Others = Callable[[], Other]
AHEAD = 1_000_000_000  # microseconds
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


def draw_again(client: redis.Redis, fence: int) -> None:
    """As after a failover, with a clock that is behind, to a process that has not seen that fence."""
    client.set(FENCE, fence - 1)
    own_process().highest_fence(0)


@pytest.mark.parametrize("same", [False, True], ids=["a higher fence", "the same fence"])
def test_a_holder_who_was_overtaken_is_refused(
    same: bool, account: Account, forget: Forget, other: Others, client: redis.Redis
) -> None:
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


def test_a_successor_with_the_same_fence_takes_a_new_one(
    account: Account, forget: Forget, other: Others, client: redis.Redis
) -> None:
    client.set(FENCE, server_time(client) + AHEAD)
    with locked_atomic(NAME, fenced=True, **UNAWARE) as late:
        account.book()
        forget()
        draw_again(client, late.fence)
        fence = late.fence
    other()(lambda: book(account))
    assert account.balance == 2
    assert fence_in_database() > fence


def test_a_successor_waits_for_a_transaction_that_has_claimed_but_no_longer_than_fence_timeout(
    account: Account, forget: Forget, other: Others
) -> None:
    """Even at isolation levels that refuse a claim that had to wait: the transaction is repeated."""
    reached, go_on = threading.Event(), threading.Event()

    def book_late() -> None:
        with locked_atomic(NAME, fenced=True, **UNAWARE):
            balance = account.balance
            reached.set()
            assert go_on.wait(GENEROUS)
            account.balance = balance + 1

    first = other().start(apart(book_late))
    assert reached.wait(GENEROUS)
    forget()
    text = r" within 0.1 s: another transaction that has claimed it, .*, is still open\.$"
    if connections["default"].vendor == "sqlite":  # has one writer at a time
        text = ": another transaction that writes is still open, or has written since this one began to read"
    usual = patience(set_to_seven=True)
    with pytest.raises(LockUnavailable, match=f"could not be claimed on the database 'default'{text}"):
        locked_atomic(NAME, fenced=True, fence_timeout=0.1, **UNAWARE)(account.book)()
    assert patience() == usual
    assert get_lock(NAME) is None
    second = other().start(lambda: book(account))
    while (lock := get_lock(NAME)) is None or not lock.fence:
        assert not second.done()
    go_on.set()
    first.result(GENEROUS)
    second.result(GENEROUS)
    assert account.balance == 2  # it has not read what was about to change
    for name in (NAME, "new"):  # a row that is there, and one that is not
        with Lock(name, fence_timeout=timedelta(days=3000)) as longest, transaction.atomic():
            longest.claim()  # waits longer than databases can
            assert patience() == usual


def test_a_transaction_that_was_claimed_and_committed_is_valid_though_its_lock_is_lost(
    account: Account, ledger: Account, forget: Forget, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    with locked_atomic(NAME, fenced=True):
        account.book()
        forget()
    assert account.balance == 1
    eventually(lambda: "lost" in caplog.text)
    with pytest.raises(LockLost), locked_atomic(NAME, db=["default", "ledger"], fenced="ledger", **UNAWARE):
        forget()  # one of the two was not claimed


@pytest.mark.parametrize("account", ["postgres repeatable read", "mariadb repeatable read"], indirect=True)
def test_nobody_claims_who_has_read_the_past(account: Account, other: Others) -> None:
    """What was read before the claim is older than what a later holder has committed."""
    with locked_atomic(NAME, fenced=True):
        pass  # the row is there

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
    with locked_atomic(NAME, fenced=True):
        pass
    Fence.objects.update(fence=fence_in_database() + AHEAD)
    return fence_in_database()


def test_a_database_that_is_ahead_of_redis_is_caught_up_with(account: Account, met: int, client: redis.Redis) -> None:
    with locked_atomic(NAME, fenced=True) as lock:
        account.book()
        fence = lock.fence
        assert fence > met
        assert lock.extend(1)
    assert account.balance == 1
    client.flushall()  # and its clock is behind: it would draw that fence again
    with Lock(NAME) as lock:
        assert lock.fence > fence
    Fence.objects.update(fence=fence + AHEAD)
    with Lock(NAME) as lock, pytest.raises(LockLost):
        claim(lock)  # by hand: what the caller has read before may be outdated
    with Lock(NAME) as lock:
        claim(lock)


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


@on_sqlite
@pytest.mark.parametrize("again", [False, True], ids=["it is forgotten", "the database is ahead once more"])
def test_who_has_lost_the_lock_gets_no_new_fence(
    again: bool, account: Account, met: int, forget: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = count(met, AHEAD)
    on_claim(lambda: Fence.objects.update(fence=next(fences) + AHEAD) if again else forget(), patch=monkeypatch)
    with pytest.raises(LockLost, match=REFUSED):
        book(account)
    assert (fence_in_database(), account.balance) == (met, 0)


@on_sqlite
@pytest.mark.parametrize(("state", "times"), [("40001", 10), ("08006", 1)])
def test_a_transaction_that_is_refused_is_begun_again_a_bounded_number_of_times(
    account: Account, monkeypatch: pytest.MonkeyPatch, state: str, times: int
) -> None:
    tried: list[str] = []

    def refuse() -> None:
        tried.append(state)
        raise OperationalError from type("Refusal", (Exception,), {"sqlstate": state})()

    on_claim(refuse, patch=monkeypatch)
    with pytest.raises(OperationalError):
        book(account)
    assert len(tried) == times


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
    assert names() == {"order", "Order"}


@on_sqlite
def test_several_databases_are_claimed_or_those_that_are_named(account: Account, ledger: Account) -> None:
    for fenced, expected in ((True, ["default", "ledger"]), ("ledger", ["ledger"]), (["default"], ["default"])):
        with locked_atomic(NAME, db=["default", "ledger"], fenced=fenced):
            account.book()
            ledger.book()
        claimed = [alias for alias in ("default", "ledger") if Fence.objects.using(alias).filter(name=NAME).delete()[0]]
        assert claimed == expected
    assert (account.balance, ledger.balance) == (3, 3)


def test_a_lock_that_blocks_itself_through_a_second_alias_of_the_database_says_so(account: Account) -> None:
    configure("again", account.options)
    both: dict[str, Any] = {"db": ["default", "again"], "fence_timeout": 0.1}
    itself = r"; or it is this lock's own claim on 'default'.* fenced=\['default'\]\.$"
    try:
        with pytest.raises(LockUnavailable, match=itself), locked_atomic(NAME, fenced=True, **both):
            pass
        with locked_atomic(NAME, fenced=["default"], **both):
            account.book()
    finally:
        connections["again"].close()
        del connections["again"], connections.settings["again"]
    assert account.balance == 1


@on_sqlite
def test_a_lock_is_claimed_by_its_holder_inside_a_transaction_alone(account: Account) -> None:
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
        ("sqlite", "routed elsewhere", r"Let DATABASE_ROUTERS allow .* on 'default', then run .* migrate"),
    ],
    indirect=["account"],
)
def test_without_the_table_the_error_says_what_to_do(account: Account, reason: str, remedy: str, settings: Any) -> None:
    if reason == "not installed":
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]
    if reason == "routed elsewhere":
        settings.DATABASE_ROUTERS = [type("Elsewhere", (), {"allow_migrate": lambda *args, **hints: False})()]
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    with pytest.raises(ImproperlyConfigured, match=remedy):
        book(account)
    with pytest.raises(ImproperlyConfigured, match=remedy), Lock(NAME) as lock:
        claim(lock)
    assert get_lock(NAME) is None


def claim_now(*names: str, **options: Any) -> None:
    for name in names:
        with locked_atomic(name, fenced=True, **UNAWARE, **options):
            pass


def claim_long_ago(*names: str) -> None:
    claim_now(*names)
    Fence.objects.filter(name__in=names).update(claimed=timezone.now() - 2 * MONTH)


def names() -> set[str]:
    return set(Fence.objects.exclude(key="").values_list("name", flat=True))


@on_sqlite
def test_old_rows_are_deleted_in_several_transactions_and_others_stay(account: Account) -> None:
    long_ago = timezone.now() - 2 * MONTH
    Fence.objects.bulk_create(Fence(key=f"{n:064}", name=str(n), fence=n, claimed=long_ago) for n in range(1001))
    claim_now("c")
    assert prune(MONTH) == (1001, 1)
    assert names() == {"c"}
    assert Fence.objects.get(key="").fence == 1000  # the highest that was ever pruned


def test_who_stalled_is_refused_though_the_row_is_gone(account: Account, forget: Forget, other: Others) -> None:
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    forget()

    def overtake() -> None:
        claim_long_ago(NAME)
        prune(MONTH)

    def claim_late() -> None:
        # on SQLite, a transaction that has tried to write shuts all others out
        with nullcontext() if connections["default"].vendor == "sqlite" else transaction.atomic():
            assert names() == set()  # in its snapshot
            other()(apart(overtake))
            claim(late)

    with pytest.raises((LockLost, DatabaseError), match=r"refused by the database|could not serialize"):
        claim_late()
    book(account)
    assert account.balance == 1


@pytest.mark.parametrize("account", ["postgres read committed"], indirect=True)
def test_prune_waits_for_first_claims_but_not_without_end(
    account: Account, other: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first claim, which finds no row, keeps the row with the highest pruned fence locked until COMMIT."""
    claim_long_ago("old")
    with locked_atomic("new", fenced=True, **UNAWARE):
        limit(monkeypatch, prune_within=0.05)
        with pytest.raises(OperationalError, match="lock timeout"):
            other()(apart(partial(prune, MONTH)))
        limit(monkeypatch, prune_within=GENEROUS)
        waits = other().start(apart(partial(prune, MONTH)))
        assert names() == {"old", "new"}
    assert waits.result(GENEROUS).deleted == 1


@pytest.mark.parametrize(
    ("account", "moment", "claims", "pruned", "left"),
    [
        # after the snapshot, before the rows are locked: prune begins again
        ("postgres repeatable read", "FOR UPDATE SKIP LOCKED", "old", (1, 1), {"old"}),
        # else SQLite would refuse the write of prune, however long it waited
        ("sqlite", "ORDER BY", "new", (2, 0), set()),
    ],
    indirect=["account"],
)
def test_nothing_is_lost_that_is_claimed_while_prune_is_at_work(
    moment: str, claims: str, pruned: object, left: set[str], account: Account, other: Others
) -> None:
    claim_long_ago("old", "older")
    struck: list[str] = []

    def claim() -> None:
        with pytest.raises(LockUnavailable) if claims == "new" else nullcontext():
            claim_now(claims, fence_timeout=0.05)

    def claim_between(execute: Any, sql: str, *more: Any) -> Any:
        if moment in sql and not struck:
            struck.append(sql)
            other()(apart(claim))
        return execute(sql, *more)

    with connections["default"].execute_wrapper(claim_between):
        assert prune(MONTH) == pruned
    assert struck
    assert names() == left


@on_sqlite
def test_the_command_prunes(account: Account, ledger: Account) -> None:
    def command(*words: str) -> str:
        out = StringIO()
        call_command("redislocks", "fences", "prune", *words, stdout=out)
        return out.getvalue()

    claim_long_ago("a")
    assert command("--older-than", "30d", "--dry-run") == "Would delete 1 fence, and keep 0 (database default).\n"
    assert command("--older-than", "30d") == "Deleted 1 fence, kept 0 (database default).\n"
    with connections["ledger"].schema_editor() as editor:
        editor.delete_model(Fence)
    for words, told in [
        *[([f"--older-than={wrong}"], "--older-than: must be a time such") for wrong in ("30", "0d")],
        (["--older-than=999999d"], "argument --older-than: must be at most 36500d, not '999999d'"),
        (["--older-than", "1d", "--database", "ledger"], r"no such table: .*\. Run manage.py migrate"),
        (["--older-than", "1d", "--database", "nowhere"], "Unknown database alias 'nowhere'. The aliases in .* are: "),
    ]:
        with pytest.raises(CommandError, match=told):
            command(*words)
