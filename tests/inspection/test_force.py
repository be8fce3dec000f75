"""``force_release()``: whoever holds the lock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockPool, LockStatus, force_release, get_lock
from django_redislock.store import calls
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import INDEX
from tests.inside import lease_of, listener, reader_of
from tests.inspection.conftest import Queue, hold

PREFIX = "redislock{0}:"
Heard = list[tuple[str, dict[str, Any]]]


def test_nothing_is_released_when_nobody_holds_it(crowd: Crowd, heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    assert crowd()(django_redislock, "force_release", "a") is None
    assert heard == []
    assert caplog.messages == []


def test_it_returns_what_was_released_and_tells_by_whom(
    crowd: Crowd, queue_up: Queue, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    token = hold("a", note="for people")
    queue_up("a", 2)
    before = get_lock("a")
    heard.clear()
    released = crowd()(django_redislock, "force_release", "a", by="jo")
    assert released is not None
    assert before is not None
    facts = ("name", "owner", "fence", "since", "waiters", "note")
    assert [getattr(released, fact) for fact in facts] == [getattr(before, fact) for fact in facts]
    assert released.waiters == 2
    assert [(which, facts["name"], facts["by"]) for which, facts in heard if which == "force"] == [("force", "a", "jo")]
    assert f"event=force-released name=a by=jo owner={before.owner}" in caplog.text
    assert token not in caplog.text


def test_the_signal_comes_from_lock() -> None:
    senders: list[type] = []

    def receiver(sender: type, **facts: Any) -> None:
        senders.append(sender)

    hold("a")
    django_redislock.lock_force_released.connect(receiver)
    try:
        force_release("a")
    finally:
        django_redislock.lock_force_released.disconnect(receiver)
    assert senders == [Lock]


def test_the_next_waiter_gets_the_lock_at_once(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me, you = crowd(), crowd()
    hold("a", ttl=600)
    waiting = me.start(Lock("a"), "acquire")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    assert you(django_redislock, "force_release", "a")
    assert waiting.result(4)  # before any look by the clock


def test_the_old_holder_is_told(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me, you = crowd(), crowd()
    losses: list[LockLost] = []
    lock = Lock("a", ttl=600, on_lost=losses.append)
    me(lock, "acquire")
    lease = me.read(lambda: lease_of(lock))
    ears = listener()
    # until it listens, and has heard from Redis that the lock is there: else it may find out by that answer
    eventually(lambda: reader_of(ears) and not lease.urgent and time.monotonic() < lease.due < lease.ends)
    you(django_redislock, "force_release", "a")
    (loss,) = eventually(lambda: losses)
    assert loss.reason == "it was force-released"
    assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0)
    with pytest.raises(LockLost, match="force-released"):
        me(lock, "release")


def test_a_member_of_a_pool_goes_to_whoever_wants_any(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me, you = crowd(), crowd()
    pool = LockPool("accounts")
    pool.extend(["alice"])
    held = me(pool, "acquire", ttl=600)
    waiting = you.start(pool, "acquire")
    eventually(lambda: pool.info().waiters == 1)
    released = me(django_redislock, "force_release", held.name)
    assert (released.name, released.fence) == ("pool:accounts:alice", me.read(lambda: held.fence))
    assert waiting.result(4).key == "alice"


def test_it_works_in_the_memory_mode_too() -> None:
    lock = Lock("a", using="memory")
    lock.acquire()
    assert force_release("a", using="memory")
    assert get_lock("a", using="memory") is None
    with pytest.raises(LockLost):
        lock.release()


# -- with a fence ---------------------------------------------------------------------------------------------------


def test_a_fence_spares_whoever_came_later(
    crowd: Crowd, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    me, you = crowd(), crowd()
    lock = Lock("a")
    me(lock, "acquire")
    seen = me.read(lambda: lock.fence)
    assert you(django_redislock, "force_release", "a", fence=seen - 1) is None
    assert you(django_redislock, "force_release", "a", fence=seen)
    later = hold("a", ttl=600)
    eventually(lambda: "event=lost" in caplog.text)  # of the first holder, told by a thread
    caplog.clear()
    assert you(django_redislock, "force_release", "a", fence=seen) is None
    assert not caplog.records
    Lock("a", token=later).release()


@pytest.mark.parametrize("fence", [True, "abc", 3.5, math.nan, -1], ids=repr)
def test_what_is_no_fence_is_refused_before_anything_is_sent(fence: Any) -> None:
    hold("a")
    with pytest.raises((TypeError, ValueError), match=r"^fence must be "):
        force_release("a", fence=fence)
    assert get_lock("a")


def test_a_fence_hits_the_acquisition_that_has_it(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    hold("a", ttl=600)
    waiting = crowd().start(Lock("a"), "acquire")
    info = eventually(lambda: (found := get_lock("a")) and found.waiters and found)
    assert force_release("a", fence=info.fence)
    assert waiting.result(4)


def test_it_tells_whom_it_has_released_and_not_whom_it_saw_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    force, before = calls.force, hold("a")
    after = Lock("a", purpose="the later one")

    def late(*arguments: Any) -> Any:
        Lock("a", token=before).release()
        assert after.acquire()
        return force(*arguments)

    monkeypatch.setattr(calls, "force", late)
    released = force_release("a")
    assert released is not None
    assert released.owner.endswith(" the later one")
    assert "the later one" in caplog.text


# -- what stands in the way -----------------------------------------------------------------------------------------


def test_it_gets_past_any_number_of_dead_waiters(
    client: redis.Redis, crowd: Crowd, eventually: Callable[..., Any]
) -> None:
    me = crowd()
    hold("a", ttl=600)
    waiting = me.start(Lock("a"), "acquire")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    dead = {f"dead-{number:017}": number for number in range(1, 11_001)}
    client.zadd(f"{PREFIX}queue:a", dead)
    client.hset(f"{PREFIX}waiters:a", mapping=dict.fromkeys(dead, "no-such-channel 30000 0 - dead"))
    assert force_release("a")
    assert waiting.result(GENEROUS)
    assert client.zcard(f"{PREFIX}queue:a") == 0


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize(("name", "fence"), [("persisted", None), ("foreign", None), ("foreign", 0)])
def test_locks_that_never_end_are_released_like_any(name: str, fence: int | None, client: redis.Redis) -> None:
    released = force_release(name, fence=fence)
    assert released is not None
    assert released.status is LockStatus.ERROR
    assert not client.exists(f"{PREFIX}lock:{name}")
    assert client.zscore(INDEX, name) is None
    with Lock(name, blocking=False):
        pass


def test_a_pools_member_that_never_ends_is_released_like_any(client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    client.hset(f"{PREFIX}held:pool:accounts:", "alice", "somebody's")
    force_release("pool:accounts:alice")
    with pool.acquire(blocking_timeout=0) as alice:
        assert alice.key == "alice"
