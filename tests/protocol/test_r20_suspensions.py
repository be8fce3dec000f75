"""R20: a suspended lock is granted to nobody. Its holder keeps it to the end, and waiters keep their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockStatus
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.state import INDEX, NAME, TOKEN, leftovers
from tests.inside import PREFIX, Ears
from tests.protocol.scene import LONG, MEMBER, Ear, Eventually, Line, listed, vanish

each = pytest.mark.parametrize("name", [NAME, MEMBER], ids=["lock", "member"])
nobody_looks = pytest.mark.usefixtures("nobody_looks")

SUSPENDED = "~"
WAITERS, HELD = f"{PREFIX}waiters:{NAME}", f"{PREFIX}held:pool:accounts:"


def lapse(client: redis.Redis, name: str) -> None:
    """End the holder's lease now, without any message."""
    if name == NAME:
        vanish(client, name)
    else:
        client.zadd(f"{PREFIX}busy:pool:accounts:", {"alice": server_time(client) - 1}, xx=True)


def queue_of(name: str) -> str:
    return f"{PREFIX}queue:{name}"


@each
def test_nobody_gets_a_suspended_lock(crowd: Crowd, name: str) -> None:
    me, you = crowd(), crowd()
    me(Lock(name), "suspend", LONG)
    for asks in (Lock(name), Lock(name, poll=True), Lock(name, token=TOKEN), Lock(name, token="-" * 22)):
        assert not you(asks, "acquire", blocking=False)
        assert not you(asks, "acquire", blocking_timeout=0.05)
        assert you(asks, "status") is LockStatus.UNAVAILABLE
    assert me(Lock(name), "status") is LockStatus.UNAVAILABLE


@each
def test_resuming_frees_the_lock_and_leaves_nothing_behind(crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you = crowd(), crowd()
    me(Lock(name), "suspend", LONG)
    assert you(Lock(name), "resume") is True
    assert you(Lock(name), "resume") is False
    assert leftovers(client) == []
    assert me(Lock(name), "status") is LockStatus.FREE
    assert me(Lock(name), "acquire", blocking=False)


@each
def test_resuming_a_held_lock_that_is_not_suspended_does_nothing(crowd: Crowd, name: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    me(lock, "acquire")
    assert you(Lock(name), "resume") is False
    assert me(lock, "owned")


@each
@pytest.mark.parametrize("end", ["release", "bearer", "lapse", "renewal"])
def test_a_holder_keeps_the_lock_and_then_the_suspension_begins(
    end: str, crowd: Crowd, client: redis.Redis, name: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(name, ttl=LONG)
    me(lock, "acquire")
    you(Lock(name), "suspend", 2 * LONG)
    assert me(lock, "extend", 60)
    assert me(lock, "status") is LockStatus.LOCKED
    assert you(Lock(name), "status") is LockStatus.UNAVAILABLE
    if end == "release":
        me(lock, "release")
    elif end == "bearer":
        adopted = Lock(name, token=me(lock, "detach"))
        assert you(adopted, "acquire", blocking=False)
        you(adopted, "release")
    else:
        lapse(client, name)
        if end == "renewal":
            with pytest.raises(LockLost):
                me(lock, "extend", 1)
    assert not you(Lock(name), "acquire", blocking=False)
    info = you(Lock(name), "info")
    assert not info.held
    assert LONG < info.lease_left <= 2 * LONG
    assert you(Lock(name), "resume")
    assert you(Lock(name), "acquire", blocking=False)


@each
def test_a_planned_suspension_can_be_resumed_before_it_begins(crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    me(lock, "acquire")
    you(Lock(name), "suspend", LONG)
    assert you(Lock(name), "resume") is True
    assert you(Lock(name), "resume") is False
    assert me(lock, "owned")
    me(lock, "release")
    assert leftovers(client) == []


@each
def test_a_planned_suspension_that_ends_before_the_hold_never_begins(
    crowd: Crowd, client: redis.Redis, name: str, eventually: Eventually
) -> None:
    me, you, lock = crowd(), crowd(), Lock(name, ttl=LONG)
    me(lock, "acquire")
    you(Lock(name), "suspend", 0.05)
    eventually(lambda: you(Lock(name), "info").suspension is None)
    me(lock, "release")
    assert you(Lock(name), "acquire", blocking=False)


@each
def test_the_last_suspension_counts(crowd: Crowd, name: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    me(lock, "acquire")
    for seconds, note in ((LONG, "one"), (2 * LONG, "two"), (60, "three")):
        you(lock, "suspend", seconds, note=note)
        suspension = you(lock, "info").suspension
        assert (suspension.note, round(suspension.left / 10)) == (note, seconds / 10)
    me(lock, "release")
    for seconds, note in ((LONG, "four"), (60, "five")):
        you(lock, "suspend", seconds, note=note)
        info = you(lock, "info")
        assert (info.note, info.suspension.note, round(info.lease_left / 10)) == (note, note, seconds / 10)


# -- those who wait -------------------------------------------------------------------------------------------------


@each
@nobody_looks
def test_the_first_in_the_queue_is_served_at_once_when_it_is_resumed(
    line: Line, crowd: Crowd, listening: Callable[[], Ears], client: redis.Redis, name: str
) -> None:
    listening()
    me = crowd()
    me(Lock(name), "suspend", LONG)
    first, second = (line.join(Lock(name, ttl=LONG)) for _ in range(2))
    before = listed(client, queue_of(name))
    me(Lock(name), "suspend", 2 * LONG)
    assert listed(client, queue_of(name)) == before
    assert me(Lock(name), "resume")
    assert first.result()
    assert listed(client, queue_of(name)) == before[1:]
    first.release()
    assert second.result()


@each
@nobody_looks
def test_the_first_in_the_queue_is_served_when_the_suspension_ends(
    line: Line, crowd: Crowd, listening: Callable[[], Ears], name: str
) -> None:
    """The waiters knew only the end of the holder's lease, which is long after that."""
    listening()
    me, you, lock = crowd(), crowd(), Lock(name, ttl=LONG)
    me(lock, "acquire")
    first, second = (line.join(Lock(name, ttl=LONG)) for _ in range(2))
    you(Lock(name), "suspend", 1)
    me(lock, "release")
    assert first.result()
    first.release()
    assert second.result()


@each
@nobody_looks
def test_waiters_are_told_of_a_suspension_that_is_cut_short(
    line: Line, crowd: Crowd, listening: Callable[[], Ears], name: str
) -> None:
    listening()
    me = crowd()
    me(Lock(name), "suspend", LONG)
    first = line.join(Lock(name, ttl=LONG))
    me(Lock(name), "suspend", 0.5)
    assert first.result()


@each
def test_no_entry_of_a_waiter_is_lost_while_a_suspension_is_planned(
    client: redis.Redis, ghost: Callable[..., Ghost], name: str
) -> None:
    """Their entries share a key with the planned suspension, which may end before or after they expire."""
    there, holder = ghost(), "h".ljust(22, "x")
    there.queue(holder, name=name, ttl=LONG)
    for seconds in (1, LONG):
        there.suspend(name, seconds)
        there.queue(f"w{seconds:g}".ljust(22, "x"), name=name)
        assert client.pttl(f"{PREFIX}waiters:{name}") > 50_000
        assert client.pttl(queue_of(name)) > 50_000
    if name == NAME:
        assert client.pttl(WAITERS) > LONG * 900
    assert len(listed(client, queue_of(name))) == 2


def test_a_handoff_that_was_released_into_a_suspension_makes_no_process_suspect(
    crowd: Crowd, line: Line, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    first = line.join(Lock(NAME, ttl=LONG))
    me(lock, "release")
    assert first.result()
    me(Lock(NAME), "suspend", LONG)
    first.release()
    assert not client.hexists(WAITERS, "!")
    assert me(Lock(NAME), "resume")
    assert leftovers(client) == []


# -- what ends it ---------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("held", [False, True])
def test_a_force_release_ends_it(held: bool, crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you = crowd(), crowd()
    if held:
        me(Lock(name), "acquire")
    me(Lock(name), "suspend", LONG)
    assert you(django_redislock, "force_release", name)
    assert you(django_redislock, "force_release", name) is None
    assert leftovers(client) == []
    assert you(Lock(name), "acquire", blocking=False)


def test_a_force_release_ends_one_that_was_planned_for_a_lock_whose_lease_has_ended(client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    lock.suspend(LONG)
    value = client.hget(WAITERS, SUSPENDED)
    vanish(client, NAME)
    assert isinstance(value, bytes)
    assert inside.own_process().force(NAME) == value.partition(b" ")[2]
    assert leftovers(client) == []


@each
@pytest.mark.parametrize("held", [False, True])
def test_a_seizure_ends_it(held: bool, crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    if held:
        me(Lock(name), "acquire")
    me(Lock(name), "suspend", LONG)
    you(lock, "seize")
    you(lock, "release")
    assert leftovers(client) == []


# -- what is said ---------------------------------------------------------------------------------------------------


@each
def test_a_suspended_lock_is_in_the_index_until_the_suspension_ends(
    crowd: Crowd, client: redis.Redis, name: str
) -> None:
    me, lock = crowd(), Lock(name, ttl=60)
    me(lock, "acquire")
    me(lock, "suspend", LONG)
    me(lock, "release")
    assert client.zscore(INDEX, name) > server_time(client) + (LONG - 60) * 1e6  # type: ignore[operator]


@each
def test_only_the_first_waiter_is_told(crowd: Crowd, ghost: Callable[..., Ghost], ear: Ear, name: str) -> None:
    there = ghost()
    crowd()(Lock(name), "suspend", LONG)
    for id in "ab":
        there.queue(id.ljust(22, "x"), name=name)
    ear.heard()
    crowd()(Lock(name), "suspend", LONG)
    assert ear.heard() == [["w", "a".ljust(22, "x"), name]]


FORGED = ["", "soon", "99999999999999999999 x", f"{'9' * 400} x", "-1 x", "nan x", "1 x", "1795366938963827"]


@pytest.mark.parametrize("text", FORGED, ids=lambda text: text[:20])
@each
def test_a_foreign_value_is_not_mistaken_for_a_planned_suspension(
    text: str, client: redis.Redis, crowd: Crowd, name: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    me(lock, "acquire")
    client.hset(WAITERS if name == NAME else HELD, SUSPENDED if name == NAME else ":alice", text)
    assert you(Lock(name), "info").suspension is None
    assert you(Lock(name), "resume") is False
    me(lock, "release")
    assert you(Lock(name), "acquire", blocking_timeout=GENEROUS)


@each
async def test_the_async_versions_do_the_same(name: str) -> None:
    lock: Any = Lock(name)
    await lock.asuspend(LONG, note="later")
    assert not await lock.aacquire(blocking=False)
    assert await lock.aresume() is True
    assert await lock.aacquire(blocking=False)
    await lock.arelease()
