"""Checking out a member: which one, what can be done with it, and with which options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import LockError, LockLost, LockNotAcquired, LockNotOwned, LockPool, force_release
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.cancelling import Interrupted, add_gates
from tests.helpers.pools import POOL, TTL, audit, in_line, leftovers, lock_of
from tests.helpers.proxy import proxy
from tests.helpers.state import count
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import hears, parked

Eventually = Callable[..., Any]
AEventually = Callable[..., Awaitable[Any]]


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
        with pytest.raises(LockError, match="'pool:accounts:alice': this thread or task is in one already"):
            me(member, "enter")
        assert me(member, "owned")
        me(member, "exit", error and type(error), error, None)
        assert me(pool, "health_check") == (0, 1)
        me(member, "enter")  # it is acquired anew
        assert me(pool, "health_check") == (1, 0)
        me(member, "exit", None, None, None)
    member = me(pool, "acquire")
    force_release(member.name, using=pool.using)
    with pytest.raises(LockLost):
        me(member, "extend", 1)
    with pool.acquire(), pytest.raises(LockLost):
        me(member, "enter")


def test_the_least_recently_used_member_comes_first_and_new_ones_before_all(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob", "carol"])
    order = []
    for _ in range(6):
        member = me(pool, "acquire")
        order.append(member.key)
        me(member, "release")
    assert order == ["alice", "bob", "carol"] * 2
    alice, bob = me(pool, "acquire"), me(pool, "acquire")
    me(bob, "release")
    me(pool, "assign", ["alice", "bob", "carol", "zoe"])  # those that stay keep their turns
    me(alice, "release")
    assert [me(pool, "acquire").key for _ in range(4)] == ["zoe", "carol", "bob", "alice"]


@pytest.mark.parametrize(("members", "text"), [(["alice"], "none is free"), ([], "it has no members")])
def test_the_error_says_why_no_member_was_acquired(me: Any, pool: LockPool, members: list[str], text: str) -> None:
    me(pool, "extend", members)
    for _ in members:
        me(pool, "acquire")
    message = "Could not acquire a member of the pool 'accounts' {}: " + text + r"\.$"
    with pytest.raises(LockNotAcquired, match=message.format("at once")) as caught:
        me(pool, "acquire", blocking_timeout=0)
    assert (caught.value.name, caught.value.outcome) == (POOL, "busy")
    with pytest.raises(LockNotAcquired, match=message.format(r"within [\d.]+ s \(\d attempts?\)")) as caught:
        me(pool, "acquire", blocking_timeout=0.05)
    assert caught.value.outcome == "timeout"
    assert caught.value.waited >= 0.05
    assert not members or caught.value.busy_for > 0


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


def test_options_are_those_of_a_lock(accounts: LockPool, settings: Any) -> None:
    settings.REDISLOCK = {"TTLS": {"pool:accounts:*": 77}, "BLOCKING_TIMEOUT": 0}
    held = [accounts.acquire(), accounts.acquire(ttl=5)]
    assert [member.ttl for member in held] == [77, 5]
    with pytest.raises(LockNotAcquired, match=r"within [\d.]+ s \(3 attempts\)"):
        accounts.acquire(poll=True, backoff=ConstantBackoff(0.02), attempts=3, blocking_timeout=GENEROUS)
    with pytest.raises(LockNotAcquired, match="at once"):
        accounts.acquire()
    with pytest.raises(TypeError, match=r"the pool 'accounts'.* not a task: give a function"):
        accounts.acquire(on_lost="cancel")


async def test_a_task_whose_member_is_lost_may_be_cancelled(accounts: LockPool) -> None:
    async def hold() -> None:
        async with await accounts.aacquire(on_lost="cancel") as member:
            await asyncio.to_thread(force_release, member.name)
            await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        await hold()


@pytest.mark.parametrize("poll", [False, True], ids=["woken", "polls"])
def test_who_waits_gets_a_member_with_the_note_and_the_purpose_that_were_in_the_queue(
    me: Any, crowd: Crowd, pool: LockPool, poll: bool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice"])
    held, you = me(pool, "acquire", poll=poll), crowd()
    wanted = you.start(pool, "acquire", poll=poll, note="invoice 42\nof Monday", purpose="nightly run")
    (waiter,) = eventually(lambda: me(pool, "info").queue)
    me(held, "release")
    for known in (waiter, you(wanted.result(GENEROUS), "info")):
        assert known.note == "invoice 42\nof Monday"
        assert "nightly run" in known.owner
    assert hears(pool.using) is not poll  # who polls does not subscribe


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
async def test_a_checkout_cancelled_wherever_it_is_suspended_leaves_no_lock_and_no_place_in_the_queue(
    busy: bool, client: redis.Redis, aeventually: AEventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_gates(monkeypatch)  # many more suspensions
    pool = LockPool(POOL)
    await pool.aextend(["alice"])

    async def want(at: int) -> None:
        member = await Interrupted(pool.aacquire(ttl=TTL), at)
        await member.arelease()

    for at in range(1, 200):
        holder = await pool.aacquire(ttl=TTL) if busy else None
        task = asyncio.create_task(want(at))
        if holder is not None:
            await aeventually(lambda task=task: task.done() or parked())
            await holder.arelease()
        await asyncio.wait([task])
        # not because a lease ends or somebody looks
        await aeventually(lambda: audit(client).free == {"alice"} and not in_line(client))
        if not task.cancelled():
            break
    assert at > 2
    assert await task is None  # type: ignore[func-returns-value]
    await aeventually(lambda: leftovers(client) == [])
