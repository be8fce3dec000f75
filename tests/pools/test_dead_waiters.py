"""What processes that die or are stopped while they wait for members cost the others."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import LockPool, force_release
from django_redislock.store.calls import ALREADY, GRANTED
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.pools import (
    ANY,
    HELD,
    LINE_WAITERS,
    POOL,
    TTL,
    WAITS,
    Held,
    Wait,
    audit,
    got,
    in_line,
    leases_end,
    leave,
)
from tests.helpers.processes import Worker
from tests.inside import limit, waiting

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, look_every=0.2)


def under_way(client: redis.Redis) -> list[bytes]:
    """The channels with unconfirmed handoffs of members."""
    values: list[Any] = client.hvals(HELD)
    return [value.split()[1] for value in values if value.split()[2] == b"p"]


def test_waiters_that_were_killed_are_passed_over(
    held: Held, start: Start, wait: Wait, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(WAITS, name=POOL, count=30, ttl=TTL, keeps=True, look_every=1000.0)
    eventually(lambda: len(in_line(client)) == 30)
    channel = client.hvals(LINE_WAITERS)[0].split()[0]
    worker.kill()
    eventually(lambda: client.pubsub_numsub(channel)[0][1] == 0)
    waiter = wait()
    held("alice")
    assert got(waiter) == "alice"
    assert in_line(client) == []


def test_a_thousand_dead_waiters_are_dropped_when_members_become_free(
    held: Held, wait: Wait, ghost: Callable[..., Ghost], client: redis.Redis, accounts: LockPool
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


@pytest.mark.complete
def test_a_stopped_process_costs_one_handoff_lease_in_all(
    held: Held,
    accounts: LockPool,
    start: Start,
    wait: Wait,
    client: redis.Redis,
    eventually: Eventually,
    looks_often: None,
) -> None:
    lease = 1.5
    stuck = start(WAITS, name=POOL, count=12, ttl=lease, keeps=False, look_every=0.2)
    eventually(lambda: len(in_line(client)) == 12)
    stuck.signal(signal.SIGSTOP)
    waiter = wait()
    began = monotonic()
    held("alice")
    held("bob")  # both are handed to the stopped process
    assert got(waiter) in ("alice", "bob")
    assert lease - 0.1 < monotonic() - began < 4 * lease  # not one for every two of its waiters
    assert in_line(client) == []  # its other waiters were dropped
    assert accounts.acquire(blocking_timeout=GENEROUS).key
    accounts.extend(["carol"])
    stuck.signal(signal.SIGCONT)
    for _ in range(12):  # they come back
        stuck.expect("gave")


@pytest.mark.complete
def test_a_process_that_never_continues_keeps_no_member_longer_than_a_handoff_lease(
    accounts: LockPool,
    crowd: Crowd,
    start: Start,
    wait: Wait,
    client: redis.Redis,
    eventually: Eventually,
    looks_often: None,
) -> None:
    """Each of its waiters is handed a member while the first handoff is unconfirmed; all these leases end by
    themselves."""
    accounts.extend(["carol", "dave"])
    you, lease = crowd(), 2.0
    members = [you(accounts, "acquire", ttl=TTL) for _ in range(4)]
    stuck = start(WAITS, name=POOL, count=40, ttl=lease, keeps=False, look_every=0.2)
    eventually(lambda: len(in_line(client)) == 40)
    stuck.signal(signal.SIGSTOP)
    waiters = [wait() for _ in range(4)]
    began = monotonic()
    for count, member in enumerate(members, 1):
        before = len(in_line(client))
        you(member, "release")
        if monotonic() - began < lease / 2:
            assert len(in_line(client)) == before - 1
            assert len(under_way(client)) == count
            assert len(set(under_way(client))) == 1
    last = monotonic()
    keys = {got(waiter) for waiter in waiters}
    assert monotonic() - last < 4 * lease  # not one lease for every four of its waiters
    assert keys == {"alice", "bob", "carol", "dave"}
    assert in_line(client) == []  # its other waiters were dropped
    for key in keys:
        force_release(f"{ANY}{key}")
    assert {accounts.acquire(blocking_timeout=0, ttl=TTL).key for _ in range(4)} == keys


def test_a_member_handed_to_a_stuck_process_is_free_after_the_handoff_lease(
    held: Held, accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis, eventually: Eventually
) -> None:
    there = ghost()
    for number in range(4):
        there.queue(str(number) * 22, ttl=0.5, name=ANY)
    held("alice")
    held("bob")
    eventually(lambda: accounts.health_check() == (0, 2))
    assert {accounts.acquire(blocking_timeout=GENEROUS, ttl=TTL).key for _ in range(2)} == {"alice", "bob"}
    assert in_line(client) == []


def test_waiters_between_those_of_a_stuck_process_also_lose_only_one_lease(
    held: Held, wait: Wait, ghost: Callable[..., Ghost], looks_often: None
) -> None:
    there = ghost()  # is subscribed, but does nothing
    waiters = []
    for number in range(8):
        there.queue(str(number) * 22, ttl=1, name=ANY)
        waiters.append(wait())
    began = monotonic()
    held("alice")
    held("bob")
    for waiter in waiters:
        force_release(waiter.result(GENEROUS).name)
    assert monotonic() - began < 4  # not one second for every two of its waiters


def test_a_live_process_is_no_longer_suspect(
    accounts: LockPool, wait: Wait, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """A handoff has ended without a sign of life from its process, but since then that has acquired the member
    again."""
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue("1" * 22, ttl=TTL, name=ANY)
    assert there.hear()[:2] == ["g", "1" * 22]
    leases_end(client, "alice")
    assert there.queue("2" * 22, ttl=TTL, name=ANY).state == GRANTED
    waiter = wait()
    there.queue("3" * 22, ttl=TTL, name=ANY)
    leave(there, "2" * 22)
    force_release(waiter.result(GENEROUS).name)
    assert there.hear()[:2] == ["g", "3" * 22]


def test_a_waiter_finds_the_member_that_it_was_handed_as_long_as_the_lease_lasts(
    held: Held, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """Whatever the reason why it missed the message."""
    there = ghost()
    there.queue("1" * 22, ttl=TTL, name=ANY)
    held("alice")
    found = there.queue("1" * 22, ttl=TTL, name=ANY)
    assert (found.state, found.member) == (ALREADY, "alice")
    assert found.left > 60


@pytest.mark.complete
def test_all_waiters_of_a_process_come_back_when_it_hears_that_a_handoff_came_too_late(
    accounts: LockPool, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """Others may have dropped all of them because the process was stopped, and no look is scheduled."""
    with accounts.acquire(ttl=TTL), accounts.acquire(ttl=TTL):
        stuck = start(WAITS, name=POOL, count=6, ttl=3, keeps=True, look_every=1000.0)
        eventually(lambda: len(in_line(client)) == 6)
        stuck.signal(signal.SIGSTOP)
    eventually(lambda: accounts.health_check() == (0, 2))
    with accounts.acquire(ttl=TTL), accounts.acquire(ttl=TTL):
        assert in_line(client) == []
        stuck.signal(signal.SIGCONT)
        eventually(lambda: len(in_line(client)) >= 4)
    taken: set[str] = set()
    # a member that it holds may be lost if it was stopped for long, and acquired again
    while taken != {"alice", "bob"}:
        taken.add(tuple(stuck.expect("got"))[1])
    assert waiting() == 0


@pytest.mark.complete
def test_the_members_of_a_killed_process_all_go_to_waiters(
    start: Start, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    pool = LockPool(POOL)
    keys = {f"key-{number}" for number in range(30)}
    pool.extend(keys)
    worker = start(WAITS, name=POOL, count=30, ttl=2, keeps=True, look_every=1000.0)
    eventually(lambda: len(audit(client).held) == 30)
    wanted = [crowd().start(pool, "acquire", ttl=TTL) for _ in range(30)]
    eventually(lambda: len(in_line(client)) == 30)
    worker.kill()
    assert {got(waiter) for waiter in wanted} == keys
