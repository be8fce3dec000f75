"""The state of one lock in Redis: ``get_lock()``, foreign values, suspensions; and ``force_release()``."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client

import django_redislock
from django_redislock import Lock, LockInfo, LockPool, LockStatus, LockUnavailable, force_release, get_lock, list_locks
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.proxy import proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import FORCE, PREFIX
from tests.inspection.conftest import Queue, hold

HOUR = 3600


def known(name: str) -> LockInfo:
    info = get_lock(name)
    assert info is not None
    return info


def test_info_lists_the_first_hundred_waiters_in_order_and_counts_all(
    queue_up: Queue, crowd: Crowd, client: redis.Redis
) -> None:
    hold("a")
    owners = queue_up("a", 130)
    info = crowd()(django_redislock, "get_lock", "a")
    assert info.waiters == 130
    assert [waiter.owner for waiter in info.queue] == owners[:100]
    waited = [waiter.waited for waiter in info.queue]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] >= 0
    client.delete(f"{PREFIX}lock:a")  # a queue without a holder
    assert get_lock("a") is None


def test_it_tells_which_waiters_redis_cannot_reach(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """They still count, because they may come back."""
    hold("a", ttl=600)
    killed, there = ghost(alive=False), ghost()
    killed.queue("1" * 22, name="a")
    there.queue("2" * 22, name="a")
    client.zadd(f"{PREFIX}queue:a", {"3" * 22: "inf", "4" * 22: "inf"})
    now = server_time(client)
    for id, polls_until in (("3" * 22, now - 1), ("4" * 22, now + 30_000_000)):
        client.hset(f"{PREFIX}waiters:a", id, f"- 30000 {polls_until} - ghost")
    assert [waiter.gone for waiter in known("a").queue] == [True, False, True, False]
    assert known("a").waiters == 4
    LockPool("accounts").extend(["alice"])
    LockPool("accounts").acquire(ttl=600)
    killed.queue("1" * 22, name="pool:accounts:")
    assert [waiter.gone for waiter in LockPool("accounts").info().queue] == [True]
    assert [waiter.gone for waiter in known("pool:accounts:alice").pool_queue] == [True]


def test_of_a_pools_member_it_tells_who_wants_this_one_and_who_wants_any(ghost: Callable[..., Ghost]) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    for _ in range(2):
        pool.acquire(ttl=600)
    there = ghost()
    for number in range(105):
        name = "pool:accounts:alice" if number < 2 else "pool:accounts:"
        there.queue(f"{number:025}", name=name, age=200 - number)
    alice, bob = known("pool:accounts:alice"), known("pool:accounts:bob")
    assert (alice.waiters, len(alice.queue), alice.pool_waiters, len(alice.pool_queue)) == (2, 2, 103, 100)
    assert (bob.waiters, bob.queue, bob.pool_waiters, bob.pool_queue[0].owner) == (0, (), 103, "ghost")
    assert 500 < alice.lease_left <= 600
    assert alice.pool_queue[0].waited == pytest.approx(198, abs=30)


# -- handed over: it has a short lease, and whoever looks is told why -------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("redislocks", *arguments)
    return capsys.readouterr().out


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["order:42", "pool:accounts:alice"])
def test_all_who_show_a_lock_say_that_it_is_being_handed_over(
    name: str, ghost: Callable[..., Ghost], capsys: pytest.CaptureFixture[str], admin_client: Client
) -> None:
    there, pool, of_pool = ghost(), LockPool("accounts"), name.startswith("pool:")
    pool.assign(["alice"])
    with pool.acquire() if of_pool else Lock(name):
        assert not known(name).handed_over
        there.queue("a" * 22, name="pool:accounts:" if of_pool else name, ttl=30)
    for info in (known(name), *list_locks()):
        assert (info.owner, info.handed_over) == ("ghost", True)
        assert info.lease_left <= 10
    assert [lock.handed_over for lock in pool.info().locks] == [True] * of_pool
    assert " s (being handed over)  " in printed(capsys, "list")
    assert " s (being handed over)\n" in printed(capsys, "show", name)
    assert json.loads(printed(capsys, "show", name, "--format=json"))["handed_over"] is True
    for part in ("", f"{name}/change/"):
        path = f"/admin/django_redislock/heldlock/{part}".replace(":", "_3A")
        assert " s (being handed over)" in admin_client.get(path).content.decode()


# -- what somebody else may have written ----------------------------------------------------------------------------

FOREIGN = [
    b"",
    b"\xff\xfe\x00",
    b"id channel c 1 1 -",
    b"id channel c one two - owner",
    b"id channel c -1 -1 - owner",
    b"id channel c \xc2\xb2 \xc2\xb2 - owner",
    b"id channel c 1 " + b"9" * 18 + b" - owner",
    b"id channel c " + b"9" * 5000 + b" 1 - owner",
]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value[:40]))
def test_a_foreign_value_keeps_the_lock_from_everybody_until_it_is_forced_away(
    value: bytes, client: redis.Redis
) -> None:
    for left in (60, math.inf):
        client.set(f"{PREFIX}lock:foreign", value, px=60_000 if left == 60 else None)
        info = known("foreign")
        assert (info.status, info.owner, info.fence, info.note, info.token_hint) == (LockStatus.ERROR, "?", 0, "", "")
        assert info.held_for == 0
        assert left - 10 < info.lease_left <= left or info.lease_left == left
        assert Lock("foreign").status() is LockStatus.ERROR
        assert not Lock("foreign").acquire(blocking=False)
        force_release("foreign")
        with Lock("foreign", blocking=False):
            pass


# -- suspensions; for their effects, see tests/protocol/test_r2_r15_r20_scripts.py -------------------------------


def test_it_says_who_suspended_the_lock_until_when_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_redislock")
    hold("another")
    me = known("another").owner
    force_release("another")
    caplog.clear()
    token = hold("a", note="of the holder")
    Lock("a").suspend(timedelta(hours=1), note="rate\nlimited")
    info = known("a")
    assert info.suspension is not None
    assert (info.held, info.owner, info.note) == (True, me, "of the holder")
    assert info.suspension.note == "rate\nlimited"
    assert info.lease_left < HOUR - 100 < info.suspension.left
    Lock("a", token=token).release()
    for info in (*list_locks(), known("a")):
        assert (info.held, info.owner, info.note) == (False, f"nobody (suspended by {me})", "rate\nlimited")
        assert info.suspension is not None
        assert (info.suspension.owner, info.suspension.note) == (me, "rate\nlimited")
        assert HOUR - 100 < info.suspension.left == info.lease_left <= HOUR
    for _ in range(2):
        Lock("a").resume()
    assert caplog.messages == [
        rf'event=suspended name=a seconds=3600.000000 by={me} note="rate\nlimited"',
        f"event=resumed name=a by={me}",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), ValueError, "seconds must be at least 0.001 seconds and finite, not 0"),
        (("60",), TypeError, "seconds must be seconds"),
        ((60, 7), TypeError, "note must be a str, not 7"),
        ((60, "x" * 1001), ValueError, "note must have at most 1000 bytes, not 1001"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent_and_then_redis_is_missed(
    arguments: tuple[Any, ...], error: type[Exception], says: str, own: RedisServer, retry_for: Any
) -> None:
    retry_for(0.0)
    own.stop()
    with pytest.raises(error, match=says):
        Lock("a").suspend(*arguments)
    for call in (lambda: Lock("a").suspend(60), Lock("a").resume):
        with pytest.raises(LockUnavailable):
            call()


# -- force_release(): whoever holds the lock --------------------------------------------------------------------------


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


@pytest.mark.usefixtures("no_look_by_the_clock")
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
