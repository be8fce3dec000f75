"""A lock that was lost without its holder noticing: the database refuses the holder, and no update is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, OperationalError, connections, transaction

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, force_release, get_lock, locked_atomic
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, patience
from tests.helpers.actors import GENEROUS, Other, server_time
from tests.helpers.databases import Account, configure
from tests.helpers.state import FENCE, NAME
from tests.inside import on_claim, own_process

Eventually = Callable[[Callable[[], Any]], Any]
Forget = Callable[[], None]
Others = Callable[[], Other]
AHEAD = 1_000_000_000  # microseconds
REFUSED = r"was refused by the database: the database 'default' already has the fence \d+"
TRIES = 10  # for a transaction that the database asks to repeat


class Stage:
    """A holder of the lock that continues when told to."""

    def __init__(self, account: Account, *, halts: bool = False, **options: Any) -> None:
        self.account = account
        self.options = {**UNAWARE, **options}
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.runs = 0
        if not halts:
            self.go_on.set()

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


@pytest.fixture
def late(account: Account, forget: Forget, other: Others) -> Iterator[tuple[Stage, Future[None]]]:
    """Somebody who has claimed the lock and lost it since, and whose transaction is open."""
    stage = Stage(account, halts=True)
    booking = other().start(stage.book)
    while not stage.reached.wait(0.01):
        assert not booking.done(), booking.result()
    forget()
    yield stage, booking
    stage.go_on.set()


def claim(lock: Lock) -> None:
    with transaction.atomic():
        lock.claim()


def book(account: Account) -> None:
    locked_atomic(NAME, fenced=True)(account.book)()


def fence_in_database() -> int:
    return int(Fence.objects.get(name=NAME).fence)


# -- who is late ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_claimed", [False, True], ids=["", "rolled back before"])
@pytest.mark.parametrize("same", [False, True], ids=["a higher fence", "the same fence"])
def test_a_holder_who_was_overtaken_is_refused(
    same: bool, has_claimed: bool, account: Account, forgotten: Callable[..., None], other: Others
) -> None:
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    if has_claimed:
        with transaction.atomic():
            late.claim()
            transaction.set_rollback(True)
    forgotten(late, same=same)
    other()(Stage(account).book)
    assert (fence_in_database() == late.fence) is same
    with pytest.raises(LockLost, match=REFUSED):
        claim(late)
    assert account.balance == 1


@pytest.fixture
def forgotten(client: redis.Redis, forget: Forget) -> Callable[..., None]:
    """Redis forgets a grant and, if the next fence is to be the ``same``, that one too: as after a failover to such a
    replica, with a clock that is behind. The next holder is in a process that has not seen that fence."""

    def forgotten(lock: Lock, *, same: bool = True) -> None:
        forget()
        if same:
            client.set(FENCE, lock.fence - 1)
            own_process().know_fence(0)

    client.set(FENCE, server_time(client) + AHEAD)
    return forgotten


def test_a_successor_with_the_same_fence_takes_a_new_one(
    account: Account, forgotten: Callable[..., None], other: Others
) -> None:
    with locked_atomic(NAME, fenced=True, **UNAWARE) as late:
        account.book()
        forgotten(late)
        fence = late.fence
    other()(Stage(account).book)
    assert account.balance == 2
    assert fence_in_database() > fence


def test_a_successor_waits_for_a_transaction_that_has_claimed(
    account: Account, late: tuple[Stage, Future[None]], other: Others
) -> None:
    """Even at isolation levels that refuse a claim that had to wait: the transaction is repeated, unnoticed by
    callers."""
    quick = Stage(account)
    second = other().start(quick.book)
    while (lock := get_lock(NAME)) is None or not lock.fence:
        assert not second.done()
    assert not quick.reached.wait(0.2), "whoever has the lock reads what is about to change"
    late[0].go_on.set()
    late[1].result(GENEROUS)
    second.result(GENEROUS)
    assert (account.balance, quick.runs) == (2, 1)


def test_nobody_waits_longer_for_it_than_fence_timeout(account: Account, late: tuple[Stage, Future[None]]) -> None:
    text = r" within 0.1 s: another transaction that has claimed it, .*, is still open\.$"
    if connections["default"].vendor == "sqlite":  # has one writer at a time
        text = ": another transaction that writes is still open, or has written since this one began to read"
    usual = patience(set_to_seven=True)
    with pytest.raises(LockUnavailable, match=f"could not be claimed on the database 'default'{text}"):
        locked_atomic(NAME, fenced=True, fence_timeout=0.1, **UNAWARE)(account.book)()
    assert patience() == usual
    assert get_lock(NAME) is None
    late[0].go_on.set()
    late[1].result(GENEROUS)
    assert account.balance == 1


def test_the_limits_of_the_site_are_as_before(account: Account) -> None:
    usual = patience(set_to_seven=True)
    with Lock(NAME, fence_timeout=timedelta(days=3000)) as lock, transaction.atomic():  # longer than databases can wait
        for _ in range(2):  # a row that is not there yet, and one that is
            lock.claim()
            assert patience() == usual


def test_a_transaction_that_was_claimed_and_committed_is_valid_though_its_lock_is_lost(
    account: Account, ledger: Account, forget: Forget, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    with locked_atomic(NAME, fenced=True):
        account.book()
        forget()
    assert account.balance == 1
    eventually(lambda: "lost" in caplog.text)
    with pytest.raises(LockLost), locked_atomic(NAME, db=["default", "ledger"], fenced="ledger", **UNAWARE):
        forget()  # one of the two was not claimed


# -- a database that is ahead of Redis ------------------------------------------------------------------------------


@pytest.fixture
def met(account: Account) -> int:
    """A fence in the database that is higher than any that Redis gave: after a restore of Redis on a machine whose
    clock is behind, say."""
    book(account)
    account.balance = 0
    Fence.objects.update(fence=fence_in_database() + AHEAD)
    return fence_in_database()


def test_a_database_that_is_ahead_of_redis_is_caught_up_with(account: Account, met: int, client: redis.Redis) -> None:
    with locked_atomic(NAME, fenced=True) as lock:
        account.book()
        fence = lock.fence
        assert fence > met
    assert account.balance == 1
    client.flushall()  # and its clock is behind: it would draw that fence again
    with Lock(NAME) as lock:
        assert lock.fence > fence


def test_a_fence_that_has_changed_is_renewed_as_before(account: Account, met: int, eventually: Eventually) -> None:
    with locked_atomic(NAME, fenced=True, ttl=1) as lock:
        eventually(lambda: (found := get_lock(NAME)) and found.fence == lock.fence > met and found.held_for > 1.5)
        assert not lock.lost


def test_whoever_claims_by_himself_acquires_anew(account: Account, met: int) -> None:
    """What the caller has read before may be outdated."""
    with Lock(NAME) as lock, pytest.raises(LockLost):
        claim(lock)
    with Lock(NAME) as lock:
        claim(lock)
        assert lock.fence > met


@pytest.mark.parametrize("by_hand", [False, True])
def test_who_has_lost_the_lock_takes_no_new_fence(
    by_hand: bool, account: Account, met: int, forget: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_claim(forget, patch=monkeypatch)
    begin = Lock(NAME, **UNAWARE) if by_hand else locked_atomic(NAME, fenced=True, **UNAWARE)

    def lose(lock: Lock) -> None:
        forget()
        claim(lock)

    with pytest.raises(LockLost, match=REFUSED), begin as lock:
        lose(lock)
    assert fence_in_database() == met


def test_a_new_fence_is_asked_for_once(account: Account, met: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that is refused again was overtaken in the meantime."""
    asked: list[int] = []

    def overtake() -> None:
        asked.append(met + AHEAD * len(asked))
        Fence.objects.update(fence=asked[-1] + AHEAD)

    on_claim(overtake, patch=monkeypatch)
    with pytest.raises(LockLost, match=REFUSED):
        book(account)
    assert (len(asked), account.balance) == (2, 0)


@pytest.mark.parametrize(("state", "times"), [("40001", TRIES), ("08006", 1)])
def test_a_transaction_that_is_refused_is_begun_again_a_bounded_number_of_times(
    account: Account, monkeypatch: pytest.MonkeyPatch, state: str, times: int
) -> None:
    tried: list[str] = []

    class Refusal(Exception):
        sqlstate = state

    def refuse() -> None:
        tried.append(state)
        raise OperationalError from Refusal()

    on_claim(refuse, patch=monkeypatch)
    with pytest.raises(OperationalError):
        book(account)
    assert (len(tried), account.balance) == (times, 0)


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


# -- several claims -------------------------------------------------------------------------------------------------


def test_a_holder_may_claim_again_and_so_may_whoever_adopts_the_lock(account: Account) -> None:
    lock = Lock(NAME)
    assert lock.acquire()
    for _ in range(2):
        with transaction.atomic():
            assert account.balance < 2  # to have read what has not changed is no harm
            lock.claim()
            lock.claim()
            account.book()
    fence, token = lock.fence, lock.detach(30)
    with Lock(NAME, token=token, adopt=True) as adopted:
        assert adopted.fence == fence
        claim(adopted)
    assert account.balance == 2


def test_two_names_are_claimed_in_one_transaction(account: Account, other: Others) -> None:
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


def test_names_that_differ_in_case_alone_have_rows_of_their_own(account: Account) -> None:
    for name in ("order", "Order", "ordér"):
        with locked_atomic(name, fenced=True):
            account.book()
    assert sorted(Fence.objects.exclude(key="").values_list("name", flat=True)) == ["Order", "order", "ordér"]


def test_several_databases_are_claimed_or_those_that_are_named(account: Account, ledger: Account) -> None:
    def claimed() -> list[str]:
        return [alias for alias in ("default", "ledger") if Fence.objects.using(alias).filter(name=NAME).delete()[0]]

    for fenced, expected in ((True, ["default", "ledger"]), ("ledger", ["ledger"]), (["default"], ["default"])):
        with locked_atomic(NAME, db=["default", "ledger"], fenced=fenced):
            account.book()
            ledger.book()
        assert claimed() == expected
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


# -- where it cannot be ---------------------------------------------------------------------------------------------


def test_a_lock_is_claimed_by_its_holder_inside_a_transaction_alone(account: Account, eventually: Eventually) -> None:
    lock = Lock(NAME)
    with pytest.raises(LockNotOwned):
        claim(lock)
    assert lock.acquire()
    with pytest.raises(RuntimeError, match="can be claimed only inside a transaction, and none is open on"):
        lock.claim()
    force_release(NAME)
    eventually(lambda: lock.lost)
    with pytest.raises(LockLost, match="force-released"):
        claim(lock)
    assert not Fence.objects.exists()


def test_nobody_claims_who_has_read_the_past(account: Account, forget: Forget, other: Others) -> None:
    """What was read before the claim is older than what a later holder has committed."""
    connection = connections["default"]
    if connection.vendor == "sqlite" or connection.settings_dict["OPTIONS"].get("isolation_level") is None:
        pytest.skip("no snapshot is kept from statement to statement")
    with locked_atomic(NAME, fenced=True):
        pass  # the row is there

    @transaction.atomic
    def book_late() -> None:
        read = account.balance
        other()(Stage(account).book)
        with Lock(NAME) as lock:
            lock.claim()
            account.balance = read + 1

    with pytest.raises((RuntimeError, DatabaseError), match=r"was claimed too late in this|could not serialize"):
        book_late()
    assert account.balance == 1


class Elsewhere:
    """A router that keeps all tables away from the database ``default``."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "default" else None


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("not migrated", r"'redislock_fence'.*\. Run manage.py migrate --database default"),
        ("not installed", r"Add 'django_redislock' to INSTALLED_APPS, then run .* migrate"),
        ("routed elsewhere", r"Let DATABASE_ROUTERS allow .* on 'default', then run .* migrate"),
    ],
)
def test_without_the_table_the_error_says_what_to_do(
    reason: str, remedy: str, by_hand: bool, account: Account, settings: Any
) -> None:
    def try_to_claim() -> None:
        with pytest.raises(ImproperlyConfigured, match=remedy), Lock(NAME, reentrant=True) as lock:
            claim(lock) if by_hand else locked_atomic(NAME, fenced=True, reentrant=True)(account.book)()

    if reason == "not installed":
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]
        try_to_claim()  # though the table is there
    if reason == "routed elsewhere":
        settings.DATABASE_ROUTERS = [Elsewhere()]
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    try_to_claim()
    assert account.balance == 0
    assert get_lock(NAME) is None
