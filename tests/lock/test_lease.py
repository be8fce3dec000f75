"""The lease: how it is renewed, extended and shown; what a lock says of itself; and clocks that tests freeze."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from time import sleep, time
from typing import Any

import pytest
import redis
import time_machine
from freezegun import freeze_time

import django_redislock
from django_redislock import Lock, LockLost, LockNotAcquired, LockPool, LockStatus, LockUnavailable
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd, server_time, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, put, queued, value
from tests.inside import end_is_seen

from .conftest import Heard

SHORT = 4.0  # seconds
FAR = 3600.0  # seconds

Freeze = Callable[[], Any]

DATE = "2040-02-29 12:00"
WAIT = 0.1  # seconds

FREEZERS: dict[str, Freeze] = {
    "freezegun": lambda: freeze_time(DATE),
    "time-machine": lambda: time_machine.travel(DATE, tick=False),
    "real asyncio": lambda: freeze_time(DATE, real_asyncio=True),
}
frozen = pytest.mark.parametrize("freeze", FREEZERS.values(), ids=FREEZERS)
FREE = (False, False, LockStatus.FREE)
HELD_HERE = (True, True, LockStatus.LOCKED)
HELD_ELSEWHERE = (True, False, LockStatus.UNAVAILABLE)


def end(client: redis.Redis) -> float:
    """The end of the lease, in seconds by the server's clock."""
    return server_time(client) / 1e6 + int(client.pttl(LOCK)) / 1000


def test_extend_adds_to_the_lease_and_reacquire_resets_it(crowd: Crowd, using: str) -> None:
    # a renewal, which comes with a subscription too, would set the lease to 100 s again
    me, lock = crowd(), Lock(NAME, ttl=100, auto_renew=False, using=using)

    def assert_left(least: float, most: float) -> None:
        assert least < me.read(lock.remaining) <= most
        assert least < me(lock, "info").lease_left <= most

    me(lock, "acquire")
    assert me(lock, "extend", 50) is True
    assert_left(130, 150)
    assert me(lock, "extend", timedelta(seconds=20), replace_ttl=True) is True
    assert_left(10, 20)
    assert me(lock, "reacquire") is True
    assert_left(80, 100)


@pytest.mark.parametrize("ttl", [100, FAR])
def test_an_extension_whose_answer_is_lost_adds_once(
    ttl: float, crowd: Crowd, network: Proxy, client: redis.Redis
) -> None:
    """It is sent again then."""
    me, lock = crowd(), Lock(NAME, ttl=ttl, auto_renew=False, using="far")
    me(lock, "acquire")
    lost = network.lose_answer(LOCK)
    assert me(lock, "extend", 1000) is True
    assert lost.over.is_set()
    assert ttl + 980 < me.read(lock.remaining) <= ttl + 1000
    assert (ttl + 980) * 1000 < int(client.pttl(LOCK)) <= (ttl + 1000) * 1000


@pytest.mark.parametrize(("method", "args"), [("extend", (1,)), ("reacquire", ()), ("detach", ())])
@pytest.mark.parametrize("taken", [False, True])
def test_extending_a_lost_lease_raises_lock_lost(
    crowd: Crowd, method: str, args: tuple[Any, ...], taken: bool, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    put(client, NAME) if taken else client.delete(LOCK)
    found = value(client)
    for _ in range(2):
        with pytest.raises(LockLost, match="somebody else holds it now" if taken else "gone from Redis"):
            me(lock, method, *args)
    assert value(client) == found


@pytest.mark.parametrize(
    ("method", "options", "auto_renew", "seconds", "retried"),
    [("extend", {"replace_ttl": True}, False, 1, 0.1), ("detach", {}, False, 1, 0.1), ("detach", {}, True, 0.2, 0.6)],
)
def test_a_lease_that_redis_may_have_shortened_is_lost_before_anybody_else_gets_the_lock(
    method: str, options: dict[str, Any], auto_renew: bool, seconds: float, retried: float,
    me: Any, you: Any, network: Proxy, retry_for: Callable[[float], None],
) -> None:  # fmt: skip
    retry_for(retried)
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=600, auto_renew=auto_renew, using="far", on_lost=losses.append)
    me(lock, "acquire")
    lost = network.lose_answer("detach" if method == "detach" else "\r\nset\r\n", times=1000)
    with pytest.raises(LockUnavailable):
        me(lock, method, seconds, **options)
    assert lost.caught.is_set()
    assert you(Lock(NAME), "acquire", blocking_timeout=GENEROUS)
    assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0.0)
    until(lambda: losses)


@pytest.mark.parametrize("how", ["default", "option", *FREEZERS])
def test_a_lock_is_renewed_as_long_as_it_is_held(crowd: Crowd, how: str, settings: Any, client: redis.Redis) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": how != "option"}
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=SHORT, auto_renew=True if how == "option" else None, on_lost=losses.append)
    me(lock, "acquire")
    with FREEZERS[how]() if how in FREEZERS else nullcontext():
        me.read(lock.check)
        first, before = end(client), value(client)
        until(lambda: end(client) > first + SHORT / 4)
        assert me(lock, "owned")
        assert 0 < me.read(lock.remaining) <= SHORT
        assert value(client) == before
    me.read(lock.check)
    me(lock, "release")
    assert losses == []


def plain(me: Any, **options: Any) -> Lock:
    lock = Lock(NAME, **{"ttl": 3, **options})
    me(lock, "acquire")
    return lock


def member(me: Any) -> Any:
    LockPool(NAME).extend(["a", "b"])
    return me(LockPool(NAME), "acquire", ttl=3)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "renewed": plain,
    "not renewed": lambda me: plain(me, auto_renew=False),
    "no longer renewed": lambda me: plain(me, max_hold=0.1),
    "polling": lambda me: plain(me, poll=True),
    "a member of a pool": member,
}


def noticed(heard: Heard) -> bool:
    """By asking Redis, not by the local clock."""
    reasons = [facts["reason"] for what, facts in heard if what == "lost"]
    return any("gone from Redis" in reason or "somebody else holds it" in reason for reason in reasons)


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
@pytest.mark.complete
def test_an_extended_lock_keeps_its_far_end_and_its_loss_is_noticed(
    take: Callable[[Any], Any], me: Any, client: redis.Redis, heard: Heard
) -> None:
    lock = take(me)
    me(lock, "extend", FAR, replace_ttl=True)
    before = count(client, "evalsha")
    until(lambda: count(client, "evalsha") > before + 2)
    left = me(lock, "info").lease_left  # first: it only shrinks
    assert FAR * 0.9 < me.read(lock.remaining) <= left + 0.1
    assert me(lock, "owned")
    client.flushdb()  # of which nobody is told
    with hold(lock.name):
        until(lambda: noticed(heard))
        assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0.0)


@pytest.mark.parametrize("kind", ["not renewed", "cache.lock", "cache.lock, extended"])
@pytest.mark.complete
def test_the_loss_of_a_lock_that_is_not_renewed_is_noticed_before_its_end(
    kind: str, crowd: Crowd, cache_lock: Callable[..., Any], client: redis.Redis, heard: Heard
) -> None:
    if kind == "not renewed":
        plain(crowd(), ttl=9, auto_renew=False)
    else:
        lock = cache_lock(NAME, timeout=9)
        assert lock.acquire()
        assert not kind.endswith("extended") or lock.extend(FAR)
    sleep(0.3)  # Redis may be asked once when it has been held for 0.1 s
    client.flushdb()
    until(lambda: noticed(heard))


def test_the_lease_of_a_renewed_lock_is_made_no_shorter_than_its_ttl(crowd: Crowd, client: redis.Redis) -> None:
    """A renewal that comes first, and is answered, counts with a whole one."""
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    me(lock, "extend", FAR)
    assert me(lock, "extend", 0.005, replace_ttl=True) is True
    assert 300 < me.read(lock.remaining) <= 600
    assert 300_000 < int(client.pttl(LOCK)) <= 600_000


def test_a_lock_that_redis_has_detached_is_not_lost_though_the_answer_comes_after_its_end(
    crowd: Crowd, network: Proxy
) -> None:
    """A command with a minimum time may detach its lock in the last millisecond."""
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=600, using="far", on_lost=losses.append)
    me(lock, "acquire")
    token, is_seen = me.read(lambda: (lock.token, end_is_seen(lock)))
    held = network.hold_answer("detach")
    detaching = me.start(lock, "detach", 0.003)
    until(is_seen)
    held.let_go()
    assert detaching.result(GENEROUS) == token
    assert not me.read(lambda: lock.lost)
    assert losses == []


def answers(person: Any, lock: Lock) -> tuple[bool, bool, LockStatus]:
    return person(lock, "locked"), person(lock, "owned"), person(lock, "status")


def test_a_lock_answers_from_redis_and_not_from_memory(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME, token=TOKEN), Lock(NAME)
    me(lock, "acquire")
    me(django_redislock, "force_release", NAME)
    you(Lock(NAME, token=TOKEN), "acquire")  # another acquisition with the same token
    assert answers(me, lock) == answers(me, Lock(NAME)) == HELD_ELSEWHERE
    with pytest.raises(LockLost):
        me(lock, "release")
    assert answers(me, lock) == HELD_HERE  # by the constructor's token, of whichever acquisition
    client.delete(LOCK)
    assert answers(me, lock) == FREE
    assert you(second, "acquire", blocking=False)
    assert answers(me, lock) == HELD_ELSEWHERE
    client.persist(LOCK)
    assert you(second, "status") is LockStatus.ERROR
    client.pexpire(LOCK, 30_000)
    assert you(second, "status") is LockStatus.LOCKED
    client.set(LOCK, "of somebody else", px=30_000)
    assert you(second, "status") is LockStatus.ERROR


def known_as(person: Any) -> str:
    thread = person.read(lambda: threading.current_thread().name)
    task = f"/{person.read(lambda: asyncio.current_task().get_name())}" if person.awaits else ""  # type: ignore[union-attr]
    return f"{socket.gethostname()}:{os.getpid()}:{thread}{task}"


def test_info_tells_who_holds_and_who_waits_in_order(crowd: Crowd, using: str) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100, using=using)
    assert me(lock, "info") is None
    me(lock, "acquire")
    queue = [(crowd(), Lock(NAME, using=using, purpose=f"/{number}")) for number in range(1, 4)]
    for number, (person, theirs) in enumerate(queue, 1):
        person.start(theirs, "acquire")
        until(lambda number=number: me(lock, "info").waiters == number)
    info = me(lock, "info")
    assert (info.name, info.fence, info.waiters, info.note) == (NAME, me.read(lambda: lock.fence), 3, "")
    assert info.owner == known_as(me)
    assert 0 <= info.held_for < GENEROUS
    assert 0 <= time() - info.since.timestamp() < GENEROUS
    assert 100 - GENEROUS < info.lease_left <= 100
    assert [one.waited for one in info.queue] == sorted((one.waited for one in info.queue), reverse=True)
    token = me.read(lambda: lock.token)
    assert info.token_hint == f"{token[:4]}…"
    assert token not in repr(info)
    me(lock, "release")
    for person, theirs in queue:
        person(theirs, "release")
    names = [known_as(person) for person, _ in queue]
    assert [one.owner for one in info.queue] == [f"{name} /{number}" for number, name in enumerate(names, 1)]


@frozen
def test_bounded_waits_end(crowd: Crowd, freeze: Freeze, client: redis.Redis) -> None:
    with hold(NAME):
        waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=1)
        until(lambda: queued(client) or waiting.done())
        with freeze():
            for lock in (Lock(NAME), Lock(NAME, poll=True)):
                assert crowd()(lock, "acquire", blocking_timeout=WAIT) is False
            with pytest.raises(LockNotAcquired):
                crowd()(LockPool("empty"), "acquire", blocking_timeout=WAIT)
            assert waiting.result(GENEROUS) is False


@frozen
def test_a_bounded_wait_of_a_loop_that_begins_inside_ends(using: str, freeze: Freeze) -> None:
    async def wait() -> bool:
        return await Lock(NAME, using=using).aacquire(blocking_timeout=WAIT)

    with freeze(), hold(NAME, using=using):  # inside: the server of the memory mode goes by the frozen clock
        assert asyncio.run(wait()) is False
        assert Lock(NAME, using=using).acquire(blocking_timeout=WAIT) is False


async def test_the_lock_is_renewed_while_the_event_loop_is_blocked(client: redis.Redis) -> None:
    async with Lock(NAME, ttl=4) as lock:
        before = end(client)
        until(lambda: end(client) > before + 0.3)  # blocks
        assert not lock.lost
