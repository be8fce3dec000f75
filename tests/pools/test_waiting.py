"""Waiting for a member: who is served, by what, in which order, and what the dead and the stopped cost the others.

Unless a test says otherwise, no looks are scheduled: a waiter that is served was told.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import as_completed
from typing import Any

import pytest
import redis
from django.core.management import call_command
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockNotAcquired, LockPool, force_release
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.pools import (
    ANY,
    BUSY,
    LINE_WAITERS,
    POOL,
    TTL,
    WAITS,
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
    poll,
    refuses,
)
from tests.helpers.processes import Worker
from tests.inside import ALREADY, GRANTED, limit

Eventually = Callable[..., Any]
Ghosts = Callable[..., Ghost]
Start = Callable[..., Worker]

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

FIRST, SECOND, THIRD = "1" * 22, "2" * 22, "3" * 22
ALICE = lock_of("alice")


# -- who is served, and by what --------------------------------------------------------------------------------------


def put_in_again(pool: LockPool, release: Held) -> None:
    pool.shrink(["bob"])
    pool.extend(["bob"])  # held, so it serves nobody yet
    release("bob")


def seized_and_released(pool: LockPool, release: Held) -> None:
    lock = Lock(lock_of("bob"), ttl=TTL)
    lock.seize()
    assert lock.owned()
    lock.release()


def resumed(pool: LockPool, release: Held) -> None:
    pool.suspend("bob", TTL)
    release("bob")
    assert pool.resume("bob")


def suspended_for_a_second(pool: LockPool, release: Held) -> None:
    pool.suspend("bob", 1)
    release("bob")


EVENTS: dict[str, Callable[[LockPool, Held], object]] = {
    "a release": lambda pool, release: release("bob"),
    "a forced release": lambda pool, release: force_release(lock_of("bob")),
    "clear": lambda pool, release: call_command("redislocks", "clear", "--match", lock_of("b*"), "--noinput"),
    "a release after it was put in again": put_in_again,
    "a release of its lock": seized_and_released,
    "the end of a suspension": suspended_for_a_second,
    "its resumption": resumed,
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_member_that_becomes_free_goes_to_who_waits(
    event: str, held: Held, wait: Wait, accounts: LockPool, client: redis.Redis
) -> None:
    waiter = wait()
    EVENTS[event](accounts, held)
    assert got(waiter) == "bob"
    assert audit(client).held == {"alice", "bob"}


def test_first_come_first_served_over_all_members_and_new_ones(
    held: Held, wait: Wait, accounts: LockPool, client: redis.Redis
) -> None:
    waiters = [wait() for _ in range(6)]
    held("alice")
    held("bob")
    accounts.extend(["carol", "dave", "erin", "fred", "gina"])
    assert [got(waiter) for waiter in waiters] == ["alice", "bob", "carol", "dave", "erin", "fred"]
    assert audit(client).free == {"gina"}
    assert in_line(client) == []


def test_many_are_served_one_after_the_other(
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


@pytest.mark.complete
def test_the_members_of_a_killed_process_all_go_to_waiters(
    start: Start, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """There is no message: the waiters look when the leases end."""
    pool, keys = LockPool(POOL), {f"key-{number}" for number in range(30)}
    pool.extend(keys)
    worker = start(WAITS, name=POOL, count=30, ttl=2, keeps=True, look_every=1000.0)
    eventually(lambda: len(audit(client).held) == 30, within=60)
    wanted = [crowd().start(pool, "acquire", ttl=TTL) for _ in range(30)]
    eventually(lambda: len(in_line(client)) == 30)
    worker.kill()
    assert {got(waiter) for waiter in wanted} == keys


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


def test_nobody_overtakes_who_was_handed_a_member(accounts: LockPool, me: Any, ghost: Ghosts) -> None:
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue(FIRST, name=ANY)
    assert there.hear()[0] == "g"
    refuses(me, accounts)


def test_a_waiter_whose_message_was_lost_finds_its_member_as_long_as_the_lease_lasts(
    held: Held, ghost: Ghosts, client: redis.Redis
) -> None:
    there = ghost()
    there.queue(FIRST, ttl=TTL, name=ANY)
    held("alice")
    assert (client.zscore(BUSY, "alice") or 0.0) > server_time(client) + 60_000_000
    found = there.queue(FIRST, ttl=TTL, name=ANY)
    assert (found.state, found.member) == (ALREADY, "alice")
    assert found.left > 60


# -- who leaves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"blocking_timeout": 0}, {"blocking_timeout": 0.1}, {"blocking_timeout": 0.1, "poll": True}],
    ids=["at once", "later", "polls"],
)
def test_a_waiter_that_gives_up_is_in_no_queue_and_the_next_one_is_served(
    options: dict[str, Any], held: Held, wait: Wait, me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    with pytest.raises(LockNotAcquired):
        me(accounts, "acquire", **options)
    assert leftovers(client) == ["busy:" + ANY, "held:" + ANY, "index", "took:" + ANY]
    stays = wait()
    assert len(in_line(client)) == 1
    held("alice")
    assert got(stays) == "alice"


@pytest.mark.parametrize("name", [ANY, ALICE], ids=["any", "this one"])
def test_a_waiter_that_was_handed_a_member_and_leaves_passes_it_on_to_who_wants(
    name: str, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    leaves, wants = ghost(), ghost()
    with accounts.acquire(ttl=TTL):
        leaves.queue(FIRST, name=ANY, ttl=TTL)
    assert leaves.hear()[0] == "g"
    wants.queue(SECOND, name=name, ttl=TTL)
    leave(leaves, FIRST)
    assert wants.hear()[0] == "g"
    assert holder(client, "alice") == SECOND


# -- behind one who polls --------------------------------------------------------------------------------------------


def test_one_member_is_left_for_a_polling_head_and_all_others_are_handed_out(
    held: Held, wait: Wait, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    poll(ghost(), FIRST)
    behind = [wait() for _ in range(3)]
    held("alice")
    assert len(in_line(client)) == 4  # it is left for the first waiter
    held("bob")
    assert got(behind[0]) in ("alice", "bob")
    accounts.extend(["carol", "dave", "erin"])
    assert {got(waiter) for waiter in behind[1:]} < {"carol", "dave", "erin"}
    assert in_line(client) == [FIRST]
    assert len(audit(client).free) == 2


def test_newcomers_get_the_members_that_are_not_left_for_a_polling_waiter(
    held: Held, ghost: Ghosts, me: Any, accounts: LockPool
) -> None:
    there = ghost()
    poll(there, FIRST)
    held("alice")
    refuses(me, accounts)
    held("bob")
    assert me(accounts, "acquire", blocking_timeout=0).key in ("alice", "bob")
    refuses(me, accounts)
    assert poll(there, FIRST).state == GRANTED


def test_a_polling_waiter_gets_its_member_at_its_next_look_whoever_came_meanwhile(held: Held, wait: Wait) -> None:
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
    assert got(behind) == "alice"


# -- behind the dead and the stopped ---------------------------------------------------------------------------------


def grants(client: redis.Redis, channel: str, ear: Any) -> int:
    """How many grants the process with this channel was told of, as another subscriber has heard."""
    client.publish(channel, "end")
    messages = iter(lambda: (ear.get_message(timeout=GENEROUS) or {})["data"], b"end")
    return sum(isinstance(data, bytes) and data.startswith(b"g ") for data in messages)


def test_a_thousand_dead_waiters_are_dropped_when_members_become_free(
    held: Held, wait: Wait, ghost: Ghosts, client: redis.Redis
) -> None:
    """In several calls, as each drops only a few hundred."""
    for process in range(3):
        there = ghost(alive=False)
        for number in range(400):
            there.queue(f"{process}{number:03}".ljust(22, "x"), name=ANY)
    waiter = wait()
    held("alice")
    assert got(waiter) == "alice"
    assert in_line(client) == []


def test_a_stuck_process_whose_waiters_stand_between_others_costs_one_handoff_of_each_member(
    held: Held, wait: Wait, ghost: Ghosts, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)
    there, waiters = ghost(), []
    for number in range(8):
        there.queue(str(number) * 22, ttl=1, name=ANY)
        waiters.append(wait())
    held("alice")
    held("bob")
    for waiter in waiters:
        force_release(waiter.result(GENEROUS).name)
    assert 1 <= grants(client, there.channel, there.pubsub) <= 2


def test_a_process_is_no_longer_suspect_once_it_has_acquired_the_member_again(
    accounts: LockPool, wait: Wait, ghost: Ghosts, client: redis.Redis
) -> None:
    """A handoff to it has ended without a sign of life."""
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue(FIRST, ttl=TTL, name=ANY)
    assert there.hear()[:2] == ["g", FIRST]
    leases_end(client, "alice")
    assert there.queue(SECOND, ttl=TTL, name=ANY).state == GRANTED
    waiter = wait()
    there.queue(THIRD, ttl=TTL, name=ANY)
    leave(there, SECOND)
    force_release(waiter.result(GENEROUS).name)
    assert there.hear()[:2] == ["g", THIRD]


@pytest.mark.complete
def test_a_stopped_process_costs_one_handoff_of_each_member_and_its_waiters_come_back(
    held: Held,
    accounts: LockPool,
    start: Start,
    wait: Wait,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears that the handoffs came too late; no look of its own is scheduled."""
    limit(monkeypatch, look_every=0.2)
    stuck = start(WAITS, name=POOL, count=12, ttl=1.5, keeps=False, look_every=1000.0)
    eventually(lambda: len(in_line(client)) == 12, within=60)
    entries: list[Any] = client.hvals(LINE_WAITERS)
    channel = entries[0].decode().split()[0]
    with client.pubsub() as ear:
        ear.subscribe(channel)
        stuck.signal(signal.SIGSTOP)
        waiters = [wait() for _ in range(2)]
        held("alice")
        held("bob")  # both are handed to the stopped process
        assert {got(waiter) for waiter in waiters} == {"alice", "bob"}
        assert in_line(client) == []  # its other waiters were dropped
        assert 1 <= grants(client, channel, ear) <= 2
    stuck.signal(signal.SIGCONT)
    # two may find instead that they have lost what they had just been handed
    eventually(lambda: len(in_line(client)) >= 10)
    for key in ("alice", "bob"):
        force_release(lock_of(key))
    for _ in range(10):
        stuck.expect("gave")
