"""Members that are suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockNotAcquired, LockPool, LockStatus
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.pools import ANY, TTL, Held, Wait, audit, got, holder, leases_end, leave, lock_of

Eventually = Callable[..., Any]


def test_nobody_gets_a_suspended_member(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    me(pool, "suspend", "alice", 3600, note="rate limited")
    assert me(pool, "items_locked_status") == [("alice", LockStatus.UNAVAILABLE), ("bob", LockStatus.FREE)]
    assert me(pool, "health_check") == (1, 1)
    (info,) = me(pool, "info").locks
    assert (info.name, info.held, info.note) == (lock_of("alice"), False, "rate limited")
    assert me(pool, "acquire").key == "bob"
    with pytest.raises(LockNotAcquired):
        me(pool, "acquire", blocking_timeout=0)
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


@pytest.mark.parametrize("ends", ["release", "lapse"])
def test_the_holder_of_a_suspended_member_keeps_it_and_then_nobody_gets_it(
    ends: str, me: Any, crowd: Any, accounts: LockPool, client: redis.Redis
) -> None:
    alice = me(accounts, "acquire", ttl=TTL)
    crowd()(accounts, "suspend", "alice", 2 * TTL)
    assert me(alice, "owned")
    if ends == "release":
        me(alice, "release")
    else:
        leases_end(client, "alice")
    assert me(accounts, "acquire", blocking_timeout=0).key == "bob"
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)
    assert audit(client).held == {"alice", "bob"}
    assert me(accounts, "resume", "alice")
    assert me(accounts, "acquire", blocking_timeout=0).key == "alice"


def test_a_member_granted_to_a_call_that_was_given_up_becomes_suspended(
    accounts: LockPool, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    there, id = ghost(), "a".ljust(22, "x")
    there.queue(id, name=ANY)
    assert holder(client, "alice") == id
    accounts.suspend("alice", TTL)
    leave(there, id)
    assert accounts.acquire(blocking_timeout=0).key == "bob"
    assert audit(client).free == set()


@pytest.mark.usefixtures("listening", "no_look_by_the_clock")
def test_a_waiter_for_any_member_gets_it_when_it_is_resumed(
    me: Any, held: Held, wait: Wait, accounts: LockPool
) -> None:
    first = wait()
    me(accounts, "suspend", "alice", TTL)
    held("alice")
    assert me(accounts, "resume", "alice")
    assert got(first) == "alice"


@pytest.mark.usefixtures("listening", "no_look_by_the_clock")
def test_a_waiter_for_any_member_gets_it_when_the_suspension_ends(
    me: Any, held: Held, wait: Wait, accounts: LockPool
) -> None:
    first = wait()
    me(accounts, "suspend", "alice", 1)
    held("alice")
    assert got(first) == "alice"


def test_a_suspended_member_that_is_taken_out_does_not_come_back(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    me(accounts, "suspend", "alice", TTL)
    me(accounts, "shrink", ["alice"])
    me(accounts, "resume", "alice")
    assert audit(client).free == {"bob"}
    with Lock(lock_of("alice"), blocking_timeout=GENEROUS):
        pass
