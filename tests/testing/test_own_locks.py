"""Each test has its own locks, and nothing of them is left afterwards."""

from __future__ import annotations

import asyncio
import threading
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockLost,
    LockPool,
    LockUnavailable,
    get_lock,
    list_locks,
    lock_lost,
)
from django_redislock.testing import OwnLocksMixin, hold, own_locks, reset
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.state import NAME, count
from tests.helpers.ways import DJANGO
from tests.inside import command, leases, settings, waiting

Eventually = Callable[..., Any]
MakeOther = Callable[[], Other]


def prefix() -> str:
    return str(settings()["KEY_PREFIX"])


def leave_all_kinds() -> None:
    """What a careless test leaves behind."""
    Lock(NAME).acquire()
    LockPool("accounts").extend(["alice", "bob"])
    LockPool("accounts").acquire()
    Counter("visits").incr()
    ConditionalValue("record").setgt(7)


def assert_nothing_is_there() -> None:
    assert list_locks() == []
    assert LockPool("accounts").keys() == []
    assert (Counter("visits").get(), ConditionalValue("record").get()) == (0, None)
    with Lock(NAME, blocking_timeout=0):  # this thread does not wait for itself
        pass


def test_inside_are_other_locks_than_outside_and_in_each_block_others(
    client: redis.Redis, eventually: Eventually
) -> None:
    Lock(NAME).acquire()
    keys = sorted(command("KEYS", "*"))
    connections = len(client.client_list())
    for _ in range(3):
        with own_locks():
            assert_nothing_is_there()
            leave_all_kinds()
        assert [lock.name for lock in list_locks()] == [NAME]
        assert sorted(command("KEYS", "*")) == keys
    assert len(leases()) == 1
    eventually(lambda: len(client.client_list()) <= connections + 2)


def test_nothing_is_asked_where_nothing_was_locked(client: redis.Redis) -> None:
    before = count(client, "scan")
    with own_locks():
        pass
    assert count(client, "scan") == before


@pytest.mark.complete
def test_only_keys_of_the_block_are_deleted(settings: Any) -> None:
    """The pattern of SCAN takes the prefix literally, and however many keys there are."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": r"a*[b]?\c"}}
    command("SET", r"aXb?\c:other", "1")
    Counter("outside").incr()
    with own_locks():
        LockPool("many").extend(map(str, range(10)))
        for number in range(1200):
            Counter(str(number)).incr()
    assert rb"aXb?\c:other" in command("KEYS", "*")
    assert not [key for key in command("KEYS", "*") if b"-test-" in key]
    assert Counter("outside").get() == 1


def test_a_change_of_the_settings_leads_nobody_out(settings: Any) -> None:
    outside = prefix()
    with own_locks():
        inside = prefix()
        with override_settings(REDISLOCK={"TTL": 7, "KEY_PREFIX": "site"}):
            assert (inside, 7) == (prefix(), Lock(NAME).ttl)
        settings.REDISLOCK = {"TTL": 8}
        assert (inside, 8) == (prefix(), Lock(NAME).ttl)
    assert prefix() == outside != inside


def test_what_is_held_on_an_alias_that_a_test_has_replaced_ends_as_well(settings: Any) -> None:
    with own_locks():
        Lock(NAME).acquire()
        settings.CACHES = {**settings.CACHES}
    assert leases() == []


@pytest.mark.parametrize("worker", ["gw0", "gw7", None])
def test_the_prefix_names_the_worker_of_xdist(worker: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    with own_locks():
        assert prefix().startswith(f"redislock-test-{worker or 'main'}-")


def test_locks_that_are_left_are_told_of_no_loss(eventually: Eventually) -> None:
    told: list[int] = []
    errors: list[LockLost] = []
    receiver = lambda **facts: told.append(facts["fence"])  # noqa: E731
    lock_lost.connect(receiver)
    with own_locks():
        lock = Lock(NAME, ttl=0.5, on_lost=errors.append)
        lock.acquire()
        fence, ends = lock.fence, lock.remaining()
    again = Lock(NAME, ttl=max(0.01, 2 * ends), auto_renew=False)
    again.acquire()
    later = again.fence
    eventually(lambda: later in told)  # this one is told, later than the other would have been
    assert fence not in told
    assert errors == []
    assert not lock.lost
    lock_lost.disconnect(receiver)


def test_coroutines_have_them_too() -> None:
    async def use() -> None:
        async with Lock(NAME):
            assert not await Lock("other").alocked()
        await Lock("left").aacquire()

    for _ in range(2):
        with own_locks():
            asyncio.run(use())
    assert leases() == []


def test_a_thread_that_still_waits_takes_nothing_of_the_next_test(other: MakeOther, eventually: Eventually) -> None:
    stray = other()
    with own_locks():
        Lock(NAME).acquire()
        got = stray.start(lambda: Lock(NAME, blocking_timeout=GENEROUS).acquire())
        eventually(lambda: (info := get_lock(NAME)) and info.waiters)
    with own_locks():
        assert got.result(GENEROUS), "it is told, and gets the lock that it waited for"
        assert list_locks() == []


def test_a_redis_that_has_gone_meanwhile_is_no_error_of_the_test(request: pytest.FixtureRequest, where: str) -> None:
    """In memory mode, which has no server that could go, nothing is left either."""
    own = request.getfixturevalue("own") if where == "redis" else None
    with own_locks():
        Lock(NAME).acquire()
        if own is not None:
            own.stop()
    assert leases() == []


# -- reset -------------------------------------------------------------------------------------------------------------


def test_reset_ends_all_in_the_midst_of_a_test() -> None:
    with own_locks():
        leave_all_kinds()
        with hold("by somebody else"):
            reset()
            assert_nothing_is_there()


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_reset_wakes_those_who_wait(other: MakeOther, eventually: Eventually) -> None:
    with own_locks():
        Lock(NAME, ttl=600).acquire()
        got = other().start(lambda: Lock(NAME).acquire())
        eventually(lambda: (info := get_lock(NAME)) and info.waiters and waiting())
        reset()
        assert got.result(GENEROUS)


def test_reset_leaves_the_locks_of_a_site_alone() -> None:
    Lock(NAME).acquire()
    with pytest.raises(RuntimeError, match=r"^Cannot reset the locks of a site, only those of a test: use "):
        reset()
    assert Lock(NAME).locked()


# -- test cases --------------------------------------------------------------------------------------------------------


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


def test_threads_of_a_test_have_its_locks() -> None:
    """Those of a live server, say."""
    prefixes: list[str] = []
    with own_locks():
        thread = threading.Thread(target=lambda: prefixes.append(prefix()))
        thread.start()
        thread.join(GENEROUS)
        assert prefixes == [prefix()]


def test_a_redis_user_who_may_not_find_what_is_left_is_told_so(own: RedisServer, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": own.url}}  # in memory mode, there are no users
    with own.client() as client:
        client.acl_setuser("default", enabled=True, commands=["-scan"])
    with pytest.raises(LockUnavailable, match="scan"), own_locks():
        Lock(NAME).acquire()
