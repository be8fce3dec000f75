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
    LockPool,
    LockUnavailable,
    get_lock,
    list_locks,
)
from django_redislock.testing import OwnLocksMixin, hold, own_locks, reset
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.state import NAME, count
from tests.helpers.ways import DJANGO
from tests.inside import command, leases, settings, waiting

Eventually = Callable[..., Any]


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


def test_inside_are_other_locks_than_outside_and_in_each_block_others(
    client: redis.Redis, eventually: Eventually
) -> None:
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
    eventually(lambda: len(client.client_list()) <= connections + 2)


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


def test_neither_a_thread_nor_a_change_of_the_settings_leads_out(settings: Any) -> None:
    outside, seen = prefix(), list[str]()
    with own_locks():
        inside = prefix()
        with override_settings(REDISLOCK={"TTL": 7, "KEY_PREFIX": "site"}):
            assert (inside, 7) == (prefix(), Lock(NAME).ttl)
        thread = threading.Thread(target=lambda: seen.append(prefix()))  # of a live server, say
        thread.start()
        thread.join(GENEROUS)
        Lock(NAME).acquire()
        settings.CACHES = {**settings.CACHES}
    assert leases() == []
    assert prefix() == outside != inside == seen[0]


def test_a_redis_that_has_gone_is_no_error_of_the_test_but_one_that_refuses_to_find_what_is_left(
    own: RedisServer, settings: Any
) -> None:
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
def test_reset_ends_all_in_the_midst_of_a_test_and_wakes_those_who_wait(
    other: Callable[[], Other], eventually: Eventually
) -> None:
    with own_locks():
        leave_all_kinds()
        with hold("by somebody else"):
            reset()
            reset()  # nothing is left
            assert_nothing_is_there()
        Lock(NAME, ttl=600).acquire()
        got = other().start(lambda: Lock(NAME).acquire())
        eventually(lambda: (info := get_lock(NAME)) and info.waiters and waiting())
        reset()
        assert got.result(GENEROUS)
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
