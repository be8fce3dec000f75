"""Checking out a member: which one, what can be done with it, and with which options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import LockError, LockLost, LockNotAcquired, LockNotOwned, LockPool, force_release
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.pools import BUSY, HELD, POOL, audit, lock_of
from tests.helpers.proxy import proxy
from tests.helpers.state import count
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import hears

Eventually = Callable[..., Any]


# -- what it is ------------------------------------------------------------------------------------------------------


def test_a_free_member_is_taken_with_its_lock(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    member = me(pool, "acquire", ttl=7)
    assert (member.key, member.name) == ("alice", lock_of("alice"))
    assert me.read(lambda: (member.ttl, member.lost, member.check(), bool(member.fence))) == (7, False, None, True)
    assert me(member, "owned")
    assert me(member, "locked")
    assert 0 < me.read(member.remaining) <= 7
    assert me(member, "extend", 5)
    assert me.read(member.remaining) > 7
    assert me(member, "reacquire")
    assert me.read(member.remaining) <= 7
    me(member, "release")
    assert not me(member, "locked")
    with pytest.raises(LockNotOwned):
        me(member, "release")


def test_a_with_statement_gives_a_member_back_also_when_its_block_raises(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    for error in (None, ZeroDivisionError()):
        member = me(pool, "acquire")
        assert me(member, "enter") is member
        assert me(pool, "health_check") == (1, 0)
        me(member, "exit", error and type(error), error, None)
        assert me(pool, "health_check") == (0, 1)


def test_a_second_block_is_refused_and_leaves_the_member_to_the_first(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    member = me(pool, "acquire")
    for _ in range(2):
        me(member, "enter")
        with pytest.raises(LockError, match="'pool:accounts:alice': this thread or task is in one already"):
            me(member, "enter")
        assert me(member, "owned")
        me(member, "exit", None, None, None)
        assert me(pool, "health_check") == (0, 2)  # and it can be entered anew


def test_a_block_with_a_member_that_is_lost_is_not_entered(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    member = me(pool, "acquire")
    force_release(member.name, using=pool.using)
    with pytest.raises(LockLost):
        me(member, "extend", 1)
    with pool.acquire(), pytest.raises(LockLost):
        me(member, "enter")


def test_a_held_member_is_renewed(accounts: LockPool, client: redis.Redis, eventually: Eventually) -> None:
    with accounts.acquire(ttl=3) as member:
        first = client.zscore(BUSY, member.key) or 0.0
        eventually(lambda: (client.zscore(BUSY, member.key) or 0.0) > first + 1_000_000)
        member.check()
        assert audit(client).held == {member.key}


# -- which one it is -------------------------------------------------------------------------------------------------


def test_the_least_recently_used_member_comes_first_and_new_ones_before_all(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob", "carol"])
    order = []
    for _ in range(6):
        member = me(pool, "acquire")
        order.append(member.key)
        me(member, "release")
    assert order == ["alice", "bob", "carol"] * 2
    first, second = me(pool, "acquire"), me(pool, "acquire")
    me(second, "release")
    me(first, "release")
    me(pool, "extend", ["zoe"])
    assert [me(pool, "acquire").key for _ in range(4)] == ["zoe", "carol", "bob", "alice"]


def test_members_that_are_assigned_again_keep_their_turn_also_while_they_are_held(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["bob", "xavier", "yves", "zoe"])
    bob, xavier, yves = (me(pool, "acquire") for _ in range(3))
    me(yves, "release")
    me(xavier, "release")
    me(pool, "assign", ["alice", "bob", "xavier", "yves", "zoe"])
    me(bob, "release")
    assert [me(pool, "acquire").key for _ in range(5)] == ["alice", "zoe", "yves", "xavier", "bob"]


# -- when none is free -----------------------------------------------------------------------------------------------


def test_the_error_says_that_no_member_is_free(me: Any, pool: LockPool) -> None:
    text = "Could not acquire a member of the pool 'accounts' {}: none is free\\."
    me(pool, "extend", ["alice"])
    me(pool, "acquire")
    with pytest.raises(LockNotAcquired, match=text.format("at once")) as caught:
        me(pool, "acquire", blocking_timeout=0)
    assert caught.value.name == POOL
    with pytest.raises(LockNotAcquired, match=text.format(r"within [\d.]+ s \(\d attempts?\)")) as caught:
        me(pool, "acquire", blocking_timeout=0.05)
    assert caught.value.waited >= 0.05
    assert caught.value.busy_for > 0


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_the_error_says_that_a_pool_has_no_members(timeout: float, me: Any, pool: LockPool) -> None:
    within = r"within .* \(\d attempts?\)" if timeout else "at once"
    with pytest.raises(LockNotAcquired, match=rf"{within}: it has no members\.$") as caught:
        me(pool, "acquire", blocking_timeout=timeout)
    assert (caught.value.name, caught.value.outcome) == (POOL, "timeout" if timeout else "busy")


def test_the_error_does_not_say_that_there_are_no_members_where_there_are(client: redis.Redis) -> None:
    """Not even where no lease that Redis knows will ever end."""
    pool = LockPool(POOL)
    pool.extend(["alice"])
    client.hset(HELD, "alice", "somebody's")
    with pytest.raises(LockNotAcquired, match=r"at once: none is free\.$"):
        pool.acquire(blocking_timeout=0)


def test_where_redis_does_not_say_whether_there_are_members_the_refusal_stands(
    server: RedisServer, own_pools: None
) -> None:
    pool = LockPool(POOL)
    with proxy(server.port) as network, caches(alias(DJANGO, network.url, socket_timeout=0.3)):
        assert pool.keys() == []
        asked = network.hold_answer("ZCARD", times=1000)
        with pytest.raises(LockNotAcquired, match=r"at once: none is free\.$"):
            pool.acquire(blocking_timeout=0)
        assert asked.caught.is_set()


def test_a_checkout_is_one_round_trip_and_so_is_a_release(accounts: LockPool, client: redis.Redis) -> None:
    def asked() -> tuple[int, int]:
        return int(client.info("stats")["total_reads_processed"]), count(client, "evalsha")

    accounts.acquire().release()
    reads, scripts = asked()
    for _ in range(20):
        accounts.acquire().release()
    after = asked()
    assert (after[0] - reads - 2, after[1] - scripts) == (40, 40)  # two were those of INFO


# -- options ---------------------------------------------------------------------------------------------------------


def test_options_are_those_of_a_lock(accounts: LockPool, settings: Any) -> None:
    settings.REDISLOCK = {"TTLS": {"pool:accounts:*": 77}, "BLOCKING_TIMEOUT": 0}
    held = [accounts.acquire(), accounts.acquire(ttl=5)]
    assert [member.ttl for member in held] == [77, 5]
    with pytest.raises(LockNotAcquired):
        accounts.acquire()
    with pytest.raises(TypeError, match="not a task: give a function") as caught:
        accounts.acquire(on_lost="cancel")
    assert "the pool 'accounts'" in str(caught.value)


async def test_a_task_whose_member_is_lost_may_be_cancelled(accounts: LockPool) -> None:
    async def hold() -> None:
        async with await accounts.aacquire(on_lost="cancel") as member:
            await asyncio.to_thread(force_release, member.name)
            await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        await hold()


@pytest.mark.parametrize("poll", [False, True], ids=["woken", "polls"])
def test_a_note_and_a_purpose_are_kept_in_the_queue_and_then_with_the_member(
    me: Any, crowd: Crowd, pool: LockPool, poll: bool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice"])
    held, you = me(pool, "acquire"), crowd()
    assert me(held, "info").note == ""
    wanted = you.start(pool, "acquire", poll=poll, note="invoice 42\nof Monday", purpose="nightly run")
    (waiter,) = eventually(lambda: me(pool, "info").queue)
    me(held, "release")
    for known in (waiter, you(wanted.result(GENEROUS), "info")):
        assert known.note == "invoice 42\nof Monday"
        assert "nightly run" in known.owner


# -- polling ---------------------------------------------------------------------------------------------------------


def test_a_polling_waiter_tries_no_more_often_than_configured(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    me(pool, "acquire")
    with pytest.raises(LockNotAcquired, match=r"within [\d.]+ s \(3 attempts\)") as caught:
        me(pool, "acquire", poll=True, backoff=ConstantBackoff(0.02), attempts=3)
    assert caught.value.attempts == 3
    assert caught.value.waited >= 0.04
    assert me(pool, "info").waiters == 0


def test_a_polling_waiter_gets_a_member_without_subscribing(
    me: Any, crowd: Crowd, pool: LockPool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice"])
    held, you = me(pool, "acquire", poll=True), crowd()
    wanted = you.start(pool, "acquire", poll=True, backoff=ConstantBackoff(0.01))
    eventually(lambda: me(pool, "info").waiters == 1)
    me(held, "release")
    member = wanted.result(GENEROUS)
    assert member.key == "alice"
    you(member, "release")
    assert not hears(pool.using)
    assert me(pool, "health_check") == (0, 1)
