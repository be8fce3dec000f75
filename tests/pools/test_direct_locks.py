"""Locks on a particular member, ``Lock(lock_name("pool", name, key))``, beside callers that want any member."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockPool
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.pools import (
    TTL,
    WANTED,
    Held,
    Wait,
    audit,
    got,
    in_line,
    leases_end,
    leftovers,
    lock_of,
    raw,
    refuses,
)
from tests.helpers.processes import Worker
from tests.helpers.state import queued

Eventually = Callable[..., Any]
Ghosts = Callable[..., Ghost]
Start = Callable[..., Worker]

ALICE = lock_of("alice")

# a waiter that is served was told, and did not look by itself
told = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


def test_a_lock_on_a_member_and_a_checkout_of_it_exclude_each_other(me: Any, crowd: Crowd, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    lock, you = Lock(ALICE, using=pool.using), crowd()
    assert me(lock, "acquire")
    assert me(pool, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, pool)
    me(lock, "release")
    member = me(pool, "acquire", blocking_timeout=0)
    assert member.key == "alice"
    assert (me(lock, "locked"), me(lock, "owned")) == (True, True)  # through another object
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
    refuses(me, accounts)
    assert leftovers(client) == []


def test_a_member_is_put_in_while_it_is_locked_by_its_own_name(me: Any, crowd: Crowd, pool: LockPool) -> None:
    lock, you = Lock(ALICE, using=pool.using), crowd()
    assert you(lock, "acquire")
    assert me(pool, "extend", ["alice"]) == 1
    assert me(pool, "health_check") == (1, 0)
    refuses(me, pool)
    you(lock, "release")
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"


def test_a_member_is_detached_and_adopted_like_any_lock_and_leaves_no_trace(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    token = me(me(accounts, "acquire"), "detach")
    for _ in range(3):
        lock = Lock(ALICE, token=token)
        assert me(lock, "acquire")
        assert me(lock, "extend", 10)
        assert me(lock, "detach") == token
        assert audit(client).held == {"alice"}
    bob = me(accounts, "acquire", blocking_timeout=0)
    assert bob.key == "bob"
    me(Lock(ALICE, token=token), "release")
    me(bob, "release")
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []


# -- with those who wait ---------------------------------------------------------------------------------------------


@pytest.fixture
def want(crowd: Crowd, client: redis.Redis, eventually: Eventually) -> Callable[..., tuple[Any, Lock, Future[bool]]]:
    """Somebody queues for alice, and for no other member: who, the lock, and what acquire() returns."""

    def want(**options: Any) -> tuple[Any, Lock, Future[bool]]:
        you, lock = crowd(), Lock(ALICE, ttl=TTL, **options)
        wanted = you.start(lock, "acquire")
        eventually(lambda: queued(client, ALICE) == 1)
        return you, lock, wanted

    return want


@told
def test_a_waiter_for_one_member_comes_before_waiters_for_any(held: Held, wait: Wait, want: Any) -> None:
    anyone = wait()
    you, lock, wanted = want()
    held("alice")
    assert wanted.result(GENEROUS)
    assert not anyone.done()
    you(lock, "release")
    assert got(anyone) == "alice"


@told
def test_a_waiter_for_one_member_does_not_block_the_other_members(held: Held, wait: Wait, want: Any) -> None:
    _, _, wanted = want()
    anyone = wait()
    held("bob")
    assert got(anyone) == "bob"
    held("alice")
    assert wanted.result(GENEROUS)


@told
def test_a_waiter_for_one_member_gets_it_even_if_it_is_taken_out(
    held: Held, accounts: LockPool, wait: Wait, want: Any, client: redis.Redis
) -> None:
    you, lock, wanted = want()
    anyone = wait()
    accounts.shrink(["alice"])
    held("alice")
    assert wanted.result(GENEROUS)
    you(lock, "release")
    assert len(in_line(client)) == 1
    held("bob")
    assert got(anyone) == "bob"


@told
@pytest.mark.parametrize("how", ["gave up", "was killed"])
def test_a_waiter_for_one_member_that_is_gone_leaves_it_to_waiters_for_any(
    how: str, held: Held, wait: Wait, me: Any, ghost: Ghosts, client: redis.Redis
) -> None:
    if how == "gave up":
        assert not me(Lock(ALICE, ttl=TTL), "acquire", blocking_timeout=0.1)
    else:
        ghost(alive=False).queue("1" * 22, name=ALICE, ttl=TTL)
    anyone = wait()
    held("alice")
    assert got(anyone) == "alice"
    assert client.zcard(WANTED) == 0


def test_a_polling_waiter_for_one_member_comes_before_newcomers_for_any(accounts: LockPool, me: Any, want: Any) -> None:
    accounts.assign(["alice"])
    member = me(accounts, "acquire", ttl=TTL)
    you, lock, wanted = want(poll=True, backoff=ConstantBackoff(0.3))
    me(member, "release")
    refuses(me, accounts)
    assert wanted.result(GENEROUS)
    you(lock, "release")
    assert me(accounts, "acquire", blocking_timeout=0).key == "alice"


# -- leases that end -------------------------------------------------------------------------------------------------


def test_a_waiter_for_one_member_gets_it_when_its_lease_ends_whoever_asks_for_any(
    me: Any, crowd: Crowd, accounts: LockPool, want: Any
) -> None:
    accounts.assign(["alice"])
    me(accounts, "acquire", ttl=1, auto_renew=False)
    _, _, wanted = want()
    you = crowd()
    while not wanted.done():
        refuses(you, accounts)
    assert wanted.result() is True


@pytest.mark.complete
@pytest.mark.parametrize("how", ["gave up", "was killed"])
def test_a_member_whose_lease_ends_is_free_if_its_only_waiter_is_gone(
    how: str, accounts: LockPool, crowd: Crowd, ghost: Ghosts, client: redis.Redis
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
@pytest.mark.parametrize("end", ["release", "lapse"])
def test_a_member_is_not_lost_with_a_polling_waiter_for_it(
    end: str, accounts: LockPool, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    accounts.assign(["alice"])
    member = accounts.acquire(ttl=TTL, poll=True)
    worker = start("Lock(name, poll=True).acquire()", name=ALICE)
    eventually(lambda: queued(client, ALICE) == 1, within=60)
    worker.signal(signal.SIGSTOP)
    if end == "release":
        member.release()
    else:
        leases_end(client, "alice")
        assert not Lock(ALICE).acquire(blocking=False)  # one of those who find that the lease has ended
    worker.kill()
    assert accounts.acquire(blocking_timeout=GENEROUS).key == "alice"


def test_a_member_is_not_kept_for_those_who_asked_for_it_before_the_clock_jumped_back(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    seconds, _ = raw(pool.using or "default", "TIME")
    raw(pool.using or "default", "ZADD", WANTED, f"{int(seconds) + 3600}000000", "alice")
    assert me(pool, "acquire", blocking_timeout=GENEROUS).key == "alice"
