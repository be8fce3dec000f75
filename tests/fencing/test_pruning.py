"""Rows of names that were not claimed for long are pruned, and no late holder gets in because of that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connections, transaction
from django.utils import timezone

from django_redislock import Lock, LockLost, LockUnavailable, locked_atomic
from django_redislock.fencing import prune
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, apart, on_sqlite
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account
from tests.helpers.state import NAME
from tests.inside import limit

MONTH = timedelta(days=30)
Others = Callable[[], Other]


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
    assert prune(MONTH, dry_run=True) == (1001, 1)
    assert prune(MONTH) == (1001, 1)
    assert names() == {"c"}
    assert Fence.objects.get(key="").fence == 1000  # the highest that was ever pruned


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


@pytest.mark.parametrize("patience", [0.05, GENEROUS])
@pytest.mark.parametrize("account", ["postgres read committed"], indirect=True)
def test_prune_waits_for_first_claims_but_not_without_end(
    account: Account, other: Others, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """A first claim, which finds no row, keeps the row with the highest pruned fence locked until COMMIT."""
    limit(monkeypatch, prune_within=patience)
    claim_long_ago("old")
    with locked_atomic("new", fenced=True, **UNAWARE):
        pruning = other().start(apart(partial(prune, MONTH)))
        if patience < 1:
            with pytest.raises(OperationalError, match="lock timeout"):
                pruning.result(GENEROUS)
        assert names() == {"old", "new"}
    assert patience < 1 or pruning.result(GENEROUS).deleted == 1


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
    assert command("--older-than", "90d") == "Deleted 0 fences, kept 1 (database default).\n"
    assert command("--older-than", "30d") == "Deleted 1 fence, kept 0 (database default).\n"
    assert command("--older-than", "1h", "--database", "ledger") == "Deleted 0 fences, kept 0 (database ledger).\n"
    with connections["ledger"].schema_editor() as editor:
        editor.delete_model(Fence)
    for words, told in [
        *[([f"--older-than={wrong}"], "--older-than: must be a time such") for wrong in ("30", "0d", "d", "1y")],
        (["--older-than=999999d"], "argument --older-than: must be at most 36500d, not '999999d'"),
        (["--older-than", "1d", "--database", "ledger"], r"no such table: .*\. Run manage.py migrate"),
        (["--older-than", "1d", "--database", "nowhere"], "Unknown database alias 'nowhere'. The aliases in .* are: "),
    ]:
        with pytest.raises(CommandError, match=told):
            command(*words)
