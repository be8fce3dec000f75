"""The warning about a lock that is released inside a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction

from django_redislock import Lock, LockedCommand, LockPool, list_locks, locked
from tests.helpers.databases import Account

Settings = Any  # its type has another name in each pytest-django
Work = Callable[[], object]
INSIDE = "was released inside an open transaction"


def block(work: Work) -> None:
    with Lock("account:7"):
        work()


def release(work: Work) -> None:
    lock = Lock("account:7")
    lock.acquire()
    work()
    lock.release()


def release_by_token(work: Work) -> None:
    lock = Lock("account:7")
    lock.acquire()
    token = lock.detach()
    work()
    Lock("account:7", token=token).release()


def member(work: Work) -> None:
    pool = LockPool("accounts")
    pool.assign(["7"])
    with pool.acquire():
        work()


def decorated(work: Work) -> None:
    locked("account:7")(work)()


def command(work: Work) -> None:
    class Command(LockedCommand):
        lock_name = "account:7"

        def handle(self, *args: Any, **options: Any) -> None:
            work()

    call_command(Command())


@pytest.mark.parametrize("way", [block, release, release_by_token, member, decorated, command])
def test_a_lock_released_inside_a_transaction_warns_where_it_was_released(
    way: Callable[[Work], None], account: Account
) -> None:
    with transaction.atomic():
        expected = rf"'.*7' {INSIDE} \(database default\): until COMMIT, .*locked_atomic"
        with pytest.warns(RuntimeWarning, match=expected) as caught:
            way(account.book)
    assert caught[0].filename == __file__ or way is command
    assert (account.balance, list_locks()) == (1, [])


def test_a_lock_released_with_autocommit_off_warns(account: Account) -> None:
    transaction.set_autocommit(False)
    with pytest.warns(RuntimeWarning, match=INSIDE):
        block(account.book)
    transaction.rollback()
    transaction.set_autocommit(True)


def test_any_database_counts_but_not_the_transaction_of_a_testcase(
    in_testcase: None, account: Account, second: Account
) -> None:
    block(account.book)
    with transaction.atomic(), pytest.warns(RuntimeWarning, match=r"\(database default\)"):
        block(account.book)
    with transaction.atomic("second"), pytest.warns(RuntimeWarning, match=r"\(database second\)"):
        block(account.book)


def test_a_setting_makes_it_an_error_and_the_lock_is_free_or_silences_it(account: Account, settings: Settings) -> None:
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "error"}
    with pytest.raises(RuntimeError, match=INSIDE), transaction.atomic():
        block(account.book)
    assert (account.balance, list_locks()) == (0, [])
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "ignore"}
    with transaction.atomic():
        block(account.book)


def test_neither_a_lock_outside_of_the_transaction_nor_an_inner_release_nor_a_block_that_raises_warns(
    account: Account,
) -> None:
    with Lock("account:7"), transaction.atomic(), Lock("account:7", reentrant=True):
        account.book()
    with pytest.raises(ZeroDivisionError), transaction.atomic(), Lock("account:7"):
        raise ZeroDivisionError


async def test_coroutines_have_no_transactions(account: Account) -> None:
    async with Lock("account:7"):
        pass


def test_a_connection_that_was_never_used_is_not_opened(account: Account) -> None:
    connections["default"].close()
    block(lambda: None)
    assert connections["default"].connection is None
