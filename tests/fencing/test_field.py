"""A fence in the rows of the site: work that changes them bit by bit."""
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connections, models

from django_redislock import Lock, LockLost, LockNotOwned
from django_redislock.fencing import FencedManager, FenceField
from tests.fencing.conftest import UNAWARE
from tests.helpers.databases import Account
from tests.helpers.state import NAME


class Parcel(models.Model):  # noqa: DJ008
    state = models.CharField(max_length=10, default="new")
    fence = FenceField()
    objects = FencedManager()

    class Meta:
        app_label = "fenced_tests"


class Unfenced(models.Model):  # noqa: DJ008
    objects = FencedManager()

    class Meta:
        app_label = "fenced_tests"
        managed = False


@pytest.fixture(autouse=True)
def _table(account: Account) -> Iterator[None]:
    with connections["default"].schema_editor() as editor:
        editor.create_model(Parcel)
    Parcel.objects.bulk_create([Parcel() for _ in range(4)])
    yield
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Parcel)


def states() -> list[str]:
    return list(Parcel.objects.order_by("pk").values_list("state", flat=True))


def pks(count: int) -> list[int]:
    return list(Parcel.objects.order_by("pk").values_list("pk", flat=True)[:count])


def test_rows_are_written_with_the_fence_of_the_lock() -> None:
    with Lock(NAME) as lock:
        assert Parcel.objects.filter(state="new").fenced(lock).update(state="sent") == 4
        assert {*Parcel.objects.values_list("fence", flat=True)} == {lock.fence}
        assert Parcel.objects.fenced(lock).filter(pk__in=pks(1)).update(state="back") == 1
    assert states() == ["back", "sent", "sent", "sent"]


def test_a_holder_who_was_overtaken_changes_nothing(forget: Callable[[], None]) -> None:
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    forget()
    with Lock(NAME, blocking_timeout=0, **UNAWARE) as lock:
        assert Parcel.objects.fenced(lock).filter(pk__in=pks(1)).update(state="sent") == 1
    with pytest.raises(LockLost, match=r"a younger holder has changed 1 of 4 rows. None was changed") as caught:
        Parcel.objects.fenced(late).update(state="lost")
    assert caught.value.fence == late.fence
    assert states() == ["sent", "new", "new", "new"]


def test_the_lock_must_be_held_here() -> None:
    with pytest.raises(LockNotOwned):
        Parcel.objects.fenced(Lock(NAME)).update(state="sent")
    assert states() == ["new"] * 4


def test_without_a_lock_it_is_a_queryset_like_any_other() -> None:
    assert Parcel.objects.update(state="sent") == 4
    assert {*Parcel.objects.values_list("fence", flat=True)} == {0}


def test_the_model_must_have_one_field_for_it() -> None:
    with Lock(NAME) as lock, pytest.raises(TypeError, match=r"fenced_tests.Unfenced must have one FenceField .* has 0"):
        Unfenced.objects.fenced(lock)
