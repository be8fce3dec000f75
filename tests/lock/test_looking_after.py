"""A held lock is looked after: no lease goes unlooked at for longer than a third of its TTL, whatever its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, force_release
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, count

Eventually = Callable[..., Any]
Heard = list[tuple[str, dict[str, Any]]]
Take = Callable[[Any, Crowd], Any]  # acquires a lock for somebody, and returns it

TTL = 1.5  # seconds
FAR = 3600.0  # seconds


def plain(me: Any, crowd: Crowd, **options: Any) -> Lock:
    lock = Lock(NAME, **{"ttl": TTL, **options})
    me(lock, "acquire")
    return lock


def entered_twice(me: Any, crowd: Crowd) -> Lock:
    plain(me, crowd)
    return plain(me, crowd, reentrant=True)


def handed_over(me: Any, crowd: Crowd, **options: Any) -> Lock:
    you, first, second = crowd(), Lock(NAME), Lock(NAME, ttl=TTL, **options)
    you(first, "acquire")
    waiting = me.start(second, "acquire")
    while not you(first, "info").waiters:
        pass
    you(first, "release")
    assert waiting.result(GENEROUS)
    return second


def adopted(me: Any, crowd: Crowd) -> Lock:
    you, first = crowd(), Lock(NAME)
    you(first, "acquire")
    return plain(me, crowd, token=you(first, "detach"), adopt=True)


def member(me: Any, crowd: Crowd) -> Any:
    LockPool(NAME).extend(["a", "b"])
    return me(LockPool(NAME), "acquire", ttl=TTL)


TAKEN: dict[str, Take] = {
    "a lock": plain,
    "not renewed": lambda me, crowd: plain(me, crowd, auto_renew=False),
    "no longer renewed": lambda me, crowd: plain(me, crowd, max_hold=0.1),
    "polling": lambda me, crowd: plain(me, crowd, poll=True),
    "entered twice": entered_twice,
    "handed over": handed_over,
    "handed over, not renewed": lambda me, crowd: handed_over(me, crowd, auto_renew=False),
    "adopted": adopted,
    "a member of a pool": member,
}


def noticed(heard: Heard) -> list[str]:
    """Why locks were lost, according to Redis, not to the local clock."""
    reasons = [facts["reason"] for what, facts in heard if what == "lost"]
    return [reason for reason in reasons if "gone from Redis" in reason or "somebody else holds it" in reason]


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_an_extended_lock_keeps_its_far_end_and_its_loss_is_noticed(
    take: Take, crowd: Crowd, client: redis.Redis, eventually: Eventually, heard: Heard
) -> None:
    me = crowd()
    lock = take(me, crowd)
    me(lock, "extend", FAR, replace_ttl=True)
    before = count(client, "evalsha")
    eventually(lambda: count(client, "evalsha") > before + 2)
    assert FAR * 0.9 < me.read(lock.remaining) <= me(lock, "info").lease_left + 0.1
    assert me(lock, "owned")
    client.flushdb()  # of which nobody is told
    with hold(lock.name):
        eventually(lambda: noticed(heard))
        assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0.0)


@pytest.mark.parametrize("take", [TAKEN["not renewed"], TAKEN["handed over, not renewed"]])
def test_the_loss_of_a_lock_that_is_not_renewed_is_noticed_before_its_end(
    take: Take, crowd: Crowd, client: redis.Redis, eventually: Eventually, heard: Heard
) -> None:
    take(crowd(), crowd)
    client.flushdb()
    eventually(lambda: noticed(heard))


def test_a_force_release_of_an_extended_lock_is_noticed_without_messages(crowd: Crowd, eventually: Eventually) -> None:
    me = crowd()
    lock = plain(me, crowd, poll=True)
    me(lock, "extend", FAR)
    assert force_release(NAME)
    with hold(NAME):
        eventually(lambda: me.read(lambda: lock.lost))


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("thread_local", [False, True])
def test_the_loss_of_a_redis_py_lock_is_noticed(
    extended: bool, thread_local: bool, cache_lock: Callable[..., Any], client: redis.Redis, eventually: Eventually,
    heard: Heard,
) -> None:  # fmt: skip
    with hold(NAME, using="ours"):
        Lock(NAME, using="ours").acquire(blocking_timeout=0.3)  # subscribes, after which Redis would be asked once
    lock = cache_lock(NAME, timeout=TTL, thread_local=thread_local)
    lock.acquire()
    if extended:
        lock.extend(FAR)
    client.flushdb()
    eventually(lambda: noticed(heard))
