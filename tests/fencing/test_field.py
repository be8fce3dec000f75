"""A fence in the rows of the site, for work that changes them in several transactions."""
# mypy: disable-error-code="misc"

import operator
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connections, models, transaction
from django.db.models import Q
from django.template import Context, Engine

from django_redislock import Lock, LockLost, LockNotOwned, LockPool, LockUnavailable, Semaphore
from django_redislock.fencing import FencedManager, FencedQuerySet, FenceField
from django_redislock.models import Fence
from tests.fencing.conftest import UNAWARE, everywhere
from tests.helpers.actors import GENEROUS, Crowd, Other, until
from tests.helpers.databases import Account, one_database
from tests.helpers.proxy import Proxy
from tests.helpers.site import Gate
from tests.helpers.state import NAME
from tests.inside import own_process

Late = Callable[..., Future[Any]]


class Parcel(models.Model):  # noqa: DJ008
    state = models.CharField(max_length=10, default="new")
    within = models.ForeignKey("self", models.CASCADE, null=True)
    fence = FenceField()
    objects = FencedManager()

    class Meta:
        app_label = "fencing"


class Crate(Parcel):  # noqa: DJ008
    objects = FencedManager()

    class Meta:
        app_label = "fencing"


READS_A_REPLICA = Mock(spec=["db_for_read"], **{"db_for_read.return_value": "replica"})

# how to ask whether somebody waits for a row
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT variable_value + 0 FROM information_schema.global_status"
    " WHERE variable_name = 'Innodb_row_lock_current_waits'",
    "sqlite": "SELECT 1",  # no reader can tell
}


@pytest.fixture(autouse=True)
def _tables(account: Account, settings: Any) -> Iterator[None]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.fencing"]  # else delete() knows of no relations
    with connections["default"].schema_editor() as editor:
        editor.create_model(Parcel)
        editor.create_model(Crate)
    Parcel.objects.bulk_create([Parcel() for _ in range(4)])
    yield
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Crate)
        editor.delete_model(Parcel)


@pytest.fixture
def late(forget: Callable[[], object], other: Callable[[], Other]) -> Iterator[Late]:
    """Somebody who writes under a lock of his own that Redis has forgotten, which he does not know."""
    thread, lock = other(), Lock(NAME, **UNAWARE)
    assert thread(lock.acquire)
    forget()
    yield lambda write: thread.start(lambda: write(lock))
    thread(connections.close_all)


def one() -> Any:
    """The first row."""
    return Parcel.objects.filter(pk=Parcel.objects.order_by("pk")[:1].get().pk)


def states() -> list[str]:
    return list(Parcel.objects.order_by("pk").values_list("state", flat=True))


def test_rows_are_changed_with_the_fence_of_the_lock(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_redislock"]  # not needed here
    with Lock(NAME) as lock:
        rows = Parcel.objects.filter(state="new").fenced(lock)
        assert (rows.update(state="sent"), rows.update(state="lost")) == (4, 0)  # it is read again
        assert {*Parcel.objects.values_list("fence", flat=True)} == {lock.fence}
        assert Parcel.objects.distinct().filter(pk__in=one()).fenced(lock).update(state="back") == 1
        assert states() == ["back", "sent", "sent", "sent"]
        assert [one().fenced(lock).delete()[0] for _ in range(2)] == [1, 1]
    with Lock(NAME) as lock:
        parcels = Parcel.objects.all()
        assert Parcel.objects.exclude(pk=parcels[0].pk).fenced(lock).update(state="sent") == 1
        assert list(Parcel.objects.values_list("fence", flat=True).filter(fence=lock.fence)) == [lock.fence]
        parcel = Parcel(pk=parcels[1].pk, state="plain")
        parcel.save()  # looks at no fence, and leaves that of the row
        parcel.refresh_from_db()
        assert (parcel.state, parcel.fence) == ("plain", lock.fence)
    assert Parcel.objects.update(state="plain") == 2  # under no lock


def test_coroutines_change_rows_too_and_templates_do_not() -> None:
    async def change() -> tuple[int, int]:
        async with Lock(NAME) as lock:
            rows = Parcel.objects.fenced(lock)
            return await rows.aupdate(state="sent"), (await rows.adelete())[0]

    with Lock(NAME) as lock:
        context = {"rows": Parcel.objects.fenced(lock)}
        assert Engine().from_string("{{ rows.delete }}{{ rows.update }}").render(Context(context)) == ""
    assert async_to_sync(change)() == (4, 4)


@pytest.mark.parametrize("values", [{"state": "lost"}, {}], ids=["update", "delete"])
def test_who_is_late_changes_nothing_even_with_a_replica(late: Late, values: Any, settings: Any, sqlite: Any) -> None:
    with Lock(NAME, blocking_timeout=0, **UNAWARE) as lock:
        assert one().fenced(lock).update(state="sent") == 1
    method = "update" if values else "delete"
    with one_database("replica", {**sqlite, "NAME": f"{sqlite['NAME']}.replica"}):  # in which nothing has arrived
        for settings.DATABASE_ROUTERS in ([], [READS_A_REPLICA]):
            with pytest.raises(LockLost, match=r"a younger holder has changed 1 of the rows. None was changed"):
                late(lambda lock: getattr(Parcel.objects.fenced(lock), method)(**values)).result(GENEROUS)
        settings.DATABASE_ROUTERS = []
    assert states() == ["sent", "new", "new", "new"]


def test_who_may_have_handed_the_lock_over_neither_claims_nor_writes(
    crowd: Crowd, network: Proxy, retry_for: Callable[[float], None]
) -> None:
    """Redis has done it, and the answer was lost: whoever has the token may be at work, with the same fence."""
    retry_for(0.1)
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    network.lose_answer("detach", times=1000)
    with pytest.raises(LockUnavailable):
        me(lock, "detach")
    uses: list[Callable[[], object]] = [
        lambda: me(lock, "claim"),
        lambda: me.read(lock.check),
        lambda: me.read(lambda: Parcel.objects.fenced(lock).update(state="lost")),
    ]
    for use in uses:
        with pytest.raises(LockNotOwned, match=r"detach\(\) has failed, and may have been carried out"):
            use()
    retry_for(GENEROUS)
    me(lock, "release")


def test_rows_that_are_ahead_of_redis_refuse_one_holder_and_not_the_next() -> None:
    with Lock(NAME) as lock:
        Parcel.objects.update(fence=lock.fence + 1_000_000_000)
        with pytest.raises(LockLost, match="a younger holder has changed 4 of the rows"):
            Parcel.objects.fenced(lock).update(state="sent")
    own_process().highest_fence(0)  # the next one is in another process, which has not seen that fence
    with Lock(NAME) as lock:
        assert Parcel.objects.fenced(lock).update(state="sent") == 4


@everywhere
@pytest.mark.parametrize(
    ("rows", "deletes"),
    [
        (lambda: Parcel.objects.all(), True),
        (lambda: Crate.objects.all(), False),
        (lambda: Parcel.objects.filter(Q(within__state="new") | Q(within=None)), False),
    ],
    ids=["delete", "update inherited", "update joined"],
)
def test_who_is_late_and_has_to_wait_changes_nothing(rows: Any, deletes: bool, late: Late) -> None:
    Crate.objects.create()

    def write(lock: Lock) -> object:
        mine = rows().fenced(lock)
        return mine.delete() if deletes else mine.update(state="lost")

    with Lock(NAME, **UNAWARE) as lock, transaction.atomic():
        assert (changed := rows().fenced(lock).update(state="sent"))
        writing = late(write)
        with connections["default"].cursor() as cursor:
            until(lambda: cursor.execute(WAITING[connections["default"].vendor]) and cursor.fetchone()[0])
    # at REPEATABLE READ and above, the database refuses by itself; on SQLite, nothing is read before it is one's turn
    sqlite = connections["default"].vendor == "sqlite"
    with pytest.raises(LockLost if sqlite else (LockLost, OperationalError)):
        writing.result(GENEROUS)
    assert states().count("sent") == changed


@everywhere
@pytest.mark.parametrize(
    "write",
    [
        lambda lock: Parcel.objects.fenced(lock).delete(),
        lambda lock: Parcel.objects.filter(Q(within__state="new") | Q(within=None)).fenced(lock).update(state="lost"),
    ],
    ids=["delete with what is within", "update joined"],
)
def test_a_younger_holder_counts_even_if_the_write_itself_would_hide_his_row(write: Any, late: Late) -> None:
    inner = Parcel.objects.create(within=one().get())
    with Lock(NAME, **UNAWARE) as lock:
        assert Parcel.objects.filter(pk=inner.pk).fenced(lock).update(state="sent") == 1
    with pytest.raises(LockLost, match=r"a younger holder has changed 1 of the rows. None was changed"):
        late(write).result(GENEROUS)
    assert states() == ["new", "new", "new", "new", "sent"]


@everywhere
def test_a_transaction_that_has_read_before_does_not_miss_a_younger_holder(late: Late) -> None:
    gate = Gate()

    @transaction.atomic
    def write(lock: Lock) -> None:
        list(Parcel.objects.all())
        gate()
        Parcel.objects.fenced(lock).update(state="lost")

    writing = late(write)
    assert gate.reached.wait(GENEROUS)
    with Lock(NAME, **UNAWARE) as lock:
        one().fenced(lock).update(state="sent")
    gate.go_on.set()
    with pytest.raises((LockLost, OperationalError)):
        writing.result(GENEROUS)
    assert states() == ["sent", "new", "new", "new"]


def test_wrong_uses_are_errors_that_change_nothing() -> None:
    for wrong in (None, "parcels", LockPool("parcels"), Lock, Semaphore("parcels", limit=2)):
        with pytest.raises(TypeError, match=r"^fenced\(\) takes a lock, not "):
            Parcel.objects.fenced(wrong)
    for name in ("create", "filter", "bulk_update"):
        with pytest.raises(AttributeError, match=rf"fenced\(lock\) has .*, not {name}: call it last"):
            getattr(Parcel.objects.fenced(Lock(NAME)), name)
    with pytest.raises(LockNotOwned):
        Parcel.objects.fenced(Lock(NAME)).update(state="sent")
    with Lock(NAME) as lock:
        with pytest.raises(TypeError, match=r"not a slice of it"):
            Parcel.objects.all()[:2].fenced(lock)
        for combine in (operator.or_, operator.and_, operator.xor):
            for sides in ((one(), one().fenced(lock)), (one().fenced(lock), one())):
                with pytest.raises((TypeError, AttributeError)):
                    combine(*sides)
        with pytest.raises(TypeError, match=r"Fence must have one FenceField .* has 0"):
            FencedQuerySet(Fence).fenced(lock)
    with pytest.raises(ValueError, match="cannot be null"):
        FenceField(null=True)
    assert FenceField("the last one").verbose_name == FenceField(verbose_name="the last one").verbose_name
    Parcel.objects.create(state="new").delete()
    assert states() == ["new"] * 4
