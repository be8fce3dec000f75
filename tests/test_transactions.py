"""``locked_atomic``: lock, BEGIN, COMMIT, release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    force_release,
    list_locks,
    locked_atomic,
)
from django_redislock.watchdog import watchdog

from .actors import GENEROUS, Other
from .databases import Account, Commits

Settings = Any
Eventually = Callable[[Callable[[], Any]], Any]


def test_the_lock_is_held_until_the_transaction_has_committed(account: Account, commits: Commits) -> None:
    with locked_atomic("account:7", ttl=10) as lock:
        account.book()
        assert lock.name == "account:7"
        assert connection.in_atomic_block
        assert lock.fence
    assert commits.seen == [("default", ["account:7"], ["account:7"])]
    assert list_locks() == []
    assert account.balance == 1


def test_a_block_that_raises_rolls_back_and_then_releases(account: Account, commits: Commits) -> None:
    with pytest.raises(ZeroDivisionError), locked_atomic("account:7"):
        1 / account.balance
    assert (account.balance, commits.seen, list_locks()) == (0, [], [])


def test_a_function_has_the_lock_of_its_arguments(account: Account, commits: Commits) -> None:
    @locked_atomic("account:{pk}", fair=True)
    def book(pk: str) -> int:
        return account.book()

    assert book("4:2") == 1
    assert book.__name__ == "book"
    assert commits.seen == [("default", ["account:4%3A2"], ["account:4%3A2"])]


def test_several_databases_commit_under_the_lock_the_first_one_last(
    account: Account, second: Account, commits: Commits
) -> None:
    with locked_atomic("account:7", db=["default", "second"]):
        account.book()
        second.book()
    assert commits.seen == [("second", ["account:7"], ["account:7"]), ("default", ["account:7"], ["account:7"])]
    assert (account.balance, second.balance) == (1, 1)


def test_callbacks_of_on_commit_run_under_the_lock(account: Account) -> None:
    seen = []
    with locked_atomic("account:7"):
        transaction.on_commit(lambda: seen.append([lock.name for lock in list_locks()]))
    assert seen == [["account:7"]]


def test_who_does_not_get_the_lock_begins_nothing(
    account: Account, other: Callable[[], Other], commits: Commits
) -> None:
    with Lock("account:7"):

        def busy() -> None:
            try:
                with locked_atomic("account:7", blocking_timeout=0):
                    raise AssertionError("not reached")
            finally:
                connections.close_all()

        with pytest.raises(LockNotAcquired):
            other()(busy)
    assert commits.seen == []


def test_what_was_done_under_a_lost_lock_is_rolled_back(account: Account, eventually: Eventually) -> None:
    @locked_atomic("account:7")
    def work() -> None:
        account.book()
        (lease,) = watchdog._leases.values()
        force_release("account:7")
        eventually(lambda: lease.lost)

    with pytest.raises(LockLost):
        work()
    assert account.balance == 0


def test_inside_an_atomic_block_it_is_refused_before_it_locks(account: Account) -> None:
    refused = pytest.raises(RuntimeError, match=r"inside an open atomic block.*locked_view.*outside")
    with transaction.atomic(), refused, locked_atomic("account:7"):
        raise AssertionError("not reached")
    with locked_atomic("account:7"):
        with pytest.raises(RuntimeError, match=r"locked_atomic\('account:8'\) must begin the transaction itself"):
            locked_atomic("account:8")(account.book)()
        assert [lock.name for lock in list_locks()] == ["account:7"]


def test_with_autocommit_off_it_is_refused(account: Account) -> None:
    transaction.set_autocommit(False)
    with pytest.raises(RuntimeError, match="'default' has autocommit off"), locked_atomic("account:7"):
        raise AssertionError("not reached")
    transaction.rollback()
    transaction.set_autocommit(True)


def test_in_a_testcase_it_works_as_outside(in_testcase: None, account: Account) -> None:
    with locked_atomic("account:7"):
        account.book()
    assert list_locks() == []
    with transaction.atomic(), pytest.raises(RuntimeError, match="open atomic block"), locked_atomic("account:7"):
        raise AssertionError("not reached")


def test_one_object_serves_many_threads(account: Account, other: Callable[[], Other]) -> None:
    book = locked_atomic("account:7", blocking_timeout=GENEROUS)

    def work() -> None:
        for _ in range(10):
            with book:
                account.book()
        connections.close_all()

    futures: list[Future[None]] = [other().start(work) for _ in range(4)]
    for future in futures:
        future.result(GENEROUS)
    assert account.balance == 40


async def test_in_an_event_loop_it_is_refused(account: Account) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        locked_atomic("account:7").__enter__()


def test_wrong_arguments_are_errors_that_say_what_is_right() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="Django's transactions are for sync code"):
        locked_atomic("x")(coroutine)
    with pytest.raises(TypeError, match="locked_atomic cannot decorate"):
        locked_atomic("x")(generator)
    with pytest.raises(ValueError, match="ttl must be at least"):
        locked_atomic("x", ttl=0)
    for wrong in ([], [7]):
        with pytest.raises(TypeError, match="db must be an alias in DATABASES or a list of aliases, not"):
            locked_atomic("x", db=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="A with block has no arguments"), locked_atomic(lambda: "x"):
        raise AssertionError("not reached")


@pytest.mark.parametrize("name", ["account:{pk}", "{}", "{a.b}:c"])
def test_a_block_takes_no_template_as_it_has_no_arguments(name: str, account: Account) -> None:
    with pytest.raises(ValueError, match=r"no arguments to fill .* with: make the name yourself"), locked_atomic(name):
        raise AssertionError("not reached")


@pytest.mark.parametrize("name", ["a{", "}", "a{{b}}"])
def test_other_braces_are_part_of_the_name(name: str, account: Account) -> None:
    with locked_atomic(name) as lock:
        assert lock.name == name


def test_a_wrong_name_is_an_error_before_anything_else(account: Account) -> None:
    with pytest.raises(ValueError, match="name"), locked_atomic(""):
        raise AssertionError("not reached")
