"""Rows of names that were not claimed for long are pruned, and no late holder gets in because of that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.utils import timezone

from django_redislock import Lock, LockLost, LockUnavailable, locked_atomic
from django_redislock.fencing import Pruned, prune
from django_redislock.fencing.prune import BATCH
from django_redislock.fencing.table import _BOUNDS, MARK, bounded, fences, write_fence
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME

MONTH = timedelta(days=30)


def claim_long_ago(*names: str) -> None:
    for name in names:
        with locked_atomic(name, fenced=True, **UNAWARE):
            pass
    Fence.objects.filter(name__in=names).update(claimed=timezone.now() - 2 * MONTH)


def names() -> set[str]:
    return set(Fence.objects.exclude(key=MARK).values_list("name", flat=True))


def test_old_rows_are_deleted_and_others_stay(account: Account) -> None:
    claim_long_ago("a", "b")
    with locked_atomic("c", fenced=True):
        pass
    assert prune(MONTH, dry_run=True) == (2, 1)
    assert names() == {"a", "b", "c"}
    assert prune(MONTH) == (2, 1)
    assert names() == {"c"}
    assert prune(MONTH) == (0, 1)


def test_who_stalled_before_the_claim_is_refused_though_the_row_is_gone(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    forget()

    def overtake() -> None:
        claim_long_ago(NAME)
        prune(MONTH)
        connections.close_all()

    other()(overtake)
    assert names() == set()
    with pytest.raises(LockLost), transaction.atomic():
        late.claim()
    with locked_atomic(NAME, fenced=True):
        account.book()
    assert account.balance == 1


def test_nor_is_who_stalled_inside_his_transaction(
    account: Account, forget: Callable[[], None], other: Callable[[], Other]
) -> None:
    """It stalls between finding no row and inserting one, whatever its snapshot."""
    late, connection = Lock(NAME, **UNAWARE), connections["default"]
    assert late.acquire()
    forget()
    if connection.vendor == "sqlite":
        pytest.skip("a transaction that has tried to write shuts all others out")

    def overtake() -> None:
        claim_long_ago(NAME)
        prune(MONTH)
        connections.close_all()

    @transaction.atomic
    def claim() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM redislock_fence")  # a snapshot without the row
        other()(overtake)
        late.claim()

    with pytest.raises((LockLost, DatabaseError), match=r"refused by the database|could not serialize"):
        claim()
    assert names() == set()


def prune_apart() -> Pruned:
    try:
        return prune(MONTH)
    finally:
        connections.close_all()


def test_prune_waits_for_first_claims_and_they_for_prune(account: Account, other: Callable[[], Other]) -> None:
    """A first claim, which finds no row, keeps the mark locked until COMMIT."""
    connection = connections["default"]
    claim_long_ago("old")
    with transaction.atomic():
        assert write_fence(connection, "new", 1 << 50, "somebody", None) is None
        pruning = other().start(prune_apart)
        assert not pruning.done()
    assert pruning.result(GENEROUS).deleted == 1
    assert names() == {"new"}


@pytest.mark.parametrize("account", ["postgres repeatable read", "postgres serializable"], indirect=True)
def test_prune_begins_again_when_a_name_is_claimed_meanwhile(account: Account, other: Callable[[], Other]) -> None:
    claim_long_ago("old", "older")
    claimed: list[None] = []

    def claim() -> None:
        with locked_atomic("old", fenced=True, **UNAWARE):
            pass
        connections.close_all()

    def claim_between(execute: Any, sql: str, *more: Any) -> Any:
        if "FOR UPDATE" in sql and "LIMIT" in sql and not claimed:  # after the snapshot, before the rows are locked
            claimed.append(other()(claim))
        return execute(sql, *more)

    with connections["default"].execute_wrapper(claim_between):
        assert prune(MONTH) == (1, 1)
    assert claimed
    assert names() == {"old"}


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_nobody_else_writes_between_what_prune_reads_and_what_it_writes(
    account: Account, other: Callable[[], Other]
) -> None:
    """Otherwise SQLite would refuse the write of prune, however long it waited."""
    claim_long_ago("old")
    refused: list[bool] = []

    def claim() -> None:
        try:
            with locked_atomic("new", fenced=True, fence_timeout=0.05, **UNAWARE):
                pass
        except LockUnavailable:
            refused.append(True)
        connections.close_all()

    def claim_between(execute: Any, sql: str, *more: Any) -> Any:
        if "ORDER BY" in sql:  # the rows to delete
            other()(claim)
        return execute(sql, *more)

    with connections["default"].execute_wrapper(claim_between):
        assert prune(MONTH) == (1, 0)
    assert refused == [True]


def test_an_error_is_told_as_it_was_and_statements_wait_as_long_as_before(account: Account) -> None:
    """Even though Django sends no more statements in a transaction that must be rolled back."""
    connection = connections["default"]
    read = _BOUNDS[connection.vendor][0]

    def usual() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(read)
            return cursor.fetchone()[0]

    @transaction.atomic
    def insert_twice() -> None:
        with bounded(connection, 3):
            assert usual() != before
            row = fences().model(key="twice", name="twice", fence=1, claimed=timezone.now())
            fences().bulk_create([row, row])

    before = usual()
    with pytest.raises(IntegrityError):
        insert_twice()
    assert usual() == before


@pytest.mark.parametrize("account", ["postgres read committed"], indirect=True)
def test_prune_does_not_wait_for_a_stalled_claim_without_end(
    account: Account, other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[prune.__module__], "WITHIN", 0.05)
    claim_long_ago("old")
    with transaction.atomic():
        assert write_fence(connections["default"], "new", 1 << 50, "somebody", None) is None
        with pytest.raises(OperationalError, match="lock timeout"):
            other()(prune_apart)
    assert names() == {"old", "new"}


def test_many_rows_go_in_several_transactions(account: Account) -> None:
    long_ago = timezone.now() - 2 * MONTH
    rows = [fences().model(key=f"{n:064}", name=str(n), fence=n, claimed=long_ago) for n in range(BATCH + 1)]
    fences().bulk_create(rows)
    assert prune(MONTH) == (BATCH + 1, 0)
    assert Fence.objects.get(key=MARK).fence == BATCH


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_the_command_prunes(account: Account, ledger: Account) -> None:
    def command(*words: str) -> str:
        out = StringIO()
        call_command("redislocks", "fences", "prune", *words, stdout=out)
        return out.getvalue()

    claim_long_ago("a")
    assert command("--older-than", "30d", "--dry-run") == "Would delete 1 fence, and keep 0 (database default).\n"
    assert command("--older-than", "90d") == "Deleted 0 fences, kept 1 (database default).\n"
    assert command("--older-than", "30d") == "Deleted 1 fence, kept 0 (database default).\n"
    assert command("--older-than", "1h", "--database", "ledger") == "Deleted 0 fences, kept 0 (database ledger).\n"
    for wrong in ("30", "0d", "-1d", "d", "1y"):
        with pytest.raises(CommandError, match="argument --older-than: must be a time such as 30d, 12h or 90m, not"):
            command(f"--older-than={wrong}")
    with pytest.raises(CommandError, match="argument --older-than: must be at most 36500d, not '999999d'"):
        command("--older-than=999999d")
    with pytest.raises(CommandError, match="--older-than"):
        command()
    with connections["ledger"].schema_editor() as editor:
        editor.delete_model(Fence)
    missing = r"Could not prune the fences of .* 'ledger': no such table: .*\. Run manage.py migrate --database ledger"
    with pytest.raises(CommandError, match=missing):
        command("--older-than", "1d", "--database", "ledger")
    with pytest.raises(CommandError, match=r"Unknown database alias 'nowhere'. The aliases in DATABASES are: "):
        command("--older-than", "1d", "--database", "nowhere")
