"""Waiting for a member of a pool: who is served, by which event, and in which order.

Unless a test says otherwise, no looks are scheduled: a waiter that is served was told.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import as_completed
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.management import call_command
from redis.backoff import ConstantBackoff

from django_redislock import LockNotAcquired, LockPool, force_release
from django_redislock.store.calls import ALREADY, GRANTED
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.pools import (
    ANY,
    BUSY,
    POOL,
    TTL,
    WAITS,
    Held,
    Wait,
    audit,
    got,
    in_line,
    leave,
    leftovers,
    lock_of,
    poll,
)
from tests.helpers.processes import Worker

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


# -- who is served ---------------------------------------------------------------------------------------------------


def test_a_release_serves_who_waits(held: Held, wait: Wait, client: redis.Redis) -> None:
    waiter = wait()
    held("bob")
    assert got(waiter) == "bob"
    assert audit(client).held == {"alice", "bob"}


def test_new_members_serve_all_waiters(wait: Wait, client: redis.Redis) -> None:
    waiters = [wait() for _ in range(5)]
    LockPool(POOL).extend(f"key-{number}" for number in range(7))
    assert {got(waiter) for waiter in waiters} == {f"key-{number}" for number in range(5)}
    assert audit(client).free == {"key-5", "key-6"}
    assert in_line(client) == []


@pytest.mark.parametrize("how", ["assign", "extend"])
def test_one_step_serves_no_more_than_a_hundred_so_there_may_be_several(
    how: str, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    there = ghost()
    for number in range(350):
        there.queue(f"{number:03}".ljust(22, "x"), name=ANY)
    assert getattr(LockPool(POOL), how)(f"key-{number}" for number in range(400)) == 400
    assert in_line(client) == []
    assert len(audit(client).held) == 350


@pytest.mark.complete
def test_the_end_of_a_lease_serves_who_waits(accounts: LockPool, start: Start, wait: Wait) -> None:
    """The holder is killed, so there is no message: the waiter looks when the lease ends."""
    worker = start(WAITS, name=POOL, count=2, ttl=1, keeps=True, look_every=1000.0)
    worker.expect("got")
    worker.expect("got")
    waiters = [wait(), wait()]
    worker.kill()
    began = monotonic()
    assert {got(waiter) for waiter in waiters} == {"alice", "bob"}
    assert monotonic() - began < 10


@pytest.mark.usefixtures("held")
def test_a_forced_release_serves_who_waits(wait: Wait) -> None:
    waiter = wait()
    assert force_release(lock_of("bob"))
    assert got(waiter) == "bob"


@pytest.mark.usefixtures("held")
def test_the_command_clear_serves_who_waits(wait: Wait) -> None:
    waiters = [wait(), wait()]
    call_command("redislocks", "clear", "--match", "pool:accounts:*", "--noinput")
    assert {got(waiter) for waiter in waiters} == {"alice", "bob"}


def test_a_member_that_was_taken_out_serves_nobody(
    held: Held, accounts: LockPool, wait: Wait, client: redis.Redis
) -> None:
    waiter = wait()
    accounts.shrink(["bob"])
    held("bob")
    assert len(in_line(client)) == 1
    held("alice")
    assert got(waiter) == "alice"
    assert accounts.keys() == ["alice"]


def test_a_member_that_was_taken_out_and_put_in_again_while_it_was_held_serves_who_waits(
    held: Held, accounts: LockPool, wait: Wait, client: redis.Redis
) -> None:
    waiter = wait()
    accounts.shrink(["bob"])
    accounts.extend(["bob"])
    assert len(in_line(client)) == 1  # it is not free
    held("bob")
    assert got(waiter) == "bob"


def test_many_are_served(
    crowd: Crowd, accounts: LockPool, held: Held, client: redis.Redis, eventually: Eventually
) -> None:
    people = {(person := crowd()).start(accounts, "acquire", ttl=TTL): person for _ in range(20)}
    eventually(lambda: len(in_line(client)) == 20)
    held("bob")
    for wanted in as_completed(people, GENEROUS):
        assert got(wanted) == "bob"
        people[wanted](wanted.result(), "release")
    held("alice")
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []


# -- in which order --------------------------------------------------------------------------------------------------


def test_first_come_first_served_over_all_members(held: Held, wait: Wait, accounts: LockPool) -> None:
    waiters = [wait() for _ in range(6)]
    held("alice")
    held("bob")
    accounts.extend(["carol", "dave", "erin", "fred"])
    assert [got(waiter) for waiter in waiters] == ["alice", "bob", "carol", "dave", "erin", "fred"]


def test_nobody_overtakes_waiters_of_a_pool(accounts: LockPool, me: Any, ghost: Callable[..., Ghost]) -> None:
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue("t" * 22, name=ANY)
    assert there.hear()[0] == "g"
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)


def test_a_waiter_that_was_served_and_asks_again_gets_the_same_member(
    held: Held, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """Its message was lost, but it finds its member as long as the lease lasts."""
    there = ghost()
    there.queue("1" * 22, ttl=TTL, name=ANY)
    held("alice")
    assert (client.zscore(BUSY, "alice") or 0.0) > server_time(client) + 60_000_000
    found = there.queue("1" * 22, ttl=TTL, name=ANY)
    assert (found.state, found.member) == (ALREADY, "alice")


# -- who leaves ------------------------------------------------------------------------------------------------------


def test_a_waiter_that_gives_up_leaves_nothing_and_the_next_one_is_served(
    held: Held, wait: Wait, client: redis.Redis
) -> None:
    leaves = wait(blocking_timeout=0.3)
    stays = wait()
    with pytest.raises(LockNotAcquired):
        leaves.result(GENEROUS)
    assert len(in_line(client)) == 1
    held("alice")
    assert got(stays) == "alice"


def test_a_waiter_that_was_handed_a_member_and_leaves_passes_it_on(
    held: Held, wait: Wait, ghost: Callable[..., Ghost]
) -> None:
    there = ghost()
    there.queue("t" * 22, name=ANY)
    waiter = wait()
    held("alice")
    assert there.hear()[0] == "g"
    leave(there, "t" * 22)
    assert got(waiter) == "alice"


# -- behind one who polls --------------------------------------------------------------------------------------------


def test_one_member_is_left_for_a_polling_head_and_all_others_are_handed_out(
    held: Held, wait: Wait, accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    poll(ghost(), "p" * 22)
    behind = [wait() for _ in range(3)]
    held("alice")
    assert len(in_line(client)) == 4  # it is left for the first waiter
    held("bob")
    assert got(behind[0]) in ("alice", "bob")
    accounts.extend(["carol", "dave", "erin"])
    assert {got(waiter) for waiter in behind[1:]} < {"carol", "dave", "erin"}
    assert in_line(client) == ["p" * 22]
    assert len(audit(client).free) == 2


def test_newcomers_get_the_members_that_are_not_left_for_a_polling_waiter(
    held: Held, ghost: Callable[..., Ghost], me: Any, accounts: LockPool
) -> None:
    there = ghost()
    poll(there, "p" * 22)
    held("alice")
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)
    held("bob")
    assert me(accounts, "acquire", blocking_timeout=0).key in ("alice", "bob")
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", blocking_timeout=0)
    assert poll(there, "p" * 22).state == GRANTED


def test_a_polling_waiter_gets_its_member_at_its_next_look_whoever_came_meanwhile(
    held: Held, wait: Wait, accounts: LockPool
) -> None:
    polls = wait(poll=True, backoff=ConstantBackoff(0.5))
    behind = [wait() for _ in range(2)]
    held("alice")
    assert got(polls) == "alice"
    held("bob")
    assert got(behind[0]) == "bob"
    assert not behind[1].done()


@pytest.mark.complete
def test_a_dead_polling_waiter_blocks_its_member_only_until_it_has_missed_its_looks(
    held: Held, start: Start, wait: Wait, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start("say('waits'); LockPool(name).acquire(poll=True)", name=POOL)
    eventually(lambda: len(in_line(client)) == 1, within=60)
    behind = wait()
    worker.signal(signal.SIGSTOP)
    held("alice")
    began = monotonic()
    assert got(behind) == "alice"
    assert monotonic() - began < 10
    worker.kill()
