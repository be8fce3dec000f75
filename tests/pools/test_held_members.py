"""Held members that are taken out, put in again, suspended, or whose leases end: no holder loses one, and no member
gets lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import (
    Lock,
    LockLost,
    LockNotOwned,
    LockPool,
    LockStatus,
    force_release,
    get_lock,
    list_locks,
)
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.pools import (
    ANY,
    BUSY,
    FREE,
    FRESH,
    HELD,
    MEMBERS,
    POOL,
    TTL,
    Held,
    Wait,
    audit,
    got,
    holder,
    leases_end,
    leave,
    lock_of,
    raw,
    refuses,
)
from tests.inside import PREFIX

Eventually = Callable[..., Any]

INDEX = f"{PREFIX}index"


# -- taken out, and put in again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "keys"), [("shrink", [["alice", "bob"]]), ("assign", [[]]), ("clear", [])])
def test_a_held_member_that_is_taken_out_stays_with_its_holder_and_is_gone_after_that(
    me: Any, pool: LockPool, how: str, keys: list[Any]
) -> None:
    me(pool, "extend", ["alice", "bob"])
    member = me(pool, "acquire")
    me(pool, how, *keys)
    assert (me(pool, "keys"), me(pool, "len"), me(pool, "contains", "alice")) == ([], 0, False)
    assert me(pool, "health_check") == (0, 0)
    assert me(member, "owned")
    assert me(member, "extend", 5)
    assert [lock.name for lock in list_locks(using=pool.using)] == [member.name]
    me(member, "release")
    refuses(me, pool)


@pytest.mark.parametrize("end", ["lapse", "force"])
def test_a_member_that_was_taken_out_is_gone_however_its_lease_ends(
    end: str, me: Any, pool: LockPool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice", "bob"])
    member = me(pool, "acquire", ttl=0.1 if end == "lapse" else TTL, auto_renew=False)
    me(pool, "shrink", ["alice"])
    if end == "force":
        assert force_release(member.name, using=pool.using)
    eventually(lambda: not list_locks(using=pool.using))
    with pytest.raises(LockLost):
        me(member, "release")
    assert me(pool, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, pool)


def test_a_held_member_stays_with_its_holder_however_often_it_is_taken_out_and_put_in_again(
    me: Any, crowd: Crowd, pool: LockPool
) -> None:
    me(pool, "extend", ["alice", "bob"])
    member, you = me(pool, "acquire"), crowd()
    assert me(pool, "shrink", ["alice"]) == 1
    assert me(pool, "extend", ["alice"]) == 1
    assert me(pool, "assign", ["alice", "carol"]) == 1
    me(pool, "clear")
    assert me(pool, "assign", ["alice", "carol"]) == 2
    assert me(pool, "health_check") == (1, 1)
    assert me(member, "owned")
    assert you(pool, "acquire", blocking_timeout=0).key == "carol"
    refuses(you, pool)
    me(member, "release")
    assert you(pool, "acquire", blocking_timeout=0).key == "alice"
    assert me(pool, "keys") == ["alice", "carol"]


def test_the_holder_of_a_member_that_is_put_in_again_is_renewed_and_told_of_losses(
    me: Any, accounts: LockPool, eventually: Eventually
) -> None:
    lost: list[LockLost] = []
    member = me(accounts, "acquire", ttl=1, on_lost=lost.append)
    accounts.clear()
    accounts.extend(["alice"])
    before = get_lock(member.name)
    assert before is not None
    eventually(lambda: (now := get_lock(member.name)) and now.expires > before.expires)
    assert force_release(member.name)
    eventually(lambda: lost)
    assert lost[0].name == lock_of("alice")
    with pytest.raises(LockLost):
        me(member, "release")
    assert accounts.acquire(blocking_timeout=0).key == "alice"


def test_an_empty_pool_leaves_nothing(accounts: LockPool, client: redis.Redis) -> None:
    with accounts.acquire():
        accounts.acquire().release()
        accounts.clear()
    left = {*client.keys(f"{PREFIX}*")} - {*client.keys(f"{PREFIX}slot:*")}  # which expire
    assert left == {f"{PREFIX}fence".encode()}


def test_a_pool_whose_members_come_and_go_does_not_grow(client: redis.Redis) -> None:
    pool = LockPool(POOL)
    sizes = []
    for day in range(6):
        pool.assign(f"key-{day}-{number}" for number in range(50))
        for _ in range(40):
            pool.acquire().release()
        sizes.append(sum(int(client.zcard(key)) for key in client.keys(f"{PREFIX}*:{ANY}")))
    assert max(sizes) < 3 * sizes[0]


# -- whose leases end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["short", "cut short"])
def test_a_member_whose_lease_has_ended_is_free_before_anybody_looks(
    how: str, me: Any, pool: LockPool, eventually: Eventually
) -> None:
    me(pool, "extend", ["alice"])
    member = me(pool, "acquire", ttl=0.1 if how == "short" else TTL, auto_renew=False)
    if how == "cut short":
        me(member, "extend", 0.1, replace_ttl=True)
    eventually(lambda: me(pool, "health_check") == (0, 1))
    assert list_locks(using=pool.using) == []
    with pytest.raises(LockLost):
        me(member, "release")
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"


def _fails(release: Callable[[], object]) -> None:
    with pytest.raises(LockNotOwned):
        release()


def _locks(lock: Lock) -> None:
    assert lock.acquire(blocking=False)
    lock.release()


# Whoever finds that a lease has ended, the member is free: here, each is the first one to look.
LOOKS: dict[str, Callable[[Any, Any], object]] = {
    "pool.health_check": lambda pool, member: pool.health_check(),
    "pool.info": lambda pool, member: pool.info(),
    "list_locks": lambda pool, member: list_locks(using=pool.using),
    "a release": lambda pool, member: _fails(member.release),
    "force_release": lambda pool, member: force_release(member.name, using=pool.using),
    "a lock on it": lambda pool, member: _locks(Lock(member.name, using=pool.using)),
    "locked": lambda pool, member: Lock(member.name, using=pool.using).locked(),
    "owned": lambda pool, member: member.owned(),
    "status": lambda pool, member: member.status(),
    "get_lock": lambda pool, member: get_lock(member.name, using=pool.using),
    "a release by token": lambda pool, member: _fails(Lock(member.name, token="t" * 22, using=pool.using).release),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_member_is_free_again_whoever_finds_first_that_its_lease_has_ended(look: str, pool: LockPool) -> None:
    pool.extend(["alice"])
    member = pool.acquire(ttl=TTL, poll=True)  # so that nothing looks by itself
    raw(pool.using or "", "ZADD", BUSY, "XX", "1", "alice")
    assert pool.health_check() == (0, 1)
    LOOKS[look](pool, member)
    assert pool.acquire(blocking_timeout=0).key == "alice"


@pytest.mark.parametrize("leaves", [False, True], ids=["looks", "leaves"])
def test_a_member_is_free_again_when_its_holder_finds_first_that_a_handoff_has_ended(
    leaves: bool, accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """A process that was stopped when a member was handed to it continues, and looks or gives up."""
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue("1" * 22, name=ANY, ttl=TTL)
    assert there.hear()[0] == "g"
    leases_end(client, "alice")
    if not leaves:
        there.queue("1" * 22, name=ANY, ttl=TTL)
        assert audit(client).lost == set()
    leave(there, "1" * 22)
    assert audit(client).lost == set()
    assert accounts.acquire(blocking_timeout=0).key == "alice"


# -- what somebody else has written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["forced", "deleted"])
def test_a_member_that_never_ends_is_passed_over_until_that_is_gone(end: str, me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    raw(pool.using or "", "HSET", HELD, "alice", "somebody's")
    assert me(pool, "items_locked_status") == [("alice", LockStatus.ERROR), ("bob", LockStatus.FREE)]
    assert me(pool, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, pool)
    if end == "forced":
        force_release(lock_of("alice"), using=pool.using)
    else:
        raw(pool.using or "", "HDEL", HELD, "alice")
    assert me(pool, "acquire", blocking_timeout=GENEROUS).key == "alice"


def test_waiters_look_no_more_often_because_of_a_member_without_expiry(
    accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    client.hset(HELD, "alice", "somebody's")
    there = ghost()
    for _ in range(2):
        taken = there.queue("1" * 22, name=ANY, ttl=TTL)
        assert taken.member == ""
        assert taken.left > 4


# -- what an eviction has taken --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["extend", "assign"])
@pytest.mark.parametrize("evicted", [FREE, FRESH, MEMBERS, BUSY, HELD])
def test_members_that_an_eviction_took_come_back_when_they_are_given_again(
    me: Any, pool: LockPool, evicted: str, how: str
) -> None:
    keys = ["alice", "bob", "carol"]
    me(pool, "extend", keys)
    members = [me(pool, "acquire") for _ in keys[1:]]
    me(members[0], "release")  # one of each: used and free, held, and not used yet
    raw(pool.using or "", "DEL", evicted)
    assert me(pool, how, keys) == (len(keys) if evicted == MEMBERS else 0)
    if evicted == HELD:
        with pytest.raises(LockLost):
            me(members[1], "release")
    else:
        me(members[1], "release")
    assert sorted(me(pool, "acquire", blocking_timeout=0).key for _ in keys) == keys
    refuses(me, pool)


def test_a_waiter_gets_a_member_that_extend_has_brought_back(
    accounts: LockPool, held: Held, wait: Wait, client: redis.Redis
) -> None:
    held("alice")
    client.delete(FREE)
    wanted = wait()
    accounts.extend(["alice"])
    assert got(wanted) == "alice"


@pytest.mark.parametrize("known", [False, True], ids=["index evicted too", "index"])
def test_the_member_of_a_dead_holder_comes_back_though_the_end_of_its_lease_was_evicted(
    known: bool, accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    assert ghost().queue("1" * 22, name=ANY, ttl=TTL).member == "alice"
    client.delete(BUSY)
    if known:
        client.zadd(INDEX, {lock_of("alice"): 1}, xx=True)
    else:
        client.delete(INDEX)
    accounts.extend(["alice"])
    assert {accounts.acquire(blocking_timeout=0).key for _ in range(2)} == {"alice", "bob"}


def test_a_lease_whose_end_was_evicted_is_still_what_it_was(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    members = [me(pool, "acquire", ttl=ttl, auto_renew=False) for ttl in (TTL, 2 * TTL)]
    raw(pool.using or "", "DEL", BUSY)
    for member, ttl in zip(members, (TTL, 2 * TTL), strict=True):
        before = get_lock(member.name, using=pool.using)
        assert before is not None
        assert ttl - 60 < before.lease_left <= ttl
    assert me(pool, "extend", ["alice", "bob"]) == 0
    refuses(me, pool)
    for member in members:
        me(member, "release")
    assert me(pool, "health_check") == (0, 2)


# -- suspended: see tests/protocol/test_r20_suspensions.py for what holds for other locks as well ---------------------


def test_nobody_gets_a_suspended_member(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    me(pool, "suspend", "alice", 3600, note="rate limited")
    assert me(pool, "items_locked_status") == [("alice", LockStatus.UNAVAILABLE), ("bob", LockStatus.FREE)]
    assert me(pool, "health_check") == (1, 1)
    (info,) = me(pool, "info").locks
    assert (info.name, info.held, info.note) == (lock_of("alice"), False, "rate limited")
    assert me(pool, "acquire").key == "bob"
    refuses(me, pool)
    assert me(pool, "resume", "alice") is True
    assert me(pool, "resume", "alice") is False
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"


def test_only_members_are_suspended(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    with pytest.raises(ValueError, match="Could not suspend 'alcie': it is not a member of the pool 'accounts'"):
        me(pool, "suspend", "alcie", 60)
    for call in (("suspend", "", 60), ("resume", 7)):
        with pytest.raises(TypeError, match="A member of a pool must be a non-empty str"):
            me(pool, *call)


@pytest.mark.parametrize("ends", ["release", "lapse", "gives up"])
def test_who_holds_a_suspended_member_keeps_it_and_then_nobody_gets_it(
    ends: str, me: Any, accounts: LockPool, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    there, id = ghost(), "a".ljust(22, "x")
    if ends == "gives up":
        there.queue(id, name=ANY)  # was granted it, and has left
        held = None
    else:
        held = me(accounts, "acquire", ttl=TTL)
    mine = holder(client, "alice")
    accounts.suspend("alice", 2 * TTL)
    assert holder(client, "alice") == mine
    if held is None:
        leave(there, id)
    elif ends == "release":
        me(held, "release")
    else:
        leases_end(client, "alice")
    assert me(accounts, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, accounts)
    assert audit(client).held == {"alice", "bob"}
    assert me(accounts, "resume", "alice")
    assert me(accounts, "acquire", blocking_timeout=0).key == "alice"


def test_a_suspended_member_that_is_taken_out_does_not_come_back(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    me(accounts, "suspend", "alice", TTL)
    me(accounts, "shrink", ["alice"])
    me(accounts, "resume", "alice")
    assert audit(client).free == {"bob"}
    with Lock(lock_of("alice"), blocking_timeout=GENEROUS):
        pass
