"""When a lease is renewed: also where its holder has moved the end, and where the thread that renews has died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import redis

from django_redislock import Lock
from django_redislock.base.steps import run
from django_redislock.engine.renewal.watchdog import Watchdog
from django_redislock.engine.runtime import runtime
from django_redislock.store import calls
from tests import inside
from tests.helpers.actors import Crowd
from tests.helpers.state import LOCK, NAME
from tests.inside import lease_of

Eventually = Callable[..., Any]


def test_an_end_that_is_set_near_at_once_is_looked_after_before_it_comes() -> None:
    lock = Lock(NAME, ttl=30)
    lock.acquire()
    lock.extend(0.09, replace_ttl=True)
    lease = lease_of(lock)
    assert lease.due < lease.ends


def test_a_renewed_lock_goes_on_from_an_end_that_is_set_near(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=30)
    me(lock, "acquire")
    me(lock, "extend", 1, replace_ttl=True)  # a thirtieth of the TTL
    eventually(lambda: client.pttl(LOCK) > 20_000)
    assert not me.read(lambda: lock.lost)


def test_a_renewal_that_comes_late_does_not_lengthen_what_was_detached(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    request = me.read(lambda: lease_of(lock).request)
    me(lock, "detach", 60)
    assert run(calls.renew(request, "keep", 600)).state == inside.HELD
    assert 0 < client.pttl(LOCK) <= 60_000


def test_a_watchdog_whose_thread_has_died_gets_another_one(client: redis.Redis, eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    lease = lease_of(lock)
    runtime().watchdog.unwatch(lease)
    watchdog = Watchdog(runtime().notifier, lambda partition: None)
    dead = watchdog._thread = threading.Thread()
    watchdog.watch(lease)
    assert watchdog._thread is not dead
    client.pexpire(LOCK, 60_000)
    watchdog.renew_all(lease.partition)
    eventually(lambda: client.pttl(LOCK) > 500_000)
    watchdog.end(lease)
