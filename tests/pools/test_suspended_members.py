"""Members that are suspended. See tests/protocol/test_r20_suspensions.py for what holds for other locks as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, LockStatus
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.pools import ANY, TTL, audit, holder, leases_end, leave, lock_of, refuses


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
