"""Holders that are overtaken without noticing, so that the database must refuse them."""
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError, connections, models, transaction

from django_redislock import Lock, LockLost, get_lock, locked_atomic
from django_redislock.fencing import FencedManager, FenceField
from django_redislock.models import Fence
from django_redislock.testing import overtaken
from tests.helpers.databases import Account, with_fences
from tests.helpers.docs import blocks, page
from tests.helpers.state import NAME

REFUSED = "was refused by the database"


class Parcel(models.Model):  # noqa: DJ008
    state = models.CharField(max_length=10, default="new")
    fence = FenceField()
    objects = FencedManager()

    class Meta:
        app_label = "overtaken_tests"


@pytest.fixture(autouse=True)
def _fences(account: Account) -> Iterator[None]:
    with with_fences("default"), connections["default"].schema_editor() as editor:
        editor.create_model(Parcel)
    yield
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Parcel)


@pytest.fixture(params=[False, True], ids=["alone", "in a TestCase"])
def anywhere(request: pytest.FixtureRequest) -> None:
    """Inside the transaction of a TestCase, and without one."""
    if request.param:
        request.getfixturevalue("in_testcase")


@pytest.mark.usefixtures("anywhere")
def test_the_database_refuses_whoever_is_overtaken(account: Account) -> None:
    def book_by_hand() -> None:
        with Lock(NAME) as lock, transaction.atomic():
            lock.check()
            lock.claim()
            account.book()

    book = locked_atomic(NAME, fenced=True)(account.book)
    for function in (book, book_by_hand):
        with overtaken(NAME), pytest.raises(LockLost, match=REFUSED):
            function()
        assert (account.balance, get_lock(NAME)) == (0, None)
    book()
    assert account.balance == 1


def test_the_example_in_the_documentation_works(account: Account) -> None:
    (block,) = (block for block in blocks(page("testing")) if "overtaken" in block)
    values: dict[str, Any] = {"transfer": locked_atomic("account:7", fenced=True)(account.book)}
    exec(block, values)
    values["test_late"]()
    assert account.balance == 0


@pytest.mark.usefixtures("anywhere")
def test_rows_with_a_fence_are_those_of_the_younger_holder() -> None:
    parcel = Parcel.objects.create()
    refused = pytest.raises(LockLost, match="a younger holder has changed 1 of the rows")
    with overtaken(NAME, rows=Parcel.objects.all()), refused, Lock(NAME) as lock, Lock("another") as other:
        assert other.owned()  # the locks of others are left alone
        Parcel.objects.fenced(lock).update(state="sent")
    parcel.refresh_from_db()
    assert parcel.state == "new"


def test_where_nobody_is_overtaken_nothing_was_tested_and_what_goes_wrong_reaches_the_test() -> None:
    with pytest.raises(AssertionError, match=f"Nobody acquired the lock '{NAME}' in this block"), overtaken(NAME):
        pass
    with pytest.raises(ZeroDivisionError), overtaken(NAME):
        raise ZeroDivisionError
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Fence)
    with pytest.raises((OperationalError, ProgrammingError), match="redislock_fence"), overtaken(NAME):
        Lock(NAME).acquire()
    with connections["default"].schema_editor() as editor:
        editor.create_model(Fence)
