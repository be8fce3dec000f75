"""Rows of names that were not claimed for long are pruned, and no late holder gets in because of that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.utils import timezone

from django_redislock import Lock, LockLost, LockUnavailable, locked_atomic
from django_redislock.fencing import prune
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, patience
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME
from tests.inside import limit, statements_wait

MONTH = timedelta(days=30)
MARK = ""  # key of the row that stays, with the highest fence that was ever pruned
BATCH = 1000  # rows that are deleted in one transaction
Others = Callable[[], Other]


def claim_now(*names: str, **options: Any) -> None:
    for name in names:
        with locked_atomic(name, fenced=True, **UNAWARE, **options):
            pass


def claim_long_ago(*names: str) -> None:
    claim_now(*names)
    Fence.objects.filter(name__in=names).update(claimed=timezone.now() - 2 * MONTH)


def names() -> set[str]:
    return set(Fence.objects.exclude(key=MARK).values_list("name", flat=True))


def apart(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """The call, for a thread that leaves no connection."""

    def run() -> Any:
        try:
            return call(*args)
        finally:
            connections.close_all()

    return run


def test_old_rows_are_deleted_and_others_stay(account: Account) -> None:
    claim_long_ago("a", "b")
    claim_now("c")
    assert prune(MONTH, dry_run=True) == (2, 1)
    assert names() == {"a", "b", "c"}
    assert prune(MONTH) == (2, 1)
    assert names() == {"c"}
    assert prune(MONTH) == (0, 1)


@pytest.mark.parametrize("begun", [False, True], ids=["before its transaction", "with a snapshot without the row"])
def test_who_stalled_is_refused_though_the_row_is_gone(
    begun: bool, account: Account, forget: Callable[[], None], other: Others
) -> None:
    if begun and connections["default"].vendor == "sqlite":
        pytest.skip("a transaction that has tried to write shuts all others out")
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    forget()

    def overtake() -> None:
        claim_long_ago(NAME)
        prune(MONTH)

    @transaction.atomic
    def claim() -> None:
        if begun:
            assert names() == set()
            other()(apart(overtake))
        late.claim()

    if not begun:
        other()(apart(overtake))
    with pytest.raises((LockLost, DatabaseError), match=r"refused by the database|could not serialize"):
        claim()
    assert names() == set()
    locked_atomic(NAME, fenced=True)(account.book)()
    assert account.balance == 1


def test_prune_waits_for_first_claims_and_they_for_prune(account: Account, other: Others) -> None:
    """A first claim, which finds no row, keeps the mark locked until COMMIT."""
    claim_long_ago("old")
    with locked_atomic("new", fenced=True, **UNAWARE):
        pruning = other().start(apart(prune, MONTH))
        assert not pruning.done()
    assert pruning.result(GENEROUS).deleted == 1
    assert names() == {"new"}


@pytest.mark.parametrize("account", ["postgres read committed"], indirect=True)
def test_prune_does_not_wait_for_a_stalled_claim_without_end(
    account: Account, other: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, prune_within=0.05)
    claim_long_ago("old")
    with locked_atomic("new", fenced=True, **UNAWARE), pytest.raises(OperationalError, match="lock timeout"):
        other()(apart(prune, MONTH))
    assert names() == {"old", "new"}


@pytest.mark.parametrize(
    ("account", "moment", "claims", "pruned", "left"),
    [
        # after the snapshot, before the rows are locked: prune begins again
        ("postgres repeatable read", "FOR UPDATE SKIP LOCKED", "old", (1, 1), {"old"}),
        ("postgres serializable", "FOR UPDATE SKIP LOCKED", "old", (1, 1), {"old"}),
        # else SQLite would refuse the write of prune, however long it waited
        ("sqlite", "ORDER BY", "new", (2, 0), set()),
    ],
    indirect=["account"],
)
def test_nothing_is_lost_that_is_claimed_while_prune_is_at_work(
    moment: str, claims: str, pruned: object, left: set[str], account: Account, other: Others
) -> None:
    claim_long_ago("old", "older")
    refused: list[bool] = []

    def claim() -> None:
        try:
            claim_now(claims, fence_timeout=0.05)
        except LockUnavailable:
            refused.append(True)
        else:
            refused.append(False)

    def claim_between(execute: Any, sql: str, *more: Any) -> Any:
        if moment in sql and not refused:
            other()(apart(claim))
        return execute(sql, *more)

    with connections["default"].execute_wrapper(claim_between):
        assert prune(MONTH) == pruned
    assert refused == [claims == "new"]
    assert names() == left


def test_an_error_is_told_as_it_was_and_statements_wait_as_long_as_before(account: Account) -> None:
    """Even though Django sends no more statements in a transaction that must be rolled back."""
    row, usual = Fence(key="twice", name="twice", fence=1, claimed=timezone.now()), patience(set_to_seven=True)

    @transaction.atomic
    def insert_twice() -> None:
        with statements_wait(3):
            assert patience() != usual
            Fence.objects.bulk_create([row, row])

    with pytest.raises(IntegrityError):
        insert_twice()
    assert patience() == usual


def test_many_rows_go_in_several_transactions(account: Account) -> None:
    long_ago = timezone.now() - 2 * MONTH
    Fence.objects.bulk_create(Fence(key=f"{n:064}", name=str(n), fence=n, claimed=long_ago) for n in range(BATCH + 1))
    assert prune(MONTH) == (BATCH + 1, 0)
    assert Fence.objects.get(key=MARK).fence == BATCH


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_the_command_prunes(account: Account, ledger: Account) -> None:
    def command(*words: str) -> str:
        out = StringIO()
        call_command("redislocks", "fences", "prune", *words, stdout=out)
        return out.getvalue()

    claim_long_ago("a")
    for words, told in [
        (["--older-than", "30d", "--dry-run"], "Would delete 1 fence, and keep 0 (database default).\n"),
        (["--older-than", "90d"], "Deleted 0 fences, kept 1 (database default).\n"),
        (["--older-than", "30d"], "Deleted 1 fence, kept 0 (database default).\n"),
        (["--older-than", "1h", "--database", "ledger"], "Deleted 0 fences, kept 0 (database ledger).\n"),
    ]:
        assert command(*words) == told
    with connections["ledger"].schema_editor() as editor:
        editor.delete_model(Fence)
    missing = r"Could not prune the fences of .* 'ledger': no such table: .*\. Run manage.py migrate --database ledger"
    for words, told in [
        *[([f"--older-than={wrong}"], "--older-than: must be a time such") for wrong in ("30", "0d", "-1d", "d", "1y")],
        (["--older-than=999999d"], "argument --older-than: must be at most 36500d, not '999999d'"),
        ([], "--older-than"),
        (["--older-than", "1d", "--database", "ledger"], missing),
        (["--older-than", "1d", "--database", "nowhere"], "Unknown database alias 'nowhere'. The aliases in .* are: "),
    ]:
        with pytest.raises(CommandError, match=told):
            command(*words)
