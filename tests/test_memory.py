"""The memory mode: an alias on LocMemCache or DummyCache gets an in-process server that runs the same scripts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock import (
    FairLock,
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockStatus,
    force_release,
    get_lock,
    list_locks,
)

from .actors import GENEROUS, NAME, TOKEN, Other
from .processes import Worker

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Settings = Any

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
DUMMY = "django.core.cache.backends.dummy.DummyCache"


@pytest.fixture(autouse=True, params=[LOCMEM, DUMMY], ids=["LocMemCache", "DummyCache"])
def _memory(request: pytest.FixtureRequest, settings: Settings) -> None:
    """The default alias, and another one, have no Redis."""
    settings.CACHES = {"default": {"BACKEND": request.param}, "second": {"BACKEND": request.param}}


@pytest.fixture(params=[Lock, FairLock])
def kind(request: pytest.FixtureRequest) -> type[Lock]:
    return request.param  # type: ignore[no-any-return]


def waiters(name: str = NAME) -> int:
    info = get_lock(name)
    return 0 if info is None else info.waiters


# -- the same behaviour ------------------------------------------------------------------------------------------------


def test_a_lock_excludes_others_and_is_free_afterwards(kind: type[Lock], other: Callable[[], Other]) -> None:
    thread = other()
    with kind(NAME) as lock:
        assert (lock.locked(), lock.owned()) == (True, True)
        assert not thread(lambda: kind(NAME, blocking=False).acquire())
        assert not thread(lambda: kind(NAME, blocking_timeout=0.05).acquire())
        assert waiters() == 0
        with pytest.raises(LockError, match="would wait for itself"):
            kind(NAME).acquire()
    assert not lock.locked()
    assert thread(lambda: kind(NAME, blocking=False).acquire())


def test_a_waiter_is_woken_by_the_release(kind: type[Lock], other: Callable[[], Other], eventually: Eventually) -> None:
    lock = kind(NAME, ttl=300)
    lock.acquire()
    fence = lock.fence
    waiter, thread = kind(NAME), other()
    waiting = thread.start(waiter.acquire)
    eventually(lambda: waiters() == 1)
    begin = monotonic()
    lock.release()
    assert waiting.result(GENEROUS) is True
    assert monotonic() - begin < 4  # by a message; its own look would come after 5 s
    assert thread(lambda: waiter.fence) > fence  # type: ignore[operator]
    assert thread(waiter.owned)
    thread(waiter.release)
    assert not waiter.locked()


def test_threads_get_a_fair_lock_in_order(other: Callable[[], Other], eventually: Eventually) -> None:
    order: list[int] = []

    def section(number: int) -> None:
        with FairLock(NAME, blocking_timeout=GENEROUS):
            order.append(number)

    waiting = []
    with FairLock(NAME):
        for number in range(8):
            waiting.append(other().start(lambda number=number: section(number)))  # type: ignore[misc]
            eventually(lambda number=number: waiters() == number + 1)
    for future in waiting:
        future.result(GENEROUS)
    assert order == list(range(8))


def test_threads_exclude_each_other(kind: type[Lock], other: Callable[[], Other]) -> None:
    inside: list[int] = []
    worst: list[int] = []

    def sections() -> None:
        for _ in range(10):
            with kind(NAME):
                inside.append(1)
                worst.append(len(inside))
                threading.Event().wait(0.0005)  # let others run
                inside.pop()

    for future in [other().start(sections) for _ in range(6)]:
        future.result(GENEROUS)
    assert worst == [1] * 60


def test_a_lock_that_is_not_renewed_expires_and_its_holder_is_told(kind: type[Lock], eventually: Eventually) -> None:
    losses: list[LockLost] = []
    lock = kind(NAME, ttl=0.3, auto_renew=False, on_lost=losses.append)
    lock.acquire()
    eventually(lambda: losses)
    eventually(lambda: not lock.locked())
    with pytest.raises(LockLost):
        lock.release()


def test_renewal_keeps_a_lock(eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=0.9)
    begin = monotonic()
    lock.acquire()
    eventually(lambda: monotonic() - begin > 1.3)
    assert lock.owned()
    lock.release()


def test_extend_moves_the_end_of_the_lease() -> None:
    lock = Lock(NAME, ttl=100)
    lock.acquire()
    lock.extend(50)
    info = lock.info()
    assert info is not None
    assert 150 - GENEROUS < info.lease_left <= 150
    assert 150 - GENEROUS < lock.remaining() <= 150


def test_a_holder_hears_that_it_was_force_released(
    kind: type[Lock], eventually: Eventually, listens: Callable[[Lock], None]
) -> None:
    losses: list[LockLost] = []
    lock = kind(NAME, ttl=300, on_lost=losses.append)
    lock.acquire()
    listens(lock)
    released = force_release(NAME)
    assert released is not None
    assert released.fence == lock.fence
    assert get_lock(NAME) is None
    eventually(lambda: losses)
    assert losses[0].reason == "it was released by force"
    with pytest.raises(LockLost):
        lock.release()


def test_locks_are_listed_and_inspected(kind: type[Lock]) -> None:
    first, second = kind("order:1"), kind("seat:1")
    first.acquire()
    second.acquire()
    assert [(lock.name, lock.fence) for lock in list_locks()] == [("order:1", first.fence), ("seat:1", second.fence)]
    assert [lock.name for lock in list_locks("order:*")] == ["order:1"]
    first.release()
    assert [lock.name for lock in list_locks()] == ["seat:1"]


def test_a_lock_can_be_detached_and_adopted(kind: type[Lock], other: Callable[[], Other]) -> None:
    lock = kind(NAME)
    lock.acquire(token=TOKEN)
    assert lock.detach() == TOKEN
    with pytest.raises(LockNotOwned):
        lock.release()
    thread, adopter = other(), kind(NAME, token=TOKEN)
    assert thread(adopter.acquire)
    assert thread(adopter.owned)
    thread(adopter.release)
    assert not lock.locked()


def test_a_lock_can_be_seized(kind: type[Lock], other: Callable[[], Other]) -> None:
    thread, old, lock = other(), kind(NAME, note="two\nlines"), kind(NAME)
    thread(old.acquire)
    info = lock.info()
    assert info is not None
    assert info.note == "two\nlines"
    lock.seize()
    assert lock.status() is LockStatus.LOCKED
    assert thread(old.status) is LockStatus.UNAVAILABLE
    lock.release()
    assert lock.status() is LockStatus.FREE


def test_reentrance_and_errors_are_those_of_a_real_redis(kind: type[Lock], other: Callable[[], Other]) -> None:
    lock = kind(NAME, reentrant=True)

    def enter() -> None:
        with kind(NAME, blocking=False):
            raise AssertionError("not reached")

    with lock, lock, pytest.raises(LockNotAcquired):
        other()(enter)
    assert not lock.locked()
    with pytest.raises(LockNotOwned):
        lock.release()


# -- its server --------------------------------------------------------------------------------------------------------


def test_each_alias_has_a_server_of_its_own(kind: type[Lock]) -> None:
    lock = kind(NAME)
    lock.acquire()
    assert kind(NAME, using="default").locked()
    assert not kind(NAME, using="second").locked()
    assert kind(NAME, using="second", blocking=False).acquire()
    lock.release()
    assert not lock.locked()
    assert kind(NAME, using="second").locked()


def test_the_alias_comes_from_the_settings(settings: Settings) -> None:
    settings.REDISLOCK = {"CACHE": "second"}
    Lock(NAME).acquire()
    assert Lock(NAME, using="second").locked()
    assert not Lock(NAME, using="default").locked()


def test_new_caches_start_with_a_fresh_server(settings: Settings) -> None:
    lock = Lock(NAME)
    lock.acquire()
    assert lock.locked()
    settings.CACHES = {**settings.CACHES}
    assert not Lock(NAME).locked()


FORKED = """
from django.test import override_settings
with override_settings(CACHES={"default": {"BACKEND": backend}}):
    lock = Lock(name)
    lock.acquire()
    # its threads run at the time of the fork
    waiting = threading.Thread(target=lambda: Lock(name, blocking_timeout=60).acquire(), daemon=True)
    waiting.start()
    while lock.info().waiters == 0:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        say("child", Lock(name).locked(), lock.token, lock.lost, lock.remaining())
        mine = FairLock(name)
        mine.acquire()
        next = threading.Thread(target=lambda: FairLock(name).acquire(), daemon=True)
        next.start()
        while mine.info().waiters == 0:
            time.sleep(0.001)
        mine.release()
        next.join(30)
        say("woken", next.is_alive(), mine.info().fence > 0)
        os._exit(0)
    os.waitpid(child, 0)
    say("parent", lock.owned(), lock.info().waiters)
    lock.release()
    waiting.join(30)
    say("next", waiting.is_alive())
"""


def test_a_fork_starts_a_fresh_server_and_leaves_the_parent_alone(start: Start, settings: Settings) -> None:
    worker = start(FORKED, name=NAME, backend=settings.CACHES["default"]["BACKEND"])
    assert worker.expect("child") == ["False", "None", "False", "0.0"]
    assert worker.expect("woken") == ["False", "True"]
    assert worker.expect("parent") == ["True", "1"]
    assert worker.expect("next") == ["False"]


def test_without_fakeredis_the_error_says_what_to_install(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CACHES = {**settings.CACHES}
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ImproperlyConfigured, match=r"'default'.*pip install \"django-redislock\[memory\]\""):
        Lock(NAME).acquire()
