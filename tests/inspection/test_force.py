"""``force_release()``: whoever holds the lock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockPool, force_release, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import FORCE, PREFIX
from tests.inspection.conftest import Queue, hold

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock")


def test_it_returns_what_was_released_and_tells_by_whom(
    crowd: Crowd, queue_up: Queue, heard: list[tuple[str, dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    me = crowd()
    assert me(django_redislock, "force_release", "a") is None
    assert (heard, caplog.messages) == ([], [])
    token = hold("a", note="for people")
    queue_up("a", 2)
    before = get_lock("a")
    heard.clear()
    released = me(django_redislock, "force_release", "a", by="jo")
    assert released is not None
    assert before is not None
    facts = ("name", "owner", "fence", "since", "waiters", "note")
    assert [getattr(released, fact) for fact in facts] == [getattr(before, fact) for fact in facts]
    assert released.waiters == 2
    assert [(which, facts["name"], facts["by"]) for which, facts in heard if which == "force"] == [("force", "a", "jo")]
    assert f"event=force-released name=a by=jo owner={before.owner}" in caplog.text
    assert token not in caplog.text


def test_the_next_waiter_gets_the_lock_at_once_past_any_number_of_dead_ones(
    crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    me, you = crowd(), crowd()
    hold("a", ttl=600)
    waiting = me.start(Lock("a"), "acquire")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    dead = {f"dead-{number:017}": number for number in range(1, 11_001)}
    client.zadd(f"{PREFIX}queue:a", dead)
    client.hset(f"{PREFIX}waiters:a", mapping=dict.fromkeys(dead, "no-such-channel 30000 0 - dead"))
    assert you(django_redislock, "force_release", "a")
    assert waiting.result(GENEROUS)
    assert client.zcard(f"{PREFIX}queue:a") == 0


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


def test_a_fence_spares_whoever_came_later(
    crowd: Crowd, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    me, you = crowd(), crowd()
    lock = Lock("a")
    me(lock, "acquire")
    seen = me.read(lambda: lock.fence)
    assert you(django_redislock, "force_release", "a", fence=seen - 1) is None
    assert you(django_redislock, "force_release", "a", fence=seen)
    hold("a", ttl=600)
    eventually(lambda: "event=lost" in caplog.text)  # of the first holder, told by a thread
    caplog.clear()
    assert you(django_redislock, "force_release", "a", fence=seen) is None
    assert not caplog.records
    for fence in (True, "abc", 3.5, math.nan, -1):
        with pytest.raises((TypeError, ValueError), match=r"^fence must be "):
            force_release("a", fence=fence)  # type: ignore[arg-type]
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
