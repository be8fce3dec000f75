"""The members of a pool: putting in, taking out, replacing, suspending; their statuses. No holder loses one, and no
member gets lost."""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import redis

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockStatus,
    PoolMember,
    force_release,
    get_lock,
    list_locks,
)
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time, until
from tests.helpers.pools import (
    ANY,
    BUSY,
    FREE,
    FRESH,
    HELD,
    MEMBERS,
    POOL,
    TTL,
    WANTED,
    audit,
    leases_end,
    lock_of,
    refuses,
)
from tests.helpers.processes import Worker
from tests.helpers.state import count, known
from tests.inside import PREFIX, command, note_round_trips

OLD, NEW = [f"old-{number:05}" for number in range(20_000)], [f"new-{number:05}" for number in range(20_000)]
ODD = ["a:b", "a%3Ab", "x y", "größe", "日本", "{0}", "100%", "line\nbreak", "*", "\u3000", "-", "%"]


def test_members_are_put_in_taken_out_and_replaced(me: Any, pool: LockPool) -> None:
    for how, keys, changed, members in (
        ("extend", ["bob", "alice"], 2, ["alice", "bob"]),
        ("extend", iter(["alice", "carol", "carol"]), 1, ["alice", "bob", "carol"]),
        ("extend", [], 0, ["alice", "bob", "carol"]),
        ("shrink", ["bob", "dave"], 1, ["alice", "carol"]),
        ("shrink", [], 0, ["alice", "carol"]),
        ("assign", ("carol", "dave", "erin"), 2, ["carol", "dave", "erin"]),
        ("assign", ["carol"], 0, ["carol"]),
        ("shrink", ("alice", "carol"), 1, []),
    ):
        assert me(pool, how, keys) == changed
        assert me(pool, "keys") == members
        assert me(pool, "len") == len(members)
    me(pool, "extend", ["alice"])
    assert me(pool, "clear") is None
    assert me(pool, "keys") == []


async def test_a_pool_is_iterated_over_and_true_without_a_look(pool: LockPool, client: redis.Redis) -> None:
    before = count(client, "zcard"), count(client, "zrange")
    assert pool
    assert repr(pool) == "<LockPool 'accounts'>"
    assert (count(client, "zcard"), count(client, "zrange")) == before
    await pool.aextend(["bob", "alice"])
    assert [key async for key in pool] == await asyncio.to_thread(list, pool) == ["alice", "bob"]


def test_keys_may_be_any_text(me: Any, pool: LockPool) -> None:
    assert me(pool, "extend", ODD) == len(ODD)
    assert sorted(me(pool, "keys")) == sorted(ODD)
    assert all(me(pool, "contains", key) for key in ODD)
    assert not any(me(pool, "contains", key) for key in ("alice", 7))
    taken = [me(pool, "acquire", blocking_timeout=0) for _ in ODD]
    assert {member.name for member in taken} == {lock_of(member.key) for member in taken} == {*map(lock_of, ODD)}
    assert dict(me(pool, "items_locked_status")) == dict.fromkeys(ODD, LockStatus.LOCKED)
    assert me(pool, "shrink", ODD) == len(ODD)
    assert me(pool, "keys") == []


def test_pools_whose_names_look_alike_are_apart(pool: LockPool) -> None:
    pools = [LockPool(name, using=pool.using) for name in ("a", "a:b", "a%3Ab", "a b", "ä", "pool:a", "pool:a:")]
    for number, each in enumerate(pools):
        each.extend([f"key-{number}", "same"])
    for number, each in enumerate(pools):
        assert each.keys() == [f"key-{number}", "same"]
        assert each.acquire(blocking_timeout=0).key == f"key-{number}"
        assert each.health_check() == (1, 1)


@pytest.mark.complete
def test_a_process_that_dies_during_an_assign_changes_nothing_and_its_data_expires(
    accounts: LockPool, client: redis.Redis, start: Callable[..., Worker]
) -> None:
    worker = start("LockPool(name).assign(f'key-{n}' for n in range(300_000))", name=POOL)
    sent = until(lambda: client.keys(f"{PREFIX}next_*"), within=60)
    worker.kill()
    assert accounts.keys() == ["alice", "bob"]
    assert all(0 < int(client.pttl(key)) <= 60_000 for key in sent)


@pytest.mark.complete
def test_an_assign_of_any_size_takes_effect_at_one_moment() -> None:
    pool, old, new = LockPool(POOL), {*OLD}, {*NEW}
    pool.extend(old)
    seen = []
    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(lambda: [pool.assign(keys) for keys in (new, old, new)])
        while not replacing.done():
            seen.append({*pool.keys()} in (old, new))
        assert replacing.result() == [20_000] * 3
    assert len(seen) > 1
    assert all(seen)
    assert pool.acquire(blocking_timeout=0).key in new


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("alice", TypeError, "must be an iterable of str, not the single str 'alice'"),
        *((wrong, TypeError, f"must be an iterable of str, not {wrong}") for wrong in (None, 5)),
        (["alice", ""], TypeError, "must be a non-empty str, not ''"),
        ([b"alice"], TypeError, "must be a non-empty str, not b'alice'"),
        (["a" * 600], ValueError, r"The member name .* has 614 bytes; at most 512"),
    ],
)
def test_bad_members_are_refused_before_anything_is_sent(
    me: Any, accounts: LockPool, keys: Any, error: type[Exception], message: str
) -> None:
    for method in ("extend", "shrink", "assign"):
        with pytest.raises(error, match=message):
            me(accounts, method, keys)
    assert me(accounts, "keys") == ["alice", "bob"]


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (LockPool, " " * 200, "The pool name .* has 607 bytes; at most 512"),
        *((make, ANY, "is a pool, not a lock") for make in (Lock, force_release, get_lock)),
    ],
)
def test_bad_names_are_refused(make: Callable[[str], object], name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name)


def test_each_member_has_a_status(me: Any, crowd: Crowd, pool: LockPool) -> None:
    assert me(pool, "items_locked_status") == me(pool, "values_lock_status") == []
    assert me(pool, "health_check") == (0, 0)
    me(pool, "extend", ["alice", "bob", "carol", "dave"])
    assert me(pool, "acquire").key == "alice"
    assert crowd()(pool, "acquire").key == "bob"
    command("HSET", HELD, "carol", "somebody's", using=pool.using)
    statuses = [LockStatus.LOCKED, LockStatus.UNAVAILABLE, LockStatus.ERROR, LockStatus.FREE]
    assert me(pool, "items_locked_status") == list(zip(pool.keys(), statuses, strict=True))
    assert me(pool, "values_lock_status") == statuses
    assert me(pool, "health_check") == (3, 1)
    assert me(pool, "acquire", blocking_timeout=0).key == "dave"
    with pytest.raises(LockNotAcquired, match=r"at once: none is free\.$"):
        me(pool, "acquire", blocking_timeout=0)
    force_release(lock_of("carol"), using=pool.using)  # what somebody else has written never ends by itself
    assert me(pool, "acquire", blocking_timeout=GENEROUS).key == "carol"


def test_info_tells_who_holds_members_and_who_waits(me: Any, crowd: Crowd, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob", "carol"])
    held = [me(pool, "acquire").name for _ in range(2)]
    info = me(pool, "info")
    assert (info.name, info.members, info.free, info.waiters, info.queue) == (POOL, 3, 1, 0, ())
    assert [lock.name for lock in info.locks] == held == [lock_of("alice"), lock_of("bob")]
    me(pool, "shrink", ["carol"])
    wanted = crowd().start(pool, "acquire", blocking_timeout=GENEROUS)
    until(lambda: me(pool, "info").waiters == 1)
    (waiter,) = me(pool, "info").queue
    assert waiter.owner
    of_member = known(held[0], using=pool.using)
    assert (of_member.waiters, of_member.pool_waiters, len(of_member.pool_queue)) == (0, 1, 1)
    me(pool, "extend", ["zoe"])
    assert wanted.result(GENEROUS).key == "zoe"


@pytest.mark.parametrize(
    ("how", "keys", "end"),
    [("shrink", [["alice", "bob"]], "release"), ("assign", [[]], "lapse"), ("clear", [], "force")],
)
def test_a_held_member_that_is_taken_out_stays_with_its_holder_and_is_gone_after_that(
    me: Any, pool: LockPool, how: str, keys: list[Any], end: str
) -> None:
    me(pool, "extend", ["alice", "bob"])
    member = me(pool, "acquire", ttl=TTL)
    me(pool, how, *keys)
    assert (me(pool, "keys"), me(pool, "len"), me(pool, "contains", "alice")) == ([], 0, False)
    assert me(pool, "health_check") == (0, 0)
    assert me(member, "owned")
    assert me(member, "extend", 5)
    assert [lock.name for lock in list_locks(using=pool.using)] == [member.name]
    if end == "force":
        assert force_release(member.name, using=pool.using)
    elif end == "lapse":
        command("ZADD", BUSY, "XX", "1", "alice", using=pool.using)
    with nullcontext() if end == "release" else pytest.raises(LockLost):
        me(member, "release")
    refuses(me, pool)


def test_a_held_member_stays_with_its_holder_however_often_it_is_taken_out_and_put_in_again(
    me: Any, crowd: Crowd, pool: LockPool
) -> None:
    me(pool, "extend", ["alice", "bob"])
    lost: list[LockLost] = []
    member, you = me(pool, "acquire", ttl=6, on_lost=lost.append), crowd()
    assert me(pool, "shrink", ["alice"]) == 1
    assert me(pool, "extend", ["alice"]) == 1
    assert me(pool, "assign", ["alice", "carol"]) == 1
    me(pool, "clear")
    assert me(pool, "assign", ["alice", "carol"]) == 2
    assert me(pool, "health_check") == (1, 1)
    assert you(pool, "acquire", blocking_timeout=0).key == "carol"
    refuses(you, pool)
    before = known(member.name, using=pool.using)
    until(lambda: (now := get_lock(member.name, using=pool.using)) and now.expires > before.expires)  # renewed
    assert force_release(member.name, using=pool.using)
    until(lambda: lost)
    assert lost[0].name == lock_of("alice")
    assert you(pool, "acquire", blocking_timeout=0).key == "alice"


@pytest.mark.parametrize("empty", [LockPool.clear, lambda pool: pool.assign([]), lambda pool: pool.shrink(pool.keys())])
def test_a_pool_whose_members_come_and_go_does_not_grow_and_leaves_nothing(empty: Any, client: redis.Redis) -> None:
    pool, sizes = LockPool(POOL), []
    for day in range(6):
        pool.assign(f"key-{day}-{number}" for number in range(50))
        for _ in range(40):
            pool.acquire().release()
        sizes.append(sum(int(client.zcard(key)) for key in client.keys(f"{PREFIX}*:{ANY}")))
    assert max(sizes) < 3 * sizes[0]
    with pool.acquire():
        empty(pool)
    left = {*client.keys(f"{PREFIX}*")} - {*client.keys(f"{PREFIX}sequence:*")}  # which expire
    assert left == {f"{PREFIX}fence".encode()}


# Whoever finds that a lease has ended, the member is free: here, each is the first one to look.
LOOKS: dict[str, Callable[[PoolMember, str], object]] = {
    "health_check": lambda member, using: LockPool(POOL, using=using).health_check(),
    "list_locks": lambda member, using: list_locks(using=using),
    "force_release": lambda member, using: force_release(member.name, using=using),
    "a lock on it": lambda member, using: Lock(member.name, using=using).__enter__().release(),
    "owned": lambda member, using: member.owned(),
    "a release": lambda member, using: member.release(),
    "a release by token": lambda member, using: Lock(member.name, token="t" * 22, using=using).release(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_member_is_free_again_whoever_finds_first_that_its_lease_has_ended(look: str, pool: LockPool) -> None:
    pool.extend(["alice"])
    member = pool.acquire(ttl=TTL, poll=True)  # so that nothing looks by itself
    command("ZADD", BUSY, "XX", "1", "alice", using=pool.using)
    with pytest.raises(LockNotOwned) if "release" in look and look != "force_release" else nullcontext():
        LOOKS[look](member, pool.using or "")
    assert pool.acquire(blocking_timeout=0).key == "alice"


@pytest.mark.parametrize("how", ["extend", "assign"])
@pytest.mark.parametrize("evicted", [FREE, FRESH, MEMBERS, BUSY, HELD])
def test_members_that_an_eviction_took_come_back_when_they_are_given_again(
    accounts: LockPool, evicted: str, how: str, client: redis.Redis
) -> None:
    keys = ["alice", "bob", "carol"]
    accounts.extend(keys)
    released, held = accounts.acquire(), accounts.acquire()
    released.release()  # one of each: used and free, held, and not used yet
    client.delete(evicted)
    assert getattr(accounts, how)(keys) == (len(keys) if evicted == MEMBERS else 0)
    assert accounts.health_check() == ((0, 3) if evicted == HELD else (1, 2))
    with pytest.raises(LockLost) if evicted == HELD else nullcontext():
        held.release()
    assert sorted(accounts.acquire(blocking_timeout=0).key for _ in keys) == keys
    with pytest.raises(LockNotAcquired):
        accounts.acquire(blocking_timeout=0)


def test_the_member_of_a_dead_holder_comes_back_though_the_end_of_its_lease_was_evicted(
    accounts: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    assert ghost().queue("1" * 22, name=ANY, ttl=TTL).member == "alice"
    client.delete(BUSY)
    client.zadd(f"{PREFIX}index", {lock_of("alice"): 1}, xx=True)
    accounts.extend(["alice"])
    assert {accounts.acquire(blocking_timeout=0).key for _ in range(2)} == {"alice", "bob"}


def test_a_member_is_not_kept_for_those_who_asked_for_it_before_the_clock_jumped_back(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    accounts.assign(["alice"])
    client.zadd(WANTED, {"alice": server_time(client) + 3_600_000_000})
    assert me(accounts, "acquire", blocking_timeout=GENEROUS).key == "alice"


# see tests/protocol/test_r2_r15_r20_scripts.py for what holds for other locks as well
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
    with pytest.raises(ValueError, match="Could not suspend 'alcie': it is not a member of the pool 'accounts'"):
        me(pool, "suspend", "alcie", 60)
    for call in (("suspend", "", 60), ("resume", 7)):
        with pytest.raises(TypeError, match="A member of a pool must be a non-empty str"):
            me(pool, *call)


@pytest.mark.parametrize("ends", ["release", "lapse"])
def test_who_holds_a_suspended_member_keeps_it_and_then_nobody_gets_it(
    ends: str, me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    member = me(accounts, "acquire", ttl=TTL)
    accounts.suspend("alice", 2 * TTL)
    assert me(member, "owned")
    if ends == "release":
        me(member, "release")
    else:
        leases_end(client, "alice")
    assert me(accounts, "acquire", blocking_timeout=0).key == "bob"
    refuses(me, accounts)
    assert audit(client).held == {"alice", "bob"}
    if ends == "release":
        accounts.shrink(["alice"])
    assert me(accounts, "resume", "alice")
    assert audit(client).free == (set() if ends == "release" else {"alice"})


def test_many_members_are_replaced_in_short_scripts_and_those_that_stay_keep_their_turns(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No script calls very many commands, so none blocks Redis for long; nothing else may run meanwhile."""

    def called() -> int:
        stats: dict[str, Any] = client.info("commandstats")
        return sum(int(stat["calls"]) for name, stat in stats.items() if name != "cmdstat_info")

    calls = [called()]
    note_round_trips(monkeypatch, after=lambda *_: calls.append(called()))
    pool = LockPool(POOL)
    assert pool.assign(OLD) == 20_000
    client.zunionstore(FREE, [FREE, FRESH])  # as if each had been used
    client.delete(FRESH)
    calls[-1] = called()
    assert pool.assign(OLD) == 0
    assert pool.extend(["zoe", OLD[0]]) == pool.shrink(["zoe"]) == 1
    assert [pool.acquire(blocking_timeout=0).key for _ in range(3)] == OLD[:3]
    assert pool.assign(NEW) == 20_000
    assert pool.acquire(blocking_timeout=0).key == NEW[0]
    assert pool.shrink(NEW[:-1]) == 20_000 - 1
    client.zadd(FRESH, dict.fromkeys(OLD[:5000], 0))  # which a checkout skips
    assert pool.acquire(blocking_timeout=GENEROUS).key == NEW[-1]
    assert 0 < max(after - before for before, after in pairwise(calls)) <= 3000


def will_end(client: redis.Redis) -> dict[bytes, float]:
    """The keys of all pools, and the seconds until they end; infinite: they stay."""
    keys = [key for key in client.scan_iter() if b":pool:" in key]
    return {key: math.inf if (left := int(client.pttl(key))) < 0 else left / 1000 for key in keys}


def test_a_pool_without_members_leaves_no_key_behind_though_nobody_looks_at_what_was_held(client: redis.Redis) -> None:
    """Its keys end a little later than the last lease, or suspension."""
    pool = LockPool("accounts")
    pool.assign(["alice", "bob", "carol"])
    assert pool.acquire(ttl=TTL, auto_renew=False)
    pool.suspend("carol", 2 * TTL)
    assert set(will_end(client).values()) == {math.inf}
    pool.clear()
    assert all(2 * TTL - GENEROUS < seconds < 2 * TTL + GENEROUS for seconds in will_end(client).values())
    pool.extend(["alice"])
    assert set(will_end(client).values()) == {math.inf}
    pool.shrink(["alice"])
    held = Lock(lock_of("bob"), ttl=TTL, auto_renew=False)
    assert held.acquire()
    held.suspend(3 * TTL)  # which begins when that ends
    assert max(will_end(client).values()) > 2 * TTL
    pool.extend(["alice"])
    pool.clear()
    assert max(will_end(client).values()) > 2 * TTL


def test_a_lock_that_is_named_like_a_member_leaves_no_key_behind(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock("pool:16:refresh", ttl=TTL, auto_renew=False)
    me(lock, "acquire")
    me(lock, "extend", TTL)
    found = will_end(client).values()
    assert found
    assert all(TTL < seconds < 2 * TTL + GENEROUS for seconds in found)
    me(lock, "release")
    assert will_end(client) == {}
