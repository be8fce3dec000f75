"""``locked_atomic``: lock, BEGIN, COMMIT, release; and the warning about a lock that is released before COMMIT."""

import sys
import unittest
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockPool,
    LockUnavailable,
    aget_lock,
    force_release,
    list_locks,
    locked,
    locked_atomic,
)
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, never, until
from tests.helpers.cancelling import Interrupt, interrupters
from tests.helpers.databases import Account, Commits
from tests.helpers.state import held
from tests.inside import WHERE_TRANSACTIONS_BEGIN

Work = Callable[[], object]
Run = Callable[[Work], object]
NAME, TOKEN = "account:7", "t" * 43
UNDER_THE_LOCK = ([NAME], [NAME])  # that is held before and after a COMMIT
INSIDE = "was released inside an open transaction"


@pytest.fixture(params=["block", "function", "stack"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs something under the same ``locked_atomic``, in each of the possible ways."""
    atomic = locked_atomic(NAME, blocking_timeout=GENEROUS)

    def block(work: Work) -> None:
        with atomic as lock:
            assert (lock.name, bool(lock.fence), lock.owned()) == (NAME, True, True)
            work()

    def stack(work: Work) -> None:
        with ExitStack() as stack:
            assert stack.enter_context(atomic).owned()
            work()

    ways: dict[str, Run] = {"block": block, "function": lambda work: atomic(work)(), "stack": stack}
    return ways[request.param]


def test_it_is_held_until_commit_and_serves_many_threads(run: Run, account: Account, commits: Any, other: Any) -> None:
    run(account.book)
    assert (commits.seen, held()) == ([("default", *UNDER_THE_LOCK)], [])

    def work() -> None:
        for _ in range(10):
            run(account.book)
        connections.close_all()

    for future in [other().start(work) for _ in range(4)]:
        future.result(GENEROUS)
    assert account.balance == 41


@pytest.mark.parametrize("run", ["block", "function"], indirect=True)  # an ExitStack may be interrupted as it enters it
def test_wherever_it_is_interrupted_no_transaction_stays_open(run: Run, account: Account) -> None:
    """Where CPython runs signal handlers in the code that begins and ends the transaction."""
    least = 20 if sys.version_info < (3, 14) else 12
    for one in interrupters(lambda file: file in WHERE_TRANSACTIONS_BEGIN, least=least):
        with suppress(Interrupt):
            one.run(lambda: run(account.book))
        one.leaves_nothing(lambda: connection.in_atomic_block or held())
    before = account.balance
    run(account.book)
    assert account.balance == before + 1


def test_of_several_databases_the_first_commits_last(account: Account, second: Account, commits: Commits) -> None:
    seen: list[Any] = []

    def see() -> None:
        seen.append((len(commits.seen), held(), account.balance, second.balance))
        raise ZeroDivisionError

    for robust in (True, False):
        with suppress(ZeroDivisionError), locked_atomic(NAME, db=["default", "second"]):
            for each in (account, second):
                each.book()
                transaction.on_commit(see, using=each.alias, robust=robust)
    # the one that is not robust keeps the one after it from running, as always
    assert seen == [(2, [NAME], 1, 1), (2, [NAME], 1, 1), (4, [NAME], 2, 2)]
    assert commits.seen == [("second", *UNDER_THE_LOCK), ("default", *UNDER_THE_LOCK)] * 2


@pytest.mark.parametrize("fails", ["default", "second"])
def test_callbacks_of_what_was_rolled_back_do_not_run(account: Account, second: Account, fails: str) -> None:
    seen: list[str] = []
    with locked_atomic(NAME, db=["default", "second"]):
        for each in (account, second):
            each.book()
            transaction.on_commit(partial(seen.append, each.alias), using=each.alias)
            if each.alias == fails:
                transaction.set_rollback(True, using=each.alias)
    assert seen == [alias for alias in ("default", "second") if alias != fails]
    assert (account.balance, second.balance) == (int(fails != "default"), int(fails != "second"))


def test_in_a_test_case_callbacks_stay_with_their_database_to_be_captured(account: Account, second: Account) -> None:
    class Case(TestCase):
        databases: Any = {"default", "second"}

        def runTest(self) -> None:  # noqa: N802 (of unittest)
            for alias in ("default", "second"):
                seen: list[str] = []
                with self.captureOnCommitCallbacks(using=alias, execute=True):
                    with locked_atomic(NAME, db=["default", "second"]):
                        transaction.on_commit(partial(seen.append, alias), using=alias)
                    assert seen == []
                assert seen == [alias]

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit, LockLost])
def test_what_raises_or_is_lost_rolls_back(error: Any, run: Run, account: Any, heard: Any) -> None:
    def work() -> None:
        account.book()
        assert held() == [NAME]
        if error is not LockLost:
            raise error
        force_release(NAME)
        until(lambda: "lost" in [which for which, _ in heard])

    with pytest.raises(error):
        run(work)
    assert (connection.in_atomic_block, account.balance) == (False, 0)
    if error is GeneratorExit:
        until(lambda: not held())
    assert held() == []


@pytest.mark.parametrize("names", [NAME, [NAME, "account:8"]], ids=["one", "several"])
def test_only_what_is_not_committed_ends_with_an_error_while_redis_is_away(
    names: Any, account: Account, own: RedisServer, retry_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    retry_for(0.1)

    def work() -> str:
        account.book()
        own.stop()
        return "done"

    assert (locked_atomic(names)(work)(), account.balance) == ("done", 1)
    assert "event=not-released name=account:" in caplog.text
    with pytest.raises(LockUnavailable):
        locked_atomic(names)(never)()
    own.start()
    with pytest.raises(LockUnavailable, match="away"):  # a callback's own error is raised as always
        locked_atomic("mine")(lambda: transaction.on_commit(Mock(side_effect=LockUnavailable("away"))))()
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)


def test_if_the_lock_is_busy_no_transaction_begins(account: Account, other: Any, commits: Commits) -> None:
    assert other()(Lock(NAME).acquire)
    with pytest.raises(LockNotAcquired):
        locked_atomic(NAME, blocking_timeout=0)(never)()
    with Lock("mine"), pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\. Pass reentrant"):
        locked_atomic("mine", blocking=False)(never)()
    assert (commits.seen, connection.in_atomic_block) == ([], False)


@pytest.mark.parametrize("testcase", [False, True])
def test_inside_a_transaction_it_is_refused(testcase: bool, run: Run, account: Any, request: Any) -> None:
    def nest() -> None:
        for inner in (run, lambda work: locked_atomic("account:8")(work)()):
            with pytest.raises(RuntimeError, match=r"\('account:[78]'\) must begin the transaction itself"):
                inner(never)
        account.book()

    if testcase:
        request.getfixturevalue("in_testcase")
    run(nest)
    with transaction.atomic(), pytest.raises(RuntimeError, match=r"inside an open atomic block.*locked_view.*outside"):
        run(never)
    assert (account.balance, held()) == (1, [])


def test_wrong_arguments_are_errors_and_a_block_has_none_for_a_template(account: Account) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("account:{pk}", ValueError, r"no arguments to fill .* with: make the name"),
        (lambda pk: f"{pk}", TypeError, "A with block has no arguments"),
        ("", ValueError, "name"),
    ]
    for name, error, message in wrong:
        with pytest.raises(error, match=message), locked_atomic(name):
            never()
    with pytest.raises(TypeError, match="Django's transactions are for sync code"):
        locked_atomic("x")(aget_lock)
    for db in ([], [7], 5):
        with pytest.raises(TypeError, match="db must be an alias in DATABASES or a list of aliases, not"):
            locked_atomic("x", db=db)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^db names 'replca', which is not in DATABASES\. The aliases are: default"):
        locked_atomic("x", db=["default", "replca"])(never)()
    with pytest.raises(ValueError, match="db names an alias twice"):
        locked_atomic("x", db=["default", "default"])
    with locked_atomic("a{{b}}", note="no. {pk}", token=TOKEN) as lock:  # other braces are part of the name
        assert (lock.name, lock.token, list_locks()[0].note) == ("a{{b}}", TOKEN, "no. {pk}")
    assert locked_atomic("a{{pk}}")(held)() == ["a{pk}"]


def block(work: Work) -> None:
    with Lock(NAME):
        work()


def release_by_token(work: Work) -> None:
    lock = Lock(NAME)
    lock.acquire()
    token = lock.detach()
    work()
    Lock(NAME, token=token).release()


def member(work: Work) -> None:
    pool = LockPool("accounts")
    pool.assign(["7"])
    with pool.acquire():
        work()


def stack(work: Work) -> None:
    with ExitStack() as stack:
        stack.enter_context(Lock(NAME))
        work()


def atomic(work: Work) -> None:
    with locked_atomic(NAME, db="second"):
        work()


@pytest.mark.usefixtures("second")
@pytest.mark.parametrize("way", [block, stack, atomic, release_by_token, member, lambda work: locked(NAME)(work)()])
def test_a_lock_released_inside_a_transaction_warns_where_it_was_released(way: Run, account: Account) -> None:
    expected = rf"^A lock {INSIDE} \(database default\): until COMMIT, .*locked_atomic"
    with transaction.atomic(), pytest.warns(RuntimeWarning, match=expected) as caught:
        way(account.book)
    assert (caught[0].filename, account.balance, held()) == (__file__, 1, [])


def test_each_place_warns_once_whatever_names_are_locked_there(account: Account) -> None:
    """Python remembers each text, and by default prints it once."""
    with transaction.atomic(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(3):
            with Lock(f"order:{number}"):
                pass
    assert len(caught) == 1


def test_any_database_counts_and_autocommit_but_no_testcase(in_testcase: None, account: Any, second: Any) -> None:
    block(account.book)
    with transaction.atomic(), pytest.warns(RuntimeWarning, match=r"\(database default\)"):
        block(account.book)
    transaction.set_autocommit(False, using="second")
    with pytest.warns(RuntimeWarning, match=rf"{INSIDE} \(database second\)"):
        block(second.book)
    with pytest.raises(RuntimeError, match="'second' has autocommit off"):
        locked_atomic(NAME, db="second")(never)()
    transaction.rollback(using="second")


def test_a_setting_makes_it_an_error_and_the_lock_is_free_or_silences_it(account: Account, settings: Any) -> None:
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "error"}
    for section in (block, release_by_token):
        with pytest.raises(RuntimeError, match=INSIDE), transaction.atomic():
            section(account.book)
        assert (account.balance, held()) == (0, [])
    settings.REDISLOCK = {"RELEASE_IN_TRANSACTION": "ignore"}
    with transaction.atomic():
        block(account.book)


def test_no_inner_release_nor_a_block_that_raises_nor_an_unused_connection_warns(account: Account) -> None:
    with Lock(NAME), transaction.atomic(), Lock(NAME, reentrant=True):
        account.book()
    with pytest.raises(ZeroDivisionError), transaction.atomic(), Lock(NAME):
        raise ZeroDivisionError
    connections["default"].close()
    block(lambda: None)
    assert connections["default"].connection is None
