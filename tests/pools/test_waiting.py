"""Waiting for any member or for a particular one, ``Lock(lock_name("pool", name, key))``: who is served, and when."""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockNotAcquired, LockPool, force_release
from tests.helpers.actors import GENEROUS, Crowd, Ghost, until
from tests.helpers.pools import (
    ANY,
    POOL,
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
    poll,
    refuses,
)
from tests.helpers.processes import Worker
from tests.helpers.state import queued
from tests.inside import ALREADY, GRANTED

Ghosts = Callable[..., Ghost]
Start = Callable[..., Worker]

# who is served was told, or looked when a lease ended
pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

FIRST, SECOND = "1" * 22, "2" * 22
ALICE, BOB = lock_of("alice"), lock_of("bob")

EVENTS: dict[str, list[tuple[Any, ...]]] = {
    "a release": [("release", "bob")],
    "a forced release": [("force", BOB)],
    "a release after it was put in again": [("shrink", ["bob"]), ("extend", ["bob"]), ("release", "bob")],
    "the end of a suspension": [("suspend", "bob", 0.3), ("release", "bob")],
    "its resumption": [("suspend", "bob", TTL), ("release", "bob"), ("resume", "bob")],
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_member_that_becomes_free_goes_to_who_waits(
    event: str, held: Held, wait: Wait, accounts: LockPool, client: redis.Redis
) -> None:
    waiter = wait()
    others: dict[str, Any] = {"release": held, "force": force_release}
    for call, *args in EVENTS[event]:
        (others.get(call) or getattr(accounts, call))(*args)
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
    held("alice")
    assert got(stays) == "alice"


@pytest.mark.parametrize("name", [ANY, ALICE], ids=["any", "this one"])
def test_nobody_overtakes_who_was_handed_a_member_even_if_the_message_was_lost_and_who_leaves_passes_it_on(
    name: str, me: Any, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    leaves, wants = ghost(), ghost()
    with accounts.acquire(ttl=TTL):
        leaves.queue(FIRST, name=ANY, ttl=TTL)
    refuses(me, accounts)
    found = leaves.queue(FIRST, name=ANY, ttl=TTL)
    assert (found.state, found.member) == (ALREADY, "alice")
    assert leaves.hear()[0] == "g"
    wants.queue(SECOND, name=name, ttl=TTL)
    leave(leaves, FIRST)
    assert wants.hear()[0] == "g"
    assert holder(client, "alice") == SECOND


@pytest.mark.parametrize("leaves", [False, True], ids=["looks", "leaves"])
def test_a_member_is_free_again_when_its_holder_finds_first_that_a_handoff_has_ended(
    leaves: bool, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    """A process that was stopped when a member was handed to it continues, and looks or gives up."""
    accounts.assign(["alice"])
    there = ghost()
    with accounts.acquire(ttl=TTL):
        there.queue(FIRST, name=ANY, ttl=TTL)
    leases_end(client, "alice")
    if not leaves:
        there.queue(FIRST, name=ANY, ttl=TTL)
    leave(there, FIRST)
    assert audit(client).lost == set()
    assert accounts.acquire(blocking_timeout=0).key == "alice"


def test_one_member_is_left_for_a_polling_head_and_all_others_are_handed_out(
    held: Held, wait: Wait, me: Any, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    polls = ghost()
    poll(polls, FIRST)
    behind = [wait() for _ in range(2)]
    held("alice")
    assert len(in_line(client)) == 3  # it is left for the first waiter
    held("bob")
    assert got(behind[0]) in ("alice", "bob")
    accounts.extend(["carol", "dave"])
    assert got(behind[1]) in ("carol", "dave")
    assert in_line(client) == [FIRST]
    me(accounts, "acquire", blocking_timeout=0)  # a newcomer gets the other one
    refuses(me, accounts)
    assert poll(polls, FIRST).state == GRANTED


@pytest.mark.complete
@pytest.mark.parametrize("code", ["Lock(alice, poll=True).acquire()", "LockPool(name).acquire(poll=True)"])
def test_a_member_is_not_lost_with_a_dead_process_that_polls_for_it(
    code: str, held: Held, start: Start, wait: Wait, client: redis.Redis
) -> None:
    worker = start(code, name=POOL, alice=ALICE)
    until(lambda: queued(client, ALICE) + len(in_line(client)) == 1, within=60)
    worker.signal(signal.SIGSTOP)
    held("alice")
    worker.kill()
    assert got(wait()) == "alice"


def test_a_thousand_dead_waiters_are_dropped_when_members_become_free(
    held: Held, wait: Wait, ghost: Ghosts, client: redis.Redis
) -> None:
    """In several calls, as each drops only a few hundred."""
    for process in range(3):
        there = ghost(alive=False)
        for number in range(334):
            there.queue(f"{process}{number:03}".ljust(22, "x"), name=ANY)
    waiter = wait()
    held("alice")
    assert got(waiter) == "alice"
    assert in_line(client) == []


def test_a_lock_on_a_member_and_a_checkout_of_it_exclude_each_other(me: Any, crowd: Crowd, pool: LockPool) -> None:
    lock, you = Lock(ALICE, using=pool.using), crowd()
    assert me(lock, "acquire")
    assert me(pool, "keys") == []
    assert me(pool, "extend", ["alice", "bob"]) == 2  # while it is locked
    assert me(pool, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, pool)
    me(lock, "release")
    member = me(pool, "acquire", blocking_timeout=0)
    assert member.key == "alice"
    assert (me(lock, "locked"), me(lock, "owned")) == (True, False)  # held through another object
    assert not you(lock, "owned")
    assert not you(lock, "acquire", blocking_timeout=0)
    me(member, "release")
    assert you(lock, "acquire", blocking_timeout=0)
    me(pool, "clear")
    you(lock, "release")
    refuses(me, pool)


def test_a_member_is_detached_and_adopted_like_any_lock_and_leaves_no_trace(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    token = me(me(accounts, "acquire"), "detach")
    for _ in range(2):
        lock = Lock(ALICE, token=token)
        assert me(lock, "acquire")
        assert me(lock, "extend", 10)
        assert me(lock, "detach") == token
        assert audit(client).held == {"alice"}
    me(Lock(ALICE, token=token), "release")
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []


@pytest.fixture
def want(crowd: Crowd, client: redis.Redis) -> Callable[..., tuple[Any, Lock, Future[bool]]]:
    """Somebody queues for alice, and for no other member: who, the lock, and what acquire() returns."""

    def want(**options: Any) -> tuple[Any, Lock, Future[bool]]:
        you, lock = crowd(), Lock(ALICE, ttl=TTL, **options)
        wanted = you.start(lock, "acquire")
        until(lambda: queued(client, ALICE) == 1)
        return you, lock, wanted

    return want


@pytest.mark.parametrize("taken_out", [False, True], ids=["", "taken out"])
def test_a_waiter_for_one_member_comes_before_waiters_for_any_and_blocks_no_other_member(
    taken_out: bool, held: Held, wait: Wait, want: Any, accounts: LockPool
) -> None:
    first, (you, lock, wanted), second = wait(), want(), wait()
    accounts.shrink(["alice"] if taken_out else [])
    held("bob")
    assert got(first) == "bob"
    held("alice")
    assert wanted.result(GENEROUS)
    assert not second.done()
    you(lock, "release")
    accounts.extend(["carol"])
    assert got(second) == ("carol" if taken_out else "alice")


@pytest.mark.parametrize(("end", "options"), [("release", {"poll": True}), ("lapse", {})], ids=["polls", "lapse"])
@pytest.mark.complete
def test_a_waiter_for_one_member_comes_before_newcomers_for_any(
    end: str, options: dict[str, Any], accounts: LockPool, me: Any, crowd: Crowd, want: Any
) -> None:
    accounts.assign(["alice"])
    member = me(accounts, "acquire", ttl=TTL if end == "release" else 4, auto_renew=False)
    _, _, wanted = want(**options)
    if end == "release":
        me(member, "release")
    you = crowd()
    while not wanted.done():
        refuses(you, accounts)
    assert wanted.result() is True


@pytest.mark.parametrize(("gone", "end"), [("gave up", "release"), ("gave up", "lapse"), ("was killed", "release")])
def test_a_waiter_for_one_member_that_is_gone_leaves_it_to_waiters_for_any(
    gone: str, end: str, held: Held, wait: Wait, me: Any, accounts: LockPool, ghost: Ghosts, client: redis.Redis
) -> None:
    if gone == "gave up":
        assert not me(Lock(ALICE, ttl=TTL), "acquire", blocking_timeout=0.1)
    else:
        ghost(alive=False).queue("1" * 22, name=ALICE, ttl=TTL)
    anyone = wait()
    if end == "release":
        held("alice")
    else:
        leases_end(client, "alice")
        refuses(me, accounts)  # one of those who find that the lease has ended
    assert got(anyone) == "alice"
    assert client.zcard(WANTED) == 0


def test_more_waiters_than_one_script_serves_get_the_members_that_are_added(
    crowd: Crowd, accounts: LockPool, client: redis.Redis
) -> None:
    accounts.clear()
    names = [f"m{number}" for number in range(105)]
    waiting = [crowd().start(LockPool("accounts"), "acquire", ttl=TTL) for _ in names]
    until(lambda: len(in_line(client)) == len(names))
    accounts.extend(names)
    assert len({member.result(GENEROUS).name for member in waiting}) == len(names)
