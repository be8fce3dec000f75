"""What a site's tests use: own locks, locks that others hold, that are lost or overtaken, and a Redis that is away."""
# mypy: disable-error-code="misc"

import asyncio
import unittest
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.db import OperationalError, ProgrammingError, connections, models, transaction
from django.test import override_settings

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockSet,
    LockStatus,
    LockUnavailable,
    Semaphore,
    force_release,
    get_lock,
    list_locks,
    locked_atomic,
)
from django_redislock.fencing import FencedManager, FenceField
from django_redislock.models import Fence
from django_redislock.testing import (
    OwnLocksMixin,
    assert_locked,
    assert_not_locked,
    hold,
    lose,
    overtaken,
    own_locks,
    redis_away,
    reset,
)
from tests.helpers.actors import GENEROUS, Crowd, Other, until
from tests.helpers.databases import Account, with_fences
from tests.helpers.docs import blocks, page
from tests.helpers.forks import in_child
from tests.helpers.state import NAME, count
from tests.helpers.ways import DJANGO
from tests.inside import command, keeps_connection_to_renew, leases, settings, waiting

Others = Callable[[], Other]


def prefix() -> str:
    return str(settings()["KEY_PREFIX"])


def leave_all_kinds() -> None:
    """What a careless test leaves behind."""
    Lock(NAME).acquire()
    LockPool("accounts").extend(["alice", "bob"])
    LockPool("accounts").acquire()
    Counter("visits").incr()
    ConditionalValue("record").setgt(7)
    asyncio.run(Lock("of a coroutine").aacquire())


def assert_nothing_is_there() -> None:
    assert list_locks() == []
    assert LockPool("accounts").keys() == []
    assert (Counter("visits").get(), ConditionalValue("record").get()) == (0, None)
    with Lock(NAME, blocking_timeout=0):  # this thread does not wait for itself
        pass


def test_inside_are_other_locks_than_outside_and_in_each_block_others(client: redis.Redis) -> None:
    before = count(client, "scan")
    Lock(NAME).acquire()
    keys = sorted(command("KEYS", "*"))
    connections = len(client.client_list())
    with own_locks():
        pass
    assert count(client, "scan") == before  # nothing is asked where nothing was locked
    for _ in range(3):
        with own_locks():
            assert_nothing_is_there()
            leave_all_kinds()
        assert [lock.name for lock in list_locks()] == [NAME]
        assert sorted(command("KEYS", "*")) == keys
    assert len(leases()) == 1
    until(lambda: len(client.client_list()) <= connections + 2)


@pytest.mark.complete
def test_only_keys_of_the_block_are_deleted(settings: Any) -> None:
    """The pattern of SCAN takes the prefix literally, and however many keys there are."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": r"a*[b]?\c"}}
    command("SET", r"aXb?\c:other", "1")
    with own_locks():
        LockPool("many").extend(map(str, range(10)))
        for number in range(1200):
            Counter(str(number)).incr()
    assert command("KEYS", "*") == [rb"aXb?\c:other"]


def test_neither_a_thread_nor_a_fork_nor_a_change_of_the_settings_leads_out(settings: Any, other: Others) -> None:
    outside = prefix()
    with own_locks():
        inside = prefix()
        with override_settings(REDISLOCK={"TTL": 7, "KEY_PREFIX": "site"}):
            assert (inside, 7) == (prefix(), Lock(NAME).ttl)
        seen = other()(prefix)  # in a thread of a live server, say
        in_child(lambda: prefix() == inside)
        Lock(NAME).acquire()
        settings.CACHES = {**settings.CACHES}
    assert leases() == []
    assert prefix() == outside != inside == seen


def test_what_is_left_where_an_alias_has_led_before_is_deleted_as_well(settings: Any, client: redis.Redis) -> None:
    with own_locks():
        leave_all_kinds()
        settings.CACHES = {**settings.CACHES}
        Counter("visits").incr()
        settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "other"}}
    assert client.keys() == []


def test_what_is_held_from_outside_is_held_inside() -> None:
    """By a fixture of the session, say."""
    caches: Any = cache
    with Lock(NAME) as lock, Semaphore("rooms", limit=1) as permit, LockSet("a", "b") as both, caches.lock("c") as old:
        with own_locks():
            assert [each.owned() for each in (lock, permit, both, old)] == [True] * 4
            assert [each.locked() for each in (lock, permit, old)] == [True] * 3
            assert [each.status() for each in (lock, permit)] == [LockStatus.LOCKED] * 2
            for name in (NAME, "c"):
                assert not Lock(name).locked()
        assert both.owned()
    with pytest.raises(LockLost), Lock(NAME) as lock, own_locks():
        lose(lock)


def test_a_redis_that_has_gone_is_no_error_but_one_that_does_not_say_what_is_left(own: Any, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": own.url}}
    with own.client() as client:
        client.acl_setuser("default", enabled=True, commands=["-scan"])
    with pytest.raises(LockUnavailable, match="scan"), own_locks():
        Lock(NAME).acquire()
    with own_locks():
        Lock(NAME).acquire()
        own.stop()
    assert leases() == []


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_reset_ends_all_in_the_midst_of_a_test_and_wakes_those_who_wait(other: Others, caplog: Any) -> None:
    with own_locks():
        leave_all_kinds()
        with hold("by somebody else"):
            reset()
            reset()  # nothing is left
            assert_nothing_is_there()
        for _ in range(2):
            Lock(NAME, ttl=600).acquire()
            got = other().start(lambda: Lock(NAME).acquire())
            until(lambda: (info := get_lock(NAME)) and info.waiters and waiting())
            reset()
            assert got.result(GENEROUS)
            reset()
    assert "listener-disconnected" not in caplog.text  # Redis was never away
    with pytest.raises(RuntimeError, match=r"^Cannot reset the locks of a site, only those of a test: use "):
        reset()


def test_the_mixin_covers_set_up_and_clean_up() -> None:
    seen: list[str] = []

    class Case(OwnLocksMixin, unittest.TestCase):
        def setUp(self) -> None:  # and calls no super()
            assert_nothing_is_there()
            leave_all_kinds()
            seen.append(prefix())
            self.addCleanup(lambda: seen.append(prefix()))

        def test_one(self) -> None:
            assert Lock(NAME).locked()

        test_two = test_one

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert not Lock(NAME).locked()


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_what_somebody_else_holds_is_busy_until_the_block_ends(me: Any, queue: Any, heard: list[Any]) -> None:
    with hold("waited-for"):
        got = queue(Lock("waited-for", blocking_timeout=GENEROUS), me)
        assert not got.done()
    assert got.result(GENEROUS)
    heard.clear()
    with hold(NAME):
        assert heard == []  # it is nothing that this process has done
        assert not me(Lock(NAME), "acquire", blocking=False)
        assert not me(Lock(NAME, reentrant=True), "acquire", blocking_timeout=0.05)
        with pytest.raises(LockNotOwned):
            me(Lock(NAME), "release")
        assert get_lock(NAME).owner == "another-host:1:MainThread"  # type: ignore[union-attr]
        assert force_release(NAME)
        mine = Lock(NAME)
        assert me(mine, "acquire", blocking=False)
    assert me(mine, "owned")  # it is not taken away in the end
    pool = LockPool("accounts")
    me(pool, "extend", ["alice", "bob"])
    with hold("pool:accounts:alice"):
        assert me(pool, "acquire", blocking_timeout=0).key == "bob"


def test_what_cannot_be_held_or_lost_is_an_error() -> None:
    text = rf"^Could not hold the lock '{NAME}' as somebody else: it is not free\.$"
    with hold(NAME), pytest.raises(LockNotAcquired, match=text), hold(NAME):
        pytest.fail("two hold it")
    assert not Lock(NAME).locked()
    for name, message in ((NAME, "ttl"), ("", "must not be empty")):
        with pytest.raises(ValueError, match=message), hold(name, ttl=0 if name else 60):
            pytest.fail("it is held")
    Lock("mine").acquire()
    with hold(NAME):
        for name in (NAME, "free"):
            text = rf"^Cannot lose the lock '{name}': nobody in this process holds it\.$"
            with pytest.raises(LockNotOwned, match=text):
                lose(name)
        assert_locked(NAME)
    for helper in (hold, overtaken):
        with pytest.raises(TypeError, match="name must be a str, not <Lock 'a'>"), helper(Lock("a")):  # type: ignore[arg-type]
            pytest.fail("it is held")
        with pytest.raises(ValueError, match="semaphore"), helper("semaphore:x"):
            pytest.fail("it is held")
    with pytest.raises(TypeError, match=r"^lose\(\) takes a lock or its name, not <LockSet .* one of its names\.$"):
        lose(LockSet("a", "b"))  # type: ignore[arg-type]


async def test_all_of_it_can_be_used_in_a_coroutine() -> None:
    async def work() -> None:
        async with Lock(NAME, on_lost="cancel") as lock:
            lose(lock)
            await asyncio.sleep(GENEROUS)

    with hold(NAME):
        assert_locked(NAME)
        assert not await Lock(NAME).aacquire(blocking=False)
    assert_not_locked(NAME)
    lock = Lock(NAME)
    await lock.aacquire()
    lose(lock)
    assert lock.lost
    with redis_away(), pytest.raises(LockUnavailable):
        await lock.aacquire()
    with pytest.raises(LockLost):  # and its task is cancelled
        await work()


def test_a_lock_that_is_lost_is_lost_at_once(crowd: Crowd) -> None:
    told: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, on_lost=told.append)
    me(lock, "acquire")
    lose(lock)
    assert me.read(lambda: lock.lost)
    assert_not_locked(NAME)
    with pytest.raises(LockLost, match="it was force-released"):
        me(lock, "release")
    until(lambda: [error.name for error in told] == [NAME])
    drop_in: Any = cache.lock(NAME)  # type: ignore[attr-defined]
    assert drop_in.acquire()
    lose(drop_in)
    assert not drop_in.owned()
    assert Lock(NAME).acquire()
    lose(NAME)
    assert_not_locked(NAME)


def test_of_a_semaphore_the_permit_of_this_object_is_lost() -> None:
    with Semaphore("export", limit=3) as other:
        mine = Semaphore("export", limit=3)
        assert mine.acquire()
        lose(mine)
        assert (mine.lost, other.lost) == (True, False)


def test_while_redis_is_away_whoever_asks_or_releases_gets_an_error(me: Any, queue: Any) -> None:
    """Also over connections that stand, and at once: RETRY_FOR is not waited for."""
    before = Lock("before")
    me(before, "acquire")
    with redis_away():
        with pytest.raises(LockUnavailable, match="it stays locked for"):
            me(before, "release")
        with pytest.raises(LockUnavailable, match=r"out of reach inside django_redislock\.testing\.redis_away\(\)$"):
            me(Lock(NAME), "acquire")
    assert me(Lock(NAME), "acquire", blocking=False)
    assert_locked("before")
    me(before, "release")
    assert_not_locked("before")
    with hold("waited-for"):  # whoever waits gets it in the end
        waiting = queue(Lock("waited-for", blocking_timeout=GENEROUS), me)
        with redis_away():
            sleep(0.2)
        assert not waiting.done()
    assert waiting.result(GENEROUS)


@pytest.mark.complete
def test_a_held_lock_is_not_renewed_and_lost_in_the_end(crowd: Crowd, where: str) -> None:
    me, lock = crowd(), Lock(NAME, ttl=4)
    me(lock, "acquire")
    ends = get_lock(NAME).expires  # type: ignore[union-attr]
    # it has been renewed before, over a connection that is kept
    until(lambda: get_lock(NAME).expires > ends)  # type: ignore[union-attr]
    until(lambda: where == "memory" or keeps_connection_to_renew())
    with redis_away():
        until(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost, match="its lease ended before it could be renewed"):
        me.read(lock.check)


def test_assertions_hold_or_say_what_there_is() -> None:
    with pytest.raises(AssertionError, match=r"held: none\.$"):
        assert_locked("c")
    Lock("a").acquire()
    Lock("b").acquire()
    assert_locked("a")
    assert_not_locked("c")
    with pytest.raises(AssertionError, match=r"^Nobody holds the lock 'c'\. The locks that are held: 'a', 'b'\.$"):
        assert_locked("c")
    with pytest.raises(AssertionError, match=r"^The lock 'a' is held by \S+ for [\d.]+ s more\.$"):
        assert_not_locked("a")
    with hold("d"), pytest.raises(AssertionError, match=r" for 3[56]\d\d\.\d+ s more\.$"):  # not for 3.6e+03 s
        assert_not_locked("d")
    for name in "ab":
        force_release(name)
    Lock("a").suspend(60)
    with pytest.raises(
        AssertionError, match=r"^Nobody holds the lock 'a', which is suspended\. The locks that are held: none\.$"
    ):
        assert_locked("a")


class Parcel(models.Model):  # noqa: DJ008
    state = models.CharField(max_length=10, default="new")
    fence = FenceField()
    objects = FencedManager()

    class Meta:
        app_label = "overtaken_tests"


@pytest.fixture
def parcels(account: Account) -> Iterator[None]:
    with with_fences("default"), connections["default"].schema_editor() as editor:
        editor.create_model(Parcel)
    yield
    with connections["default"].schema_editor() as editor:
        editor.delete_model(Parcel)


@pytest.fixture(params=[False, True], ids=["alone", "in a TestCase"])
def anywhere(request: pytest.FixtureRequest, parcels: None) -> None:
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
        with overtaken(NAME), pytest.raises(LockLost, match="was refused by the database"):
            function()
        assert (account.balance, get_lock(NAME)) == (0, None)
    book()
    assert account.balance == 1
    (example,) = (block for block in blocks(page("testing")) if "overtaken" in block)
    values: dict[str, Any] = {"transfer": locked_atomic("account:7", fenced=True)(account.book)}
    exec(example, values)
    values["test_late"]()
    assert account.balance == 1


@pytest.mark.usefixtures("anywhere")
def test_rows_with_a_fence_are_those_of_the_younger_holder() -> None:
    parcel = Parcel.objects.create()
    refused = pytest.raises(LockLost, match="a younger holder has changed 1 of the rows")
    with overtaken(NAME, rows=Parcel.objects.all()), refused, Lock(NAME) as lock, Lock("another") as other:
        assert other.owned()  # the locks of others are left alone
        Parcel.objects.fenced(lock).update(state="sent")
    parcel.refresh_from_db()
    assert parcel.state == "new"


@pytest.mark.usefixtures("parcels")
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
