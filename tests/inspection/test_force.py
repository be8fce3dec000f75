"""``force_release()``: whoever holds the lock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockPool, force_release, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import FORCE, PREFIX
from tests.inspection.conftest import Queue, hold

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock")

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
    receiver = lambda sender, **facts: senders.append(sender)  # noqa: E731
    hold("a")
    django_redislock.lock_force_released.connect(receiver)
    force_release("a")
    django_redislock.lock_force_released.disconnect(receiver)
    assert senders == [Lock]


def test_the_next_waiter_gets_the_lock_at_once(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me, you = crowd(), crowd()
    hold("a", ttl=600)
    waiting = me.start(Lock("a"), "acquire")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    assert you(django_redislock, "force_release", "a")
    assert waiting.result(GENEROUS)


def test_the_old_holder_is_told(crowd: Crowd, eventually: Callable[..., Any], listens: Callable[[Lock], None]) -> None:
    me, you = crowd(), crowd()
    losses: list[LockLost] = []
    lock = Lock("a", ttl=600, on_lost=losses.append)
    me(lock, "acquire")
    me.read(lambda: listens(lock))  # else it may find out by asking
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
    assert waiting.result(GENEROUS).key == "alice"


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


def test_it_tells_whom_it_has_released_and_not_whom_it_saw_before(
    server: RedisServer, own_pools: None, crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    me, before, after = crowd(), Lock("a", token=hold("a")), Lock("a", purpose="the later one", using="straight")
    force_release("another")  # the script is known
    with proxy(server.port) as network, caches(alias(DJANGO, network.url), straight=alias(DJANGO, server.url)):
        late = network.hold_request(FORCE)
        forced = me.start(django_redislock, "force_release", "a")
        assert late.caught.wait(GENEROUS)
        Lock("a", token=before.token, using="straight").release()
        assert after.acquire()
        late.let_go()
        released = forced.result(GENEROUS)
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
