"""Locks on a particular member, ``Lock(lock_name("pool", name, key))``, beside callers that want any member."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockLost, LockNotAcquired, LockPool
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.pools import (
    ANY,
    TTL,
    WANTED,
    Held,
    Wait,
    audit,
    got,
    holder,
    in_line,
    leases_end,
    leave,
    leftovers,
    lock_of,
    raw,
)
from tests.helpers.processes import Worker
from tests.helpers.state import queued

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

ALICE = lock_of("alice")

# a waiter that is served was told, and did not look by itself
told = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


def test_a_member_that_is_locked_by_its_own_name_is_passed_over_and_comes_back(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    lock = Lock(ALICE, using=pool.using)
    assert me(lock, "acquire")
    assert me(pool, "acquire", blocking_timeout=0).key == "bob"
    with pytest.raises(LockNotAcquired):
        me(pool, "acquire", blocking_timeout=0)
    me(lock, "release")
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"


def test_a_member_that_is_checked_out_is_locked_for_its_own_name(me: Any, crowd: Crowd, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    lock, you, member = Lock(ALICE, using=pool.using), crowd(), me(pool, "acquire")
    assert me(lock, "locked")
    assert me(lock, "owned")  # through another object
    assert not you(lock, "owned")
    assert not you(lock, "acquire", blocking_timeout=0)
    me(member, "release")
    assert you(lock, "acquire", blocking_timeout=0)
    assert you.read(lambda: lock.fence) > 0


def test_a_lock_on_what_is_no_member_leaves_nothing_in_the_pool(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    accounts.clear()
    lock = Lock(ALICE)
    assert me(lock, "acquire")
    assert accounts.keys() == []
    me(lock, "release")
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)
    assert leftovers(client) == []


def test_a_member_is_put_in_while_it_is_locked_by_its_own_name(me: Any, crowd: Crowd, pool: LockPool) -> None:
    lock, you = Lock(ALICE, using=pool.using), crowd()
    assert you(lock, "acquire")
    assert me(pool, "extend", ["alice"]) == 1
    assert me(pool, "health_check") == (1, 0)
    with pytest.raises(LockNotAcquired):
        me(pool, "acquire", blocking_timeout=0)
    you(lock, "release")
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"


def test_a_member_that_is_seized_is_its_new_holders(
    me: Any, crowd: Crowd, accounts: LockPool, client: redis.Redis
) -> None:
    you, lock = crowd(), Lock(ALICE)
    member = me(accounts, "acquire", ttl=TTL)
    old = me.read(lambda: member.fence)
    you(lock, "seize")
    assert you.read(lambda: lock.fence) > old
    with pytest.raises(LockLost):
        me(member, "release")
    assert audit(client).held == {"alice"}
    you(lock, "release")
    assert audit(client).free == {"alice", "bob"}


def test_as_often_as_it_is_detached_and_adopted_a_member_leaves_no_trace(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    token = me(me(accounts, "acquire"), "detach")
    for _ in range(3):
        lock = Lock(ALICE, token=token)
        assert me(lock, "acquire")
        assert me(lock, "detach") == token
        assert audit(client).held == {"alice"}
    me(Lock(ALICE, token=token), "release")
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []


# -- with those who wait ---------------------------------------------------------------------------------------------


@told
def test_a_member_locked_by_its_own_name_goes_to_waiters_for_any_member(
    accounts: LockPool, crowd: Crowd, wait: Wait
) -> None:
    you, lock = crowd(), Lock(ALICE, ttl=TTL)
    assert you(lock, "acquire")
    assert you(accounts, "acquire", ttl=TTL).key == "bob"
    waiter = wait()
    you(lock, "release")
    assert got(waiter) == "alice"


@told
def test_a_waiter_for_one_member_comes_before_waiters_for_any(
    held: Held, wait: Wait, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    anyone, you, lock = wait(), crowd(), Lock(ALICE, ttl=TTL)
    wanted = you.start(lock, "acquire")
    eventually(lambda: queued(client, ALICE) == 1)
    held("alice")
    assert wanted.result(GENEROUS)
    assert not anyone.done()
    you(lock, "release")
    assert got(anyone) == "alice"


@told
def test_a_waiter_for_one_member_does_not_block_the_other_members(
    held: Held, wait: Wait, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    wanted = crowd().start(Lock(ALICE, ttl=TTL), "acquire")
    eventually(lambda: queued(client, ALICE) == 1)
    anyone = wait()
    held("bob")
    assert got(anyone) == "bob"
    held("alice")
    assert wanted.result(GENEROUS)


@told
def test_a_waiter_for_one_member_gets_it_even_if_it_is_taken_out(
    held: Held, accounts: LockPool, wait: Wait, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    you, lock = crowd(), Lock(ALICE, ttl=TTL)
    wanted = you.start(lock, "acquire")
    eventually(lambda: queued(client, ALICE) == 1)
    anyone = wait()
    accounts.shrink(["alice"])
    held("alice")
    assert wanted.result(GENEROUS)
    you(lock, "release")
    assert len(in_line(client)) == 1
    held("bob")
    assert got(anyone) == "bob"


@told
def test_a_waiter_that_gives_up_on_one_member_leaves_it_to_waiters_for_any(
    held: Held, wait: Wait, crowd: Crowd, client: redis.Redis
) -> None:
    assert not crowd()(Lock(ALICE, ttl=TTL), "acquire", blocking_timeout=0.1)
    anyone = wait()
    held("alice")
    assert got(anyone) == "alice"
    assert client.zcard(WANTED) == 0


@told
def test_a_waiter_killed_while_waiting_for_one_member_leaves_it_to_waiters_for_any(
    held: Held, wait: Wait, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    ghost(alive=False).queue("1" * 22, name=ALICE, ttl=TTL)
    anyone = wait()
    held("alice")
    assert got(anyone) == "alice"
    assert client.zcard(WANTED) == 0


# -- leases that end -------------------------------------------------------------------------------------------------


def test_a_waiter_for_one_member_gets_it_when_its_lease_ends(
    me: Any, crowd: Crowd, accounts: LockPool, client: redis.Redis, eventually: Eventually
) -> None:
    """Even while others ask for any member: it is not given to them."""
    accounts.assign(["alice"])
    me(accounts, "acquire", ttl=1, auto_renew=False)
    wanted = crowd().start(Lock(ALICE, ttl=TTL), "acquire")
    eventually(lambda: queued(client, ALICE) == 1)
    you = crowd()
    while not wanted.done():
        with pytest.raises(LockNotAcquired):
            you(accounts, "acquire", blocking_timeout=0)
    assert wanted.result() is True


@pytest.mark.complete
@pytest.mark.parametrize("how", ["gave up", "was killed"])
def test_a_member_whose_lease_ends_is_free_if_its_only_waiter_is_gone(
    how: str, accounts: LockPool, crowd: Crowd, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    accounts.acquire(ttl=TTL, poll=True)  # so that nothing looks by itself
    if how == "gave up":
        assert not crowd()(Lock(ALICE), "acquire", blocking_timeout=0.05)
    else:
        ghost(alive=False).queue("1" * 22, name=ALICE)
    leases_end(client, "alice")
    assert accounts.acquire(blocking_timeout=GENEROUS).key == "alice"


@pytest.mark.complete
def test_a_member_is_not_lost_with_a_polling_waiter(
    accounts: LockPool, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    accounts.assign(["alice"])
    member = accounts.acquire(ttl=TTL)
    worker = start("Lock(name, poll=True).acquire()", name=ALICE)
    eventually(lambda: queued(client, ALICE) == 1, within=60)
    worker.signal(signal.SIGSTOP)
    member.release()
    worker.kill()
    assert accounts.acquire(blocking_timeout=GENEROUS).key == "alice"


@pytest.mark.complete
def test_a_member_whose_lease_ends_is_not_lost_with_a_polling_waiter(
    accounts: LockPool, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """Another caller asked for it once after its lease had ended."""
    accounts.assign(["alice"])
    accounts.acquire(ttl=TTL, poll=True)
    worker = start("Lock(name, poll=True).acquire()", name=ALICE)
    eventually(lambda: queued(client, ALICE) == 1, within=60)
    worker.signal(signal.SIGSTOP)
    leases_end(client, "alice")
    assert not Lock(ALICE).acquire(blocking=False)
    worker.kill()
    assert accounts.acquire(blocking_timeout=GENEROUS).key == "alice"


def test_a_polling_waiter_for_one_member_comes_before_waiters_for_any(
    accounts: LockPool, crowd: Crowd, me: Any, client: redis.Redis, eventually: Eventually
) -> None:
    accounts.assign(["alice"])
    member = me(accounts, "acquire", ttl=TTL)
    you, lock = crowd(), Lock(ALICE, ttl=TTL, poll=True, backoff=ConstantBackoff(0.3))
    wanted = you.start(lock, "acquire")
    eventually(lambda: queued(client, ALICE) == 1)
    me(member, "release")
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)
    assert wanted.result(GENEROUS)
    you(lock, "release")
    assert me(accounts, "acquire", blocking_timeout=0).key == "alice"


def test_a_waiter_that_leaves_passes_its_member_on_to_waiters_for_that_one(
    accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    leaves, wants = ghost(), ghost()
    with accounts.acquire(ttl=TTL):
        leaves.queue("1" * 22, name=ANY, ttl=TTL)
    assert leaves.hear()[0] == "g"
    wants.queue("2" * 22, name=ALICE, ttl=TTL)
    leave(leaves, "1" * 22)
    assert holder(client, "alice") == "2" * 22


def test_a_member_is_not_kept_for_those_who_asked_for_it_before_the_clock_jumped_back(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    seconds, _ = raw(pool.using or "default", "TIME")
    raw(pool.using or "default", "ZADD", WANTED, f"{int(seconds) + 3600}000000", "alice")
    assert me(pool, "acquire", blocking_timeout=GENEROUS).key == "alice"
