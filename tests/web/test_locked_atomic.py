"""``locked_atomic``: lock, BEGIN, COMMIT, release. What it has in common with other decorators: tests/jobs."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.test import TestCase

from django_redislock import Lock, LockLost, LockNotAcquired, force_release, list_locks, lock_digest, locked_atomic
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account, Commits

Eventually = Callable[[Callable[[], Any]], Any]
Run = Callable[[Callable[[], Any]], None]
NAME = "account:7"
UNDER_THE_LOCK = ([NAME], [NAME])  # that is held before and after a COMMIT
ITSELF = r"locked_atomic\('account:[78]'\) must begin the transaction itself"


def held() -> list[str]:
    return [lock.name for lock in list_locks()]


def never() -> None:
    raise AssertionError("not reached")


@pytest.fixture(params=["block", "function", "stack"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs something under the same ``locked_atomic``, in each of the possible ways."""
    atomic = locked_atomic(NAME)

    def block(work: Callable[[], Any]) -> None:
        with atomic as lock:
            assert (lock.name, bool(lock.fence), lock.owned()) == (NAME, True, True)
            work()

    def stack(work: Callable[[], Any]) -> None:
        with ExitStack() as stack:
            lock = stack.enter_context(atomic)
            assert (lock.name, bool(lock.fence), lock.owned()) == (NAME, True, True)
            work()

    ways: dict[str, Run] = {"block": block, "function": lambda work: atomic(work)(), "stack": stack}
    return ways[request.param]


# -- the order ------------------------------------------------------------------------------------------------------


def test_the_lock_is_held_until_the_transaction_has_committed(run: Run, account: Account, commits: Commits) -> None:
    def work() -> None:
        account.book()
        assert connection.in_atomic_block

    for balance in (1, 2):
        commits.seen.clear()
        run(work)
        assert commits.seen == [("default", *UNDER_THE_LOCK)]
        assert (held(), account.balance) == ([], balance)


def test_several_databases_commit_under_the_lock_the_first_one_last_and_then_callbacks_run(
    account: Account, second: Account, commits: Commits
) -> None:
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


@pytest.mark.parametrize("fails", ["default", "second", "neither"])
def test_callbacks_of_what_was_rolled_back_do_not_run(account: Account, second: Account, fails: str) -> None:
    seen: list[str] = []
    with locked_atomic(NAME, db=["default", "second"]):
        for each in (account, second):
            each.book()
            transaction.on_commit(partial(seen.append, each.alias), using=each.alias)
            if each.alias == fails:
                transaction.set_rollback(True, using=each.alias)
    assert seen == {"default": ["second"], "second": ["default"], "neither": ["second", "default"]}[fails]
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


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_raises_or_is_interrupted_rolls_back_and_then_releases(
    error: type[BaseException], run: Run, account: Account, commits: Commits, eventually: Eventually
) -> None:
    def work() -> None:
        account.book()
        assert held() == [NAME]
        raise error

    for _ in range(2):
        with pytest.raises(error):
            run(work)
        if error is GeneratorExit:
            eventually(lambda: not held())
        assert (connection.in_atomic_block, held()) == (False, [])
    assert (account.balance, commits.seen) == (0, [])
    run(account.book)
    assert account.balance == 1


def test_work_under_a_lost_lock_is_rolled_back(
    run: Run, account: Account, heard: list[tuple[str, dict[str, Any]]], eventually: Eventually
) -> None:
    def work() -> None:
        account.book()
        force_release(NAME)
        eventually(lambda: "lost" in [which for which, _ in heard])

    with pytest.raises(LockLost):
        run(work)
    assert account.balance == 0


@pytest.mark.parametrize("ends", ["is closed", "is forgotten"])
def test_a_block_in_a_generator_that_ends_halfway_rolls_back_and_releases(
    ends: str, account: Account, eventually: Eventually
) -> None:
    def generate() -> Iterator[None]:
        with locked_atomic(NAME):
            account.book()
            yield

    generator: Any = generate()
    next(generator)
    assert held() == [NAME]
    if ends == "is closed":
        generator.close()
    del generator
    assert (connection.in_atomic_block, account.balance) == (False, 0)
    eventually(lambda: not held())


def test_one_object_serves_many_threads(account: Account, other: Callable[[], Other]) -> None:
    book = locked_atomic(NAME, blocking_timeout=GENEROUS)

    def work() -> None:
        for _ in range(10):
            with book:
                account.book()
        connections.close_all()

    for future in [other().start(work) for _ in range(4)]:
        future.result(GENEROUS)
    assert account.balance == 40


# -- where it is refused --------------------------------------------------------------------------------------------


def test_if_the_lock_is_busy_no_transaction_begins(
    account: Account, other: Callable[[], Other], commits: Commits
) -> None:
    assert other()(Lock(NAME).acquire)
    with pytest.raises(LockNotAcquired):
        locked_atomic(NAME, blocking_timeout=0)(never)()
    assert (commits.seen, connection.in_atomic_block) == ([], False)


@pytest.mark.parametrize("testcase", [False, True])
def test_inside_an_atomic_block_it_is_refused_before_it_locks_but_not_in_a_testcase(
    testcase: bool, run: Run, account: Account, request: pytest.FixtureRequest
) -> None:
    if testcase:
        request.getfixturevalue("in_testcase")
        run(account.book)
    with transaction.atomic(), pytest.raises(RuntimeError, match=r"inside an open atomic block.*locked_view.*outside"):
        run(account.book)
    assert (account.balance, held()) == (int(testcase), [])


def test_inside_itself_or_another_one_it_is_refused(run: Run, account: Account) -> None:
    def work() -> None:
        account.book()
        for inner in (run, lambda work: locked_atomic("account:8")(work)()):
            with pytest.raises(RuntimeError, match=ITSELF):
                inner(account.book)
        assert (held(), connection.in_atomic_block) == ([NAME], True)

    run(work)
    assert (account.balance, held()) == (1, [])


def test_under_a_lock_of_its_name_it_says_that_the_caller_holds_it(account: Account) -> None:
    with (
        Lock(NAME),
        pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\. Pass reentrant=True"),
    ):
        locked_atomic(NAME, blocking=False)(never)()


def test_with_autocommit_off_it_is_refused(run: Run, account: Account) -> None:
    transaction.set_autocommit(False)
    with pytest.raises(RuntimeError, match="'default' has autocommit off"):
        run(account.book)
    transaction.rollback()
    transaction.set_autocommit(True)


async def test_in_an_event_loop_it_is_refused_with_what_to_do_instead(account: Account) -> None:
    with pytest.raises(SynchronousOnlyOperation, match=r"event loop .* thread\. Call it through sync_to_async\.$"):
        locked_atomic(NAME).__enter__()
    with pytest.raises(TypeError, match=r"^locked_atomic has no async with: .* call it through sync_to_async\.$"):
        async with locked_atomic(NAME):  # type: ignore[attr-defined]
            never()
    assert await sync_to_async(held)() == []


# -- names and options ----------------------------------------------------------------------------------------------


def test_a_block_has_no_arguments_for_templates_and_callables(account: Account, commits: Commits) -> None:
    for name in ("account:{pk}", "{}", "{a.b}:c"):
        with pytest.raises(ValueError, match=r"no arguments to fill .* with: make the name"), locked_atomic(name):
            never()
    with pytest.raises(TypeError, match="A with block has no arguments"), locked_atomic(lambda pk: f"{pk}"):
        never()
    with pytest.raises(ValueError, match="name"), locked_atomic(""):
        never()
    assert commits.seen == []
    for name in ("a{", "}", "a{{b}}"):  # other braces are part of the name
        with locked_atomic(name) as lock:
            assert lock.name == name
    assert locked_atomic("a{{pk}}")(held)() == ["a{pk}"]
    with locked_atomic(NAME, note="no. {pk}", token=lock_digest(7)) as lock:
        assert (lock.token, list_locks()[0].note) == (lock_digest(7), "no. {pk}")


def test_wrong_arguments_are_errors_that_say_what_is_right() -> None:
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="Django's transactions are for sync code"):
        locked_atomic("x")(coroutine)
    for wrong in ([], [7], 5, None):
        with pytest.raises(TypeError, match="db must be an alias in DATABASES or a list of aliases, not"):
            locked_atomic("x", db=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="db names an alias twice"):
        locked_atomic("x", db=["default", "default"])
    with pytest.raises(TypeError, match="A lock's name must be a str or a callable, not None"):
        locked_atomic()(never)
