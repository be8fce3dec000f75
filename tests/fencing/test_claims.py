"""A lock that was lost without its holder noticing: the database refuses the holder, and no update is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, OperationalError, connections, transaction

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, force_release, get_lock, locked_atomic
from django_redislock.base.steps import Step
from django_redislock.engine import Lease
from django_redislock.fencing import claim
from django_redislock.fencing.table import bounded
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE
from tests.helpers.actors import GENEROUS, Other, server_time
from tests.helpers.databases import Account, configure
from tests.helpers.state import FENCE, NAME
from tests.inside import lease_of

beginning = import_module("django_redislock.fencing.begin")  # the package has a function of this name
Eventually = Callable[[Callable[[], Any]], Any]
AHEAD = 1_000_000_000  # microseconds


class Stage:
    """A holder of the lock that continues when told to."""

    def __init__(self, account: Account, **options: Any) -> None:
        self.account = account
        self.options = {**UNAWARE, **options}
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.runs = 0

    def book(self) -> None:
        """Read, wait and write, in a transaction."""
        try:
            with locked_atomic(NAME, fenced=True, **self.options):
                self.runs += 1
                balance = self.account.balance
                self.reached.set()
                assert self.go_on.wait(GENEROUS)
                self.account.balance = balance + 1
        finally:
            connections.close_all()


def wait_for(future: Future[Any], stage: Stage) -> None:
    """Wait until it holds the lock."""
    while not stage.reached.wait(0.01):
        assert not future.done(), future.result()


# -- who is late ----------------------------------------------------------------------------------------------------


def test_a_holder_who_was_overtaken_is_refused(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    late, quick = Lock(NAME, **UNAWARE), Stage(account)
    quick.go_on.set()
    assert late.acquire()
    forget()
    other()(quick.book)
    claim = transaction.atomic()(late.claim)
    with pytest.raises(
        LockLost, match=r"was refused by the database: the database 'default' already has the fence \d+"
    ):
        claim()
    assert account.balance == 1


def test_a_successor_waits_for_a_transaction_that_has_claimed(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    """Even at isolation levels that refuse a claim that had to wait: the transaction is repeated, unnoticed by
    callers."""
    late, quick = Stage(account), Stage(account)
    quick.go_on.set()
    first = other().start(late.book)
    wait_for(first, late)
    forget()
    second = other().start(quick.book)
    while (lock := get_lock(NAME)) is None or not lock.fence:
        assert not second.done()
    assert not quick.reached.wait(0.2), "whoever has the lock reads what is about to change"
    late.go_on.set()
    first.result(GENEROUS)
    second.result(GENEROUS)
    assert account.balance == 2
    assert quick.runs == 1


def test_the_same_without_fences_loses_an_update(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    """This is what fences prevent."""

    class Unfenced(Stage):
        def book(self) -> None:
            with Lock(NAME, **UNAWARE):
                self.runs += 1
                balance = self.account.balance
                self.reached.set()
                assert self.go_on.wait(GENEROUS)
                self.account.balance = balance + 1
                connections.close_all()

    late, quick = Unfenced(account), Unfenced(account)
    quick.go_on.set()
    first = other().start(late.book)
    wait_for(first, late)
    forget()
    other()(quick.book)
    late.go_on.set()
    with pytest.raises(LockLost):
        first.result(GENEROUS)
    assert account.balance == 1


def test_it_may_be_longer_than_databases_wait(account: Account) -> None:
    with locked_atomic(NAME, fenced=True, fence_timeout=timedelta(days=3000)):
        assert account.balance == 0


def test_nobody_waits_longer_for_it_than_fence_timeout(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    late, quick = Stage(account), Stage(account, fence_timeout=0.1)
    first = other().start(late.book)
    wait_for(first, late)
    forget()
    late_text = r" within 0.1 s: another transaction that has claimed it, .*, is still open\.$"
    if connections["default"].vendor == "sqlite":  # has one writer at a time
        late_text = ": another transaction that writes is still open, or has written since this one began to read"
    with pytest.raises(LockUnavailable, match=f"could not be claimed on the database 'default'{late_text}"):
        other()(quick.book)
    assert not quick.runs
    assert get_lock(NAME) is None
    late.go_on.set()
    first.result(GENEROUS)
    assert account.balance == 1


def test_the_limits_of_the_site_are_as_before(account: Account) -> None:
    connection = connections["default"]
    limits = {
        "postgresql": "SHOW lock_timeout",
        "mysql": "SELECT @@innodb_lock_wait_timeout",
        "sqlite": "PRAGMA busy_timeout",
    }

    def limit() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(limits[connection.vendor])
            return cursor.fetchone()

    with Lock(NAME, fence_timeout=3) as lock, transaction.atomic(), bounded(connection, 7):
        usual = limit()
        for _ in range(2):  # a row that is not there yet, and one that is
            lock.claim()
            assert limit() == usual


def test_a_transaction_that_was_claimed_and_committed_is_valid_though_its_lock_is_lost(
    account: Account, forget: Callable[[], None], caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    with locked_atomic(NAME, fenced=True):
        account.book()
        forget()
    assert account.balance == 1
    eventually(lambda: "lost" in caplog.text)


def test_nor_are_several_databases_unless_all_were_claimed(
    account: Account, ledger: Account, forget: Callable[[], None]
) -> None:
    with pytest.raises(LockLost), locked_atomic(NAME, db=["default", "ledger"], fenced="ledger", **UNAWARE):
        forget()


def test_one_that_is_known_to_be_lost_before_is_rolled_back(account: Account, eventually: Eventually) -> None:
    def book() -> None:
        with locked_atomic(NAME, fenced=True) as lock:
            account.book()
            force_release(NAME)
            eventually(lambda: lock.lost)

    with pytest.raises(LockLost):
        book()
    assert account.balance == 0


# -- a database that is ahead of Redis ------------------------------------------------------------------------------


def run_ahead() -> int:
    """Put a fence into the database that is higher than any that Redis gave."""
    with locked_atomic(NAME, fenced=True) as lock:
        met = lock.fence + AHEAD
        Fence.objects.update(fence=met)
    return met


def test_a_database_that_is_ahead_of_redis_is_caught_up_with(account: Account) -> None:
    """After a restore of Redis on a machine whose clock is behind, say."""
    met = run_ahead()
    with locked_atomic(NAME, fenced=True) as lock:
        account.book()
        assert lock.fence > met
    with Lock(NAME) as next_lock:
        assert next_lock.fence > Fence.objects.get(name=NAME).fence
    assert account.balance == 1


def test_the_new_fence_is_known_from_then_on(account: Account, client: redis.Redis) -> None:
    """Otherwise a Redis that has lost it, and whose clock is behind, would draw it again."""
    run_ahead()
    with locked_atomic(NAME, fenced=True) as lock:
        fence = lock.fence
    client.flushall()
    with Lock(NAME, **UNAWARE) as lock:
        assert lock.fence > fence


def test_whoever_claims_by_himself_acquires_anew(account: Account) -> None:
    """What the caller has read before may be outdated."""
    met = run_ahead()
    with pytest.raises(LockLost), Lock(NAME) as lock, transaction.atomic():
        lock.claim()
    with Lock(NAME) as lock, transaction.atomic():
        lock.claim()
        assert lock.fence > met


def test_nor_does_it_help_who_has_lost_the_lock(account: Account, forget: Callable[[], None]) -> None:
    run_ahead()
    lock = Lock(NAME)
    assert lock.acquire()
    forget()
    with pytest.raises(LockLost), transaction.atomic():
        lock.claim()


def test_a_fence_that_has_changed_is_renewed_as_before(account: Account, eventually: Eventually) -> None:
    met = run_ahead()
    with locked_atomic(NAME, fenced=True, ttl=3) as lock:
        lease = lease_of(lock)
        end = lease.ends
        eventually(lambda: lease.ends > end)
        assert not lock.lost
        found = get_lock(NAME)
        assert found is not None
        assert found.fence == lock.fence > met


def test_a_lock_that_was_lost_before_the_database_refuses_it_takes_no_new_fence(
    account: Account, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ahead()

    def claim_late(*args: Any, **options: Any) -> None:
        forget()
        claim(*args, **options)

    monkeypatch.setattr(beginning, "claim", claim_late)
    with pytest.raises(LockLost, match="was refused by the database"):
        locked_atomic(NAME, fenced=True)(account.book)()
    assert account.balance == 0


def test_a_new_fence_is_asked_for_once(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that is refused again was overtaken in the meantime."""
    run_ahead()
    asked: list[Lease] = []

    def ask(lease: Lease) -> Iterator[Step]:
        asked.append(lease)
        yield from ()

    monkeypatch.setattr(beginning, "draw_new_fence", ask)
    with pytest.raises(LockLost, match="was refused by the database"):
        locked_atomic(NAME, fenced=True)(account.book)()
    assert len(asked) == 1


@pytest.mark.parametrize(("state", "times"), [("40001", beginning.TRIES), ("08006", 1)])
def test_a_transaction_that_is_refused_is_begun_again_a_bounded_number_of_times(
    account: Account, monkeypatch: pytest.MonkeyPatch, state: str, times: int
) -> None:
    tried: list[str] = []

    class Refusal(Exception):
        sqlstate = state

    def refuse(*args: Any, **options: Any) -> None:
        tried.append(state)
        raise OperationalError from Refusal()

    monkeypatch.setattr(beginning, "claim", refuse)
    with pytest.raises(OperationalError):
        locked_atomic(NAME, fenced=True)(account.book)()
    assert len(tried) == times
    assert account.balance == 0


def test_an_absurd_fence_in_the_database_stops_nothing_but_its_own_name(account: Account) -> None:
    book = locked_atomic(NAME, fenced=True)(account.book)
    book()
    Fence.objects.filter(name=NAME).update(fence=2**53 - 2)
    with pytest.raises(LockLost, match="already has the fence 9007199254740990"):
        book()
    for _ in range(3):
        with Lock("another") as lock:
            assert lock.fence < 8 * 10**15
    Fence.objects.filter(name=NAME).delete()
    book()
    assert account.balance == 2


# -- a fence that Redis has given twice -----------------------------------------------------------------------------


@pytest.fixture
def forgotten(client: redis.Redis, forget: Callable[[], None]) -> Callable[[Lock], None]:
    """Redis forgets a grant and its fence, and its clock is behind: as after a failover to such a replica. The next
    holder is in a process that has not seen that fence, and gets the same."""

    def forgotten(lock: Lock) -> None:
        forget()
        client.set(FENCE, lock.fence - 1)
        lease_of(lock).partition.highest_fence = 0

    client.set(FENCE, server_time(client) + AHEAD)
    return forgotten


def test_a_holder_who_was_overtaken_by_one_with_the_same_fence_is_refused(
    account: Account, forgotten: Callable[[Lock], None], other: Callable[[], Other]
) -> None:
    late, quick = Lock(NAME, **UNAWARE), Stage(account)
    quick.go_on.set()
    assert late.acquire()
    forgotten(late)
    other()(quick.book)
    assert Fence.objects.get(name=NAME).fence == late.fence
    claim = transaction.atomic()(late.claim)
    with pytest.raises(LockLost, match="was refused by the database"):
        claim()
    assert account.balance == 1


def test_nor_does_it_help_to_have_claimed_before_where_that_was_rolled_back(
    account: Account, forgotten: Callable[[Lock], None], other: Callable[[], Other]
) -> None:
    late, quick = Lock(NAME, **UNAWARE), Stage(account)
    quick.go_on.set()
    assert late.acquire()
    claim = transaction.atomic()(late.claim)
    with transaction.atomic():
        claim()
        transaction.set_rollback(True)
    forgotten(late)
    other()(quick.book)
    assert Fence.objects.get(name=NAME).fence == late.fence
    with pytest.raises(LockLost, match="was refused by the database"):
        claim()
    assert account.balance == 1


def test_a_successor_with_the_same_fence_takes_a_new_one(
    account: Account, forgotten: Callable[[Lock], None], other: Callable[[], Other]
) -> None:
    quick = Stage(account)
    quick.go_on.set()
    with locked_atomic(NAME, fenced=True, **UNAWARE) as late:
        account.book()
        forgotten(late)
        fence = late.fence
    other()(quick.book)
    assert account.balance == 2
    assert Fence.objects.get(name=NAME).fence > fence


def test_a_holder_may_claim_with_the_same_fence_again(account: Account) -> None:
    with Lock(NAME) as lock:
        for _ in range(2):
            with transaction.atomic():
                lock.claim()
                lock.claim()
                account.book()
    assert account.balance == 2


def test_two_names_are_claimed_in_one_transaction(account: Account, other: Callable[[], Other]) -> None:
    """The second claim is in time, although the first one is an earlier statement."""
    names = ["account:1", "account:2"]

    def transfer() -> None:
        first, second = (Lock(name) for name in names)
        with first, second, transaction.atomic():
            first.claim()
            second.claim()
            account.book()
        connections.close_all()

    for someone in (other(), other(), other()):
        someone(transfer)
    assert account.balance == 3
    assert set(Fence.objects.values_list("name", flat=True)) >= set(names)


def test_whoever_adopts_the_lock_may_claim_with_the_same_fence(account: Account) -> None:
    lock = Lock(NAME)
    assert lock.acquire()
    with transaction.atomic():
        lock.claim()
        account.book()
    fence, token = lock.fence, lock.detach(30)
    with Lock(NAME, token=token, adopt=True) as adopted, transaction.atomic():
        assert adopted.fence == fence
        adopted.claim()
        account.book()
    assert account.balance == 2


# -- where it cannot be ---------------------------------------------------------------------------------------------


def test_a_lock_is_claimed_inside_a_transaction_alone(account: Account) -> None:
    none_open = pytest.raises(RuntimeError, match="can be claimed only inside a transaction, and none is open on")
    with Lock(NAME) as lock, none_open:
        lock.claim()
    with transaction.atomic(), pytest.raises(LockNotOwned):
        lock.claim()
    assert not Fence.objects.exists()


def test_a_lock_that_is_known_to_be_lost_is_not_claimed(account: Account, eventually: Eventually) -> None:
    lock = Lock(NAME)
    assert lock.acquire()
    force_release(NAME)
    eventually(lambda: lock.lost)
    with pytest.raises(LockLost, match="force-released"), transaction.atomic():
        lock.claim()
    assert not Fence.objects.exists()


def test_a_database_without_the_table_says_what_to_do(account: Account) -> None:
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    book = locked_atomic(NAME, fenced=True)(account.book)
    with pytest.raises(ImproperlyConfigured, match=r"'redislock_fence'.*\. Run manage.py migrate --database default"):
        book()
    assert account.balance == 0
    assert get_lock(NAME) is None
    with connections["default"].schema_editor() as editor:
        editor.create_model(Fence)


def claim_by_hand() -> None:
    with Lock(NAME) as lock, transaction.atomic():
        lock.claim()


@pytest.mark.parametrize("table", [True, False], ids=["with the table", "without the table"])
@pytest.mark.parametrize("claim", [locked_atomic(NAME, fenced=True)(print), claim_by_hand])
def test_where_the_app_is_not_installed_the_error_says_to_install_it(
    table: bool, claim: Callable[[], None], account: Account, settings: Any
) -> None:
    if not table:
        with connections["default"].schema_editor() as editor:
            editor.delete_model(Fence)
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]
    with pytest.raises(ImproperlyConfigured, match=r"Add 'django_redislock' to INSTALLED_APPS, then run .* migrate"):
        claim()
    assert get_lock(NAME) is None


class Elsewhere:
    """A router that keeps all tables away from the database ``default``."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "default" else None


def test_where_a_router_keeps_the_table_away_the_error_names_the_router(account: Account, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    with pytest.raises(ImproperlyConfigured, match=r"Let DATABASE_ROUTERS allow .* on 'default', then run .* migrate"):
        claim_by_hand()


def test_names_that_differ_in_case_alone_have_rows_of_their_own(account: Account) -> None:
    for name in ("order", "Order", "ordér"):
        with locked_atomic(name, fenced=True):
            account.book()
    assert sorted(Fence.objects.exclude(key="").values_list("name", flat=True)) == ["Order", "order", "ordér"]


def test_nobody_claims_who_has_read_the_past(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    """What was read before the claim is older than what a later holder has committed."""
    connection, quick = connections["default"], Stage(account)
    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    if connection.vendor == "sqlite" or level is None:
        pytest.skip("no snapshot is kept from statement to statement")
    quick.go_on.set()
    with locked_atomic(NAME, fenced=True):
        pass  # the row is there

    @transaction.atomic
    def book() -> None:
        read = account.balance
        other()(quick.book)
        with Lock(NAME) as lock:
            lock.claim()
            account.balance = read + 1

    with pytest.raises((RuntimeError, DatabaseError), match=r"was claimed too late in this|could not serialize"):
        book()
    assert account.balance == 1


def test_a_lock_that_blocks_itself_through_a_second_alias_of_the_database_says_so(account: Account) -> None:
    configure("again", account.options)
    try:
        itself = r"; or it is this lock's own claim on 'default'.* fenced=\['default'\]\.$"
        begin = locked_atomic(NAME, db=["default", "again"], fenced=True, fence_timeout=0.1)
        with pytest.raises(LockUnavailable, match=itself), begin:
            pass
        with locked_atomic(NAME, db=["default", "again"], fenced=["default"]):
            account.book()
    finally:
        connections["again"].close()
        del connections["again"], connections.settings["again"]
    assert account.balance == 1


def test_whoever_has_read_nothing_that_has_changed_may_claim(account: Account) -> None:
    with locked_atomic(NAME, fenced=True):
        account.book()
    with Lock(NAME) as lock, transaction.atomic():
        assert account.balance == 1
        lock.claim()
        account.book()
    assert account.balance == 2


def test_several_databases_are_claimed_or_those_that_are_named(account: Account, ledger: Account) -> None:
    def claimed() -> list[str]:
        return [alias for alias in ("default", "ledger") if Fence.objects.using(alias).filter(name=NAME).delete()[0]]

    for fenced, expected in ((True, ["default", "ledger"]), ("ledger", ["ledger"]), (["default"], ["default"])):
        with locked_atomic(NAME, db=["default", "ledger"], fenced=fenced):
            account.book()
            ledger.book()
        assert claimed() == expected
    assert (account.balance, ledger.balance) == (3, 3)
