"""A fence in the rows of the site, for work that changes them in several transactions."""
# mypy: disable-error-code="misc"

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
from django.db import OperationalError, connections, models, transaction
from django.db.models import Q, QuerySet

from django_redislock import Lock, LockLost, LockNotOwned, LockPool
from django_redislock.fencing import FencedManager, FencedQuerySet, FenceField
from tests.fencing.conftest import UNAWARE
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account, one_database
from tests.helpers.state import NAME


class Depot(models.Model):  # noqa: DJ008
    name = models.CharField(max_length=10, default="here")

    class Meta:
        app_label = "fenced_tests"


class Parcel(models.Model):  # noqa: DJ008
    state = models.CharField(max_length=10, default="new")
    depot = models.ForeignKey(Depot, models.CASCADE, null=True)
    fence = FenceField()
    objects = FencedManager()

    class Meta:
        app_label = "fenced_tests"


class Crate(Parcel):  # noqa: DJ008
    weight = models.IntegerField(default=0)
    objects = FencedManager()

    class Meta:
        app_label = "fenced_tests"


class Unfenced(models.Model):  # noqa: DJ008
    objects = FencedManager()

    class Meta:
        app_label = "fenced_tests"
        managed = False


MODELS = [Depot, Parcel, Crate]
# how to ask whether somebody waits for a row
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT variable_value + 0 FROM information_schema.global_status"
    " WHERE variable_name = 'Innodb_row_lock_current_waits'",
    "sqlite": "SELECT 1",  # no reader can tell
}
ROWS: dict[str, Callable[[], Any]] = {
    "all": lambda: Parcel.objects.all(),
    "join": lambda: Parcel.objects.filter(depot__name="here"),
    "outer join": lambda: Parcel.objects.filter(Q(depot__name="here") | Q(depot=None)),
    "inherited": lambda: Crate.objects.all(),
}
SIGNS = {"|": operator.or_, "&": operator.and_, "^": operator.xor}
# what is combined with all rows
COMBINED: dict[str, Callable[[], Any]] = {
    "filter": lambda: Parcel.objects.filter(pk__in=pks(1)),
    "slice": lambda: Parcel.objects.order_by("pk")[:2],
    "none": lambda: Parcel.objects.none(),
    "plain": lambda: QuerySet(Parcel).filter(pk__in=pks(1)),
    "plain none": lambda: QuerySet(Parcel).none(),
}


@pytest.fixture(autouse=True)
def _tables(account: Account) -> Iterator[None]:
    with connections["default"].schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    depot = Depot._base_manager.create()
    Parcel.objects.bulk_create([Parcel(depot=depot) for _ in range(4)])
    yield
    with connections["default"].schema_editor() as editor:
        for model in reversed(MODELS):
            editor.delete_model(model)


@pytest.fixture
def late(forget: Callable[[], None], other: Callable[[], Other]) -> Iterator[Callable[..., Future[Any]]]:
    """Somebody who writes under a lock of his own that Redis has forgotten, which he does not know."""
    thread, lock = other(), Lock(NAME, **UNAWARE)
    assert thread(lock.acquire)
    forget()
    yield lambda write: thread.start(lambda: write(lock))
    thread(connections.close_all)


def change(lock: Lock, count: int = 1) -> None:
    assert Parcel.objects.filter(pk__in=pks(count)).fenced(lock).update(state="sent") == count


class Replicated:
    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: object, **hints: object) -> str:
        return "default"


def states() -> list[str]:
    return list(Parcel.objects.order_by("pk").values_list("state", flat=True))


def pks(count: int) -> list[int]:
    return list(Parcel.objects.order_by("pk").values_list("pk", flat=True)[:count])


def test_rows_are_changed_with_the_fence_of_the_lock(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]  # not needed here
    with Lock(NAME) as lock:
        assert Parcel.objects.filter(state="new").fenced(lock).update(state="sent") == 4
        assert {*Parcel.objects.values_list("fence", flat=True)} == {lock.fence}
        assert Parcel.objects.fenced(lock).filter(pk__in=pks(1)).update(state="back") == 1
        assert states() == ["back", "sent", "sent", "sent"]
        assert Parcel.objects.filter(pk__in=pks(1)).fenced(lock).delete()[0] == 1
    with Lock(NAME) as lock:
        assert Parcel.objects.fenced(lock).bulk_update(Parcel.objects.all(), ["state"]) == 3
        assert {*Parcel.objects.values_list("fence", flat=True)} == {lock.fence}


@pytest.mark.parametrize("method", ["update", "delete"])
def test_a_queryset_that_was_read_before_is_read_again_after_it_has_written(method: str) -> None:
    with Lock(NAME) as lock:
        rows = Parcel.objects.filter(state="new").fenced(lock)
        assert len(rows) == 4
        rows.update(state="sent") if method == "update" else rows.delete()
        assert list(rows) == []


# -- who is late ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["update", "delete"])
@pytest.mark.parametrize("replicated", [False, True], ids=["", "rows are read from a replica"])
def test_a_holder_who_was_overtaken_changes_nothing(
    replicated: bool, method: str, forget: Callable[[], None], settings: Any, sqlite: dict[str, Any]
) -> None:
    late = Lock(NAME, **UNAWARE)
    assert late.acquire()
    fence = late.fence
    forget()
    with Lock(NAME, blocking_timeout=0, **UNAWARE) as lock:
        change(lock)
    replica = one_database("replica", {**sqlite, "NAME": f"{sqlite['NAME']}.replica"}) if replicated else nullcontext()
    with replica:
        settings.DATABASE_ROUTERS = [Replicated()] if replicated else []
        with pytest.raises(LockLost, match=r"a younger holder has changed 1 of the rows. None was changed") as caught:
            getattr(Parcel.objects.fenced(late), method)(**{"state": "lost"} if method == "update" else {})
        settings.DATABASE_ROUTERS = []
    assert caught.value.fence == fence
    assert states() == ["sent", "new", "new", "new"]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("deletes", [False, True])
def test_a_holder_who_was_overtaken_and_has_to_wait_changes_nothing(
    rows: str, deletes: bool, late: Callable[..., Future[Any]], eventually: Callable[..., Any]
) -> None:
    Crate.objects.create()

    def write(lock: Lock) -> object:
        mine = ROWS[rows]().fenced(lock)
        return mine.delete() if deletes else mine.update(state="lost")

    with Lock(NAME, **UNAWARE) as lock, transaction.atomic():
        assert (changed := ROWS[rows]().fenced(lock).update(state="sent"))
        writing = late(write)
        with connections["default"].cursor() as cursor:
            eventually(lambda: cursor.execute(WAITING[connections["default"].vendor]) and cursor.fetchone()[0])
    with pytest.raises((LockLost, OperationalError)):  # at REPEATABLE READ and above, the database refuses by itself
        writing.result(GENEROUS)
    assert states().count("sent") == changed


def test_a_transaction_that_has_read_before_does_not_miss_a_younger_holder(late: Callable[..., Future[Any]]) -> None:
    has_read, go_on = threading.Event(), threading.Event()

    @transaction.atomic
    def write(lock: Lock) -> None:
        list(Parcel.objects.all())
        has_read.set()
        assert go_on.wait(GENEROUS)
        Parcel.objects.fenced(lock).update(state="lost")

    writing = late(write)
    assert has_read.wait(GENEROUS)
    with Lock(NAME, **UNAWARE) as lock:
        change(lock)
    go_on.set()
    with pytest.raises((LockLost, OperationalError)):
        writing.result(GENEROUS)
    assert states() == ["sent", "new", "new", "new"]


# -- querysets that are combined ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "sign"), sorted({*product(COMBINED, SIGNS)} - {("slice", "&")})
)  # which Django refuses
def test_querysets_that_are_combined_are_under_the_lock_of_either(
    rows: str, sign: str, late: Callable[..., Future[Any]]
) -> None:
    with Lock(NAME, **UNAWARE) as lock:
        change(lock, 4)
    plain, every = COMBINED[rows](), Parcel.objects.all()

    def write(lock: Lock) -> None:
        mine = every.fenced(lock)
        pairs = [(plain, mine), (mine, plain)]
        if isinstance(plain, FencedQuerySet):
            fenced = plain.fenced(lock)
            pairs += [(fenced, every), (every, fenced), (fenced, mine)]
        for left, right in pairs:
            both = SIGNS[sign](left, right)
            with pytest.raises(LockLost) if both.exists() else nullcontext():
                both.update(state="lost")
        assert every.update(state="plain") == 4  # which is under no lock

    late(write).result(GENEROUS)
    assert states() == ["plain"] * 4


def test_querysets_without_a_lock_are_combined_as_ever() -> None:
    first: Any = Parcel.objects.filter(pk__in=pks(1))
    plain: Any = QuerySet(Parcel)
    assert (first | plain).update(state="sent") == (plain | first).update(state="back") == 4
    assert type(plain | first) is QuerySet
    with pytest.raises(TypeError, match="unsupported operand"):
        5 | first
    one, other = (Parcel.objects.fenced(Lock(name)) for name in ("a", "b"))
    with pytest.raises(TypeError, match="under one lock, not under two: 'a' and 'b'"):
        one | other


# -- what it is not for ---------------------------------------------------------------------------------------------


def test_without_a_lock_it_is_a_queryset_like_any_other_and_save_leaves_the_fence_as_it_is() -> None:
    assert Parcel.objects.update(state="sent") == 4
    assert {*Parcel.objects.values_list("fence", flat=True)} == {0}
    parcel = Parcel.objects.get(pk=pks(1)[0])
    with Lock(NAME) as lock:
        change(lock)
        parcel.state = "saved"
        parcel.save()
        parcel.refresh_from_db()
        assert (parcel.state, parcel.fence) == ("saved", lock.fence)


@pytest.mark.parametrize("name", ["create", "bulk_create", "get_or_create", "update_or_create"])
def test_what_creates_rows_is_not_for_locks(name: str) -> None:
    given: list[Any] = [[Parcel()]] if name == "bulk_create" else []
    with Lock(NAME) as lock, pytest.raises(TypeError, match=rf"fenced\(lock\) guards .*, not {name}\(\)"):
        getattr(Parcel.objects.fenced(lock), name)(*given)
    with pytest.raises(Parcel.MultipleObjectsReturned) if "or" in name else nullcontext():
        getattr(Parcel.objects, name)(*given)


@pytest.mark.parametrize("wrong", [None, "parcels", 7, Lock, LockPool("parcels"), Parcel._meta.pk], ids=repr)
def test_what_is_no_lock_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^fenced\(\) takes a lock, not "):
        Parcel.objects.fenced(wrong)


def test_wrong_uses_are_errors_that_change_nothing() -> None:
    with pytest.raises(LockNotOwned):
        Parcel.objects.fenced(Lock(NAME)).update(state="sent")
    with Lock(NAME) as lock:
        for method in ("update", "delete"):  # Django's own refusals
            with pytest.raises(TypeError, match=r"slice|limit"):
                getattr(Parcel.objects.fenced(lock)[:2], method)()
        with pytest.raises(TypeError, match=r"fenced_tests.Unfenced must have one FenceField .* has 0"):
            Unfenced.objects.fenced(lock)
        assert states() == ["new"] * 4
        assert Parcel.objects.distinct().fenced(lock).update(state="sent") == 4


def test_a_fence_may_have_a_name_of_its_own_and_is_never_null() -> None:
    assert FenceField("the last one").verbose_name == FenceField(verbose_name="the last one").verbose_name
    assert FenceField().verbose_name == "fence"
    with pytest.raises(ValueError, match="cannot be null"):
        FenceField(null=True)
