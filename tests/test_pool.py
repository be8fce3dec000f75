"""Pools: their members, what these are doing, and who gets one; on Redis and in memory, by calls and by coroutines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation
from redis.backoff import ConstantBackoff

from django_redislock import (
    FairLock,
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockUnavailable,
    force_release,
    get_lock,
    list_locks,
    scripts,
)
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.names import make_keys, pool_name
from django_redislock.pool import MemberOptions
from django_redislock.registry import LockStatus
from redisserver import RedisServer

from .actors import GENEROUS, Other
from .pools import POOL, PREFIX, Way, audit, leftovers, lock_of
from .pools import fair as fair
from .processes import Worker
from .ways import DJANGO_REDIS, PASSWORD, alias, caches

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Settings = Any  # its type has another name in each pytest-django

ODD = ["a:b", "a%3Ab", "x y", "größe", "日本", "{0}", "100%", "line\nbreak", "*", "\u3000", "-", "%"]


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest, settings: Settings) -> str:
    settings.CACHES = {**settings.CACHES}  # a memory that holds nothing
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["threads", "coroutines"])
def way(request: pytest.FixtureRequest, using: str) -> Iterator[Way]:
    made = Way(using, coroutines=request.param)
    yield made
    made.close()


@pytest.fixture
def pool() -> LockPool:
    """With two members on the session's server."""
    made = LockPool(POOL)
    made.extend(["alice", "bob"])
    return made


def calls(client: redis.Redis) -> dict[str, int]:
    """How often each command was sent since the last reset, by whomever."""
    stats = client.info("commandstats")
    return {key.removeprefix("cmdstat_"): value["calls"] for key, value in stats.items()}


# -- members ---------------------------------------------------------------------------------------------------------


def test_members_are_put_in_and_taken_out(way: Way) -> None:
    assert way("keys") == []
    assert way("extend", ["bob", "alice"]) == 2
    assert way("extend", iter(["alice", "carol", "carol"])) == 1
    assert way("keys") == ["alice", "bob", "carol"]
    assert way("shrink", ["bob", "dave"]) == 1
    assert way("keys") == ["alice", "carol"]
    assert way("shrink", ("alice", "carol")) == 2
    assert way("keys") == []


def test_assign_has_these_members_and_no_others(way: Way) -> None:
    way("extend", ["alice", "bob"])
    assert way("assign", ["bob", "carol", "dave"]) == 2
    assert way("keys") == ["bob", "carol", "dave"]
    assert way("assign", ["bob"]) == 0
    assert way("keys") == ["bob"]


def test_clear_takes_all_out(way: Way) -> None:
    way("extend", ["alice", "bob"])
    assert way("clear") is None
    assert way("keys") == []


@pytest.mark.parametrize("how", ["extend", "shrink"])
def test_no_members_are_no_change(way: Way, how: str) -> None:
    way("extend", ["alice"])
    assert way(how, []) == 0
    assert way("keys") == ["alice"]


def test_a_pool_knows_how_many_members_it_has_and_which(way: Way) -> None:
    way("extend", ["alice", "bob"])
    assert way("len") == 2
    assert way("contains", "alice") is True
    assert way("contains", "carol") is False
    assert way("contains", 7) is False


def test_in_len_and_iteration_ask_redis(using: str) -> None:
    pool = LockPool(POOL, using=using)
    assert len(pool) == 0
    pool.extend(["alice", "bob"])
    assert "alice" in pool
    assert "carol" not in pool
    assert len(pool) == 2
    assert list(pool) == ["alice", "bob"]


async def test_coroutines_iterate(using: str) -> None:
    pool = LockPool(POOL, using=using)
    await pool.aextend(["alice", "bob"])
    assert [key async for key in pool] == ["alice", "bob"]


def test_a_pool_is_true_without_a_look(client: redis.Redis) -> None:
    client.config_resetstat()
    assert LockPool(POOL)
    assert "evalsha" not in calls(client)


def test_keys_may_be_any_text(way: Way) -> None:
    assert way("extend", ODD) == len(ODD)
    assert sorted(way("keys")) == sorted(ODD)
    assert all(way("contains", key) for key in ODD)
    taken = [way("acquire", blocking_timeout=0) for _ in ODD]
    assert sorted(member.key for member in taken) == sorted(ODD)
    assert {member.name for member in taken} == {lock_of(key) for key in ODD}
    assert dict(way("items_locked_status")) == dict.fromkeys(ODD, LockStatus.LOCKED)
    for member in taken:
        way.on(member, "release")
    assert way("health_check") == (0, len(ODD))
    assert way("shrink", ODD) == len(ODD)
    assert way("keys") == []


def test_pools_whose_names_look_alike_are_apart(using: str) -> None:
    names = ["a", "a:b", "a%3Ab", "a b", "ä", "lock", "pool:a", "pool:a:"]
    pools = [LockPool(name, using=using) for name in names]
    for number, pool in enumerate(pools):
        pool.extend([f"key-{number}", "same"])
    for number, pool in enumerate(pools):
        assert pool.keys() == [f"key-{number}", "same"]
        assert pool.acquire(blocking_timeout=0).key == f"key-{number}"
        assert pool.health_check() == (1, 1)


def test_fifty_thousand_members_are_replaced_in_one_step(using: str) -> None:
    pool = LockPool(POOL, using=using)
    many = 50_000 if using == "default" else 3000
    old, new = {f"old-{number}" for number in range(many)}, {f"new-{number}" for number in range(many)}
    both = {frozenset(old): "old", frozenset(new): "new"}
    pool.extend(old)
    seen = []
    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(lambda: [pool.assign(keys) for keys in (new, old, new)])
        while not replacing.done():
            seen.append(both.get(frozenset(pool.keys()), "some of each"))
        assert replacing.result() == [many] * 3
    assert set(seen) <= {"old", "new"}
    assert len(seen) > 1
    assert set(pool.keys()) == new
    assert pool.acquire(blocking_timeout=0).key in new


def test_members_that_do_not_all_arrive_change_nothing(pool: LockPool, client: redis.Redis) -> None:
    staged = f"{PREFIX}staged:x"
    client.zadd(staged, {"carol": 0})
    keys = (*make_keys(PREFIX, pool_name(POOL)).all, staged)
    with pytest.raises(redis.ResponseError, match="not all members have arrived"):
        client.execute_command(*scripts._MEMBERS.by_sha(keys, (pool_name(POOL), "assign", "channel", 0, 2)))
    assert pool.keys() == ["alice", "bob"]


@pytest.mark.parametrize("method", ["extend", "shrink", "assign"])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("alice", TypeError, "must be an iterable of str, not the one str 'alice'"),
        (["alice", ""], TypeError, "must be a str that is not empty, not ''"),
        (["alice", 7], TypeError, "must be a str that is not empty, not 7"),
        ([b"alice"], TypeError, "must be a str that is not empty, not b'alice'"),
        (["a" * 600], ValueError, r"The member name .* has 614 bytes; at most 512"),
    ],
)
def test_bad_members_are_refused_before_anything_is_sent(
    way: Way, method: str, keys: Any, error: type[Exception], message: str
) -> None:
    way("extend", ["bob"])
    with pytest.raises(error, match=message):
        way(method, keys)
    assert way("keys") == ["bob"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "A pool's name must not be empty"),
        ("a\nb", ValueError, "The pool name .* control characters"),
        (7, TypeError, "A pool's name must be a str, not 7"),
        (" " * 200, ValueError, "The pool name .* has 607 bytes; at most 512"),
    ],
)
def test_bad_names_are_refused(name: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LockPool(name)


def test_a_pool_says_which_one_it_is() -> None:
    assert repr(LockPool("proxies")) == "<LockPool 'proxies'>"


async def test_blocking_calls_in_an_event_loop_name_the_twin() -> None:
    pool = LockPool(POOL)
    for twin, call in {
        "aextend": lambda: pool.extend(["x"]),
        "akeys": pool.keys,
        "alen": lambda: len(pool),
        "acontains": lambda: "alice" in pool,
        "aacquire": pool.acquire,
        "aitems_locked_status": pool.health_check,
    }.items():
        with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"{twin}()")):
            call()


# -- members that are held -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["shrink", "assign", "clear"])
def test_a_member_that_is_held_leaves_at_its_release(way: Way, method: str) -> None:
    way("extend", ["alice", "bob"])
    member = way("acquire")
    assert member.key == "alice"
    arguments: dict[str, list[list[str]]] = {"shrink": [["alice", "bob"]], "assign": [[]], "clear": []}
    way(method, *arguments[method])
    assert way("keys") == ["alice"]
    assert way.on(member, "owned")
    way.on(member, "release")
    assert way("keys") == []
    with pytest.raises(LockNotAcquired):
        way("acquire", blocking_timeout=0)


def test_a_member_that_leaves_is_not_put_in_twice(way: Way) -> None:
    way("extend", ["alice"])
    member = way("acquire")
    way("shrink", ["alice"])
    assert way("extend", ["alice"]) == 0
    way.on(member, "release")
    assert way("keys") == ["alice"]
    assert way("health_check") == (0, 1)


def test_a_member_that_leaves_stays_when_it_is_assigned(way: Way) -> None:
    way("extend", ["alice", "bob"])
    member = way("acquire")
    way("clear")
    assert way("assign", ["alice", "carol"]) == 1
    way.on(member, "release")
    assert way("keys") == ["alice", "carol"]


def test_a_member_that_leaves_is_gone_when_its_lease_ends(way: Way, eventually: Eventually) -> None:
    way("extend", ["alice", "bob"])
    way("acquire", ttl=0.1, auto_renew=False)
    way("shrink", ["alice"])
    assert way("keys") == ["alice", "bob"]
    eventually(lambda: way("keys") == ["bob"])
    assert (way("len"), way("contains", "alice")) == (1, False)


def test_leases_of_many_members_may_end_at_once(client: redis.Redis) -> None:
    pool = LockPool(POOL)
    pool.extend(f"key-{number}" for number in range(250))
    for _ in range(250):
        pool.acquire(ttl=600, auto_renew=False)
    pool.clear()
    # ten minutes go by
    client.delete(*client.keys(f"{PREFIX}lock:*"))
    busy = f"{PREFIX}busy:{pool_name(POOL)}"
    client.zadd(busy, {f"key-{number}": 1 for number in range(250)})
    assert pool.keys() == []
    assert client.zcard(f"{PREFIX}index") == 0


def test_a_member_that_leaves_is_gone_when_it_is_set_free_by_force(way: Way) -> None:
    way("extend", ["alice"])
    member = way("acquire")
    way("clear")
    assert force_release(member.name, using=way.using)
    assert way("keys") == []
    with pytest.raises(LockLost):
        way.on(member, "release")
    assert way("keys") == []


def test_a_member_whose_lease_has_ended_is_free_again(way: Way, eventually: Eventually) -> None:
    way("extend", ["alice"])
    way("acquire", ttl=0.1, auto_renew=False)
    assert way("acquire", blocking_timeout=GENEROUS).key == "alice"


def test_a_lease_that_is_cut_short_ends_then(way: Way) -> None:
    way("extend", ["alice"])
    member = way("acquire", ttl=600, auto_renew=False)
    way.on(member, "extend", 0.1, replace_ttl=True)
    assert way("acquire", blocking_timeout=GENEROUS).key == "alice"


def test_the_set_of_a_pool_survives_its_members_being_held_and_given_back(client: redis.Redis, pool: LockPool) -> None:
    with pool.acquire() as first, pool.acquire() as second:
        assert audit(client) == {
            "members": {"alice", "bob"},
            "free": set(),
            "busy": {"alice", "bob"},
            "leaving": set(),
            "locked": {"alice", "bob"},
        }
        assert {first.key, second.key} == {"alice", "bob"}
    assert audit(client)["free"] == {"alice", "bob"}
    assert leftovers(client) == []
    assert not client.keys(f"{PREFIX}took:*")


def test_an_empty_pool_leaves_nothing(client: redis.Redis, pool: LockPool) -> None:
    with pool.acquire():
        pool.clear()
    assert list(client.keys(f"{PREFIX}*")) == [f"{PREFIX}fence".encode()]


# -- what they are doing ---------------------------------------------------------------------------------------------


def test_each_member_has_a_status(way: Way, other: Callable[[], Other]) -> None:
    way("extend", ["alice", "bob", "carol", "dave"])
    assert way("acquire").key == "alice"
    assert other()(lambda: way.pool.acquire().key) == "bob"
    way.redis("SET", f"{PREFIX}lock:{lock_of('carol')}", "somebody's")
    assert way("items_locked_status") == [
        ("alice", LockStatus.LOCKED),
        ("bob", LockStatus.UNAVAILABLE),
        ("carol", LockStatus.ERROR),
        ("dave", LockStatus.FREE),
    ]
    assert way("values_lock_status") == [
        LockStatus.LOCKED,
        LockStatus.UNAVAILABLE,
        LockStatus.ERROR,
        LockStatus.FREE,
    ]
    assert way("health_check") == (3, 1)


def test_an_empty_pool_is_healthy(way: Way) -> None:
    assert way("items_locked_status") == way("values_lock_status") == []
    assert way("health_check") == (0, 0)


def test_statuses_take_two_round_trips_however_many_members_there_are(client: redis.Redis) -> None:
    pool = LockPool(POOL)
    trips = []
    for many in (10, 3000):
        pool.assign(f"key-{number}" for number in range(many))
        before = client.info("stats")["total_reads_processed"]
        assert pool.health_check() == (0, many)
        trips.append(client.info("stats")["total_reads_processed"] - before - 1)
    assert trips[0] == 2
    # a long write arrives in several pieces, each of 16 kB
    assert trips[1] < 60


def test_a_member_that_nobody_can_expire_is_passed_over_and_comes_back(way: Way, eventually: Eventually) -> None:
    way("extend", ["alice", "bob"])
    key = f"{PREFIX}lock:{lock_of('alice')}"
    way.redis("SET", key, "somebody's")
    taken = way("acquire", blocking_timeout=0)
    assert taken.key == "bob"
    with pytest.raises(LockNotAcquired):
        way("acquire", blocking_timeout=0)
    way.redis("DEL", key)
    assert way("acquire", blocking_timeout=GENEROUS).key == "alice"


def test_members_are_listed_like_any_lock(way: Way) -> None:
    way("extend", ["a:b"])
    member = way("acquire")
    fence = way.read(lambda: member.fence)
    (listed,) = list_locks(using=way.using)
    assert (listed.name, listed.fence) == ("pool:accounts:a%3Ab", fence)
    info = get_lock(member.name, using=way.using)
    assert info is not None
    assert info.fence == fence
    way.on(member, "release")
    assert list_locks(using=way.using) == []


def test_info_tells_who_holds_members_and_who_waits(
    way: Way, other: Callable[[], Other], eventually: Eventually
) -> None:
    way("extend", ["alice", "bob", "carol"])
    LockPool(f"{POOL}-too", using=way.using).extend(["dave"])
    LockPool(f"{POOL}-too", using=way.using).acquire()
    held = [way("acquire").name for _ in range(2)]
    info = way("info")
    assert (info.name, info.members, info.free, info.waiters, info.queue) == (POOL, 3, 1, 0, ())
    assert [lock.name for lock in info.locks] == held == [lock_of("alice"), lock_of("bob")]
    way("shrink", ["carol"])
    other().start(lambda: way.pool.acquire(fair=True, blocking_timeout=GENEROUS))
    eventually(lambda: way("info").waiters == 1)
    (waiter,) = way("info").queue
    assert waiter.fair
    assert waiter.owner
    way.on(way.pool, "extend", ["zoe"])


# -- taking one ------------------------------------------------------------------------------------------------------


def test_a_free_member_is_taken_with_its_lock(way: Way) -> None:
    way("extend", ["alice"])
    member = way("acquire", ttl=7)
    assert (member.key, member.name) == ("alice", "pool:accounts:alice")
    assert way.read(lambda: (member.ttl, member.lost, member.check(), bool(member.fence))) == (7, False, None, True)
    assert way.on(member, "owned")
    assert way.on(member, "locked")
    assert 0 < way.read(member.remaining) <= 7
    assert way.on(member, "extend", 5)
    assert way.read(member.remaining) > 7
    assert way.on(member, "reacquire")
    assert way.read(member.remaining) <= 7
    way.on(member, "release")
    assert not way.on(member, "locked")
    with pytest.raises(LockNotOwned):
        way.on(member, "release")


def test_with_gives_a_member_back(client: redis.Redis, pool: LockPool) -> None:
    with pool.acquire() as account:
        assert account.key == "alice"
        assert audit(client)["locked"] == {"alice"}
    assert audit(client)["locked"] == set()


async def test_async_with_gives_a_member_back(using: str) -> None:
    pool = LockPool(POOL, using=using)
    await pool.aextend(["alice"])
    async with await pool.aacquire() as account:
        assert account.key == "alice"
        assert await pool.ahealth_check() == (1, 0)
    assert await pool.ahealth_check() == (0, 1)


def test_a_member_is_given_back_when_the_block_raises(pool: LockPool) -> None:
    with pytest.raises(ZeroDivisionError), pool.acquire():
        raise ZeroDivisionError
    assert pool.health_check() == (0, 2)


def test_a_member_that_was_given_back_can_be_taken_again_by_itself(pool: LockPool) -> None:
    member = pool.acquire()
    member.release()
    with member, pool.acquire() as other:
        assert (member.key, other.key) == ("alice", "bob")
    assert pool.health_check() == (0, 2)


def test_the_member_comes_first_that_has_not_been_used_for_longest(way: Way) -> None:
    way("extend", ["alice", "bob", "carol"])
    order = []
    for _ in range(6):
        member = way("acquire")
        order.append(member.key)
        way.on(member, "release")
    assert order == ["alice", "bob", "carol"] * 2
    first, second = way("acquire"), way("acquire")
    way.on(second, "release")
    way.on(first, "release")
    assert [way("acquire").key for _ in range(3)] == ["carol", "bob", "alice"]


def test_new_members_come_before_used_ones(way: Way) -> None:
    way("extend", ["alice"])
    way.on(way("acquire"), "release")
    way("extend", ["zoe"])
    assert way("acquire").key == "zoe"


def test_one_thread_may_hold_several_and_give_them_back_in_any_order(way: Way) -> None:
    way("extend", ["alice", "bob", "carol"])
    held = [way("acquire") for _ in range(3)]
    assert [member.key for member in held] == ["alice", "bob", "carol"]
    assert len(set(way.read(lambda: [member.fence for member in held]))) == 3
    for member in (held[1], held[2], held[0]):
        way.on(member, "release")
    assert way("health_check") == (0, 3)


def test_when_none_is_free_it_says_so(way: Way) -> None:
    with pytest.raises(LockNotAcquired, match=r"No member of the pool 'accounts' became free in time\.") as caught:
        way("acquire", blocking_timeout=0)
    assert caught.value.name == POOL
    way("extend", ["alice"])
    way("acquire")
    with pytest.raises(LockNotAcquired):
        way("acquire", blocking_timeout=0.05)


def test_who_gave_up_stands_in_no_queue(pool: LockPool, client: redis.Redis) -> None:
    with pool.acquire(), pool.acquire():
        for timeout in (0, 0.05):
            for fair in (True, False):
                with pytest.raises(LockNotAcquired):
                    pool.acquire(blocking_timeout=timeout, fair=fair)
    assert leftovers(client) == []


def test_a_check_out_is_one_round_trip_and_so_is_a_release(pool: LockPool, client: redis.Redis) -> None:
    pool.acquire().release()
    client.config_resetstat()
    for _ in range(20):
        pool.acquire().release()
    sent = calls(client)
    assert sent["evalsha"] == 40
    before = client.info("stats")["total_reads_processed"]
    for _ in range(20):
        pool.acquire().release()
    assert client.info("stats")["total_reads_processed"] - before - 1 == 40


def test_options_are_those_of_a_lock(pool: LockPool, settings: Settings) -> None:
    settings.REDISLOCK = {"TTLS": {"pool:accounts:*": 77}, "BLOCKING_TIMEOUT": 0}
    held = [pool.acquire(), pool.acquire(ttl=5)]
    assert [member.ttl for member in held] == [77, 5]
    with pytest.raises(LockNotAcquired):
        pool.acquire()
    with pytest.raises(ValueError, match="ttl"):
        pool.acquire(ttl=0)
    with pytest.raises(TypeError, match="on_lost"):
        pool.acquire(on_lost=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no task: for the pool 'accounts'"):
        pool.acquire(on_lost="cancel")


def test_an_option_of_a_lock_is_one_of_a_pool_or_makes_no_sense_there() -> None:
    lock, member = inspect.signature(Lock).parameters, MemberOptions.__annotations__
    assert lock.keys() - member == {"name", "using", "token", "reentrant", "blocking"}
    for option, annotation in member.items():
        assert annotation.__forward_arg__ == lock[option].annotation


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": 0}, ValueError),
        ({"blocking_timeout": -1}, ValueError),
        ({"on_lost": 7}, TypeError),
        ({"note": 7}, TypeError),
        ({"note": "x" * 1001}, ValueError),
        ({"wait": "sleep"}, ValueError),
        ({"wait": "poll", "backoff": 0.1}, TypeError),
        ({"wait": "poll", "attempts": 0}, ValueError),
        ({"wait": "poll", "attempts": True}, TypeError),
        ({"attempts": 3}, ValueError),
        ({"wait": "wake", "backoff": ConstantBackoff(1)}, ValueError),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value.__name__,
)
def test_bad_options_are_refused_as_a_lock_refuses_them(
    way: Way, options: dict[str, Any], error: type[Exception]
) -> None:
    way("extend", ["alice"])
    with pytest.raises(error) as of_lock:
        Lock("a", **options)
    with pytest.raises(error) as of_pool:
        way("acquire", **options)
    assert str(of_pool.value) == str(of_lock.value)
    assert way("health_check") == (0, 1)


@pytest.mark.parametrize("option", ["token", "reentrant", "blocking", "using", "notes"])
def test_options_that_a_pool_does_not_know_are_refused_with_those_that_there_are(way: Way, option: str) -> None:
    way("extend", ["alice"])
    with pytest.raises(TypeError, match=rf"knows no option '{option}'; there are: fair, ttl, .*, note\.$"):
        way("acquire", **{option: None})
    assert way("health_check") == (0, 1)


def test_a_note_is_kept_with_the_member(way: Way) -> None:
    way("extend", ["alice"])
    member = way("acquire", note="invoice 42\nof Monday")
    assert way.on(member, "info").note == "invoice 42\nof Monday"
    way.on(member, "release")
    assert way.on(way("acquire"), "info").note == ""


@pytest.mark.parametrize("wait", ["wake", "poll"])
def test_a_note_is_kept_with_the_place_in_the_queue_and_then_with_the_member(
    way: Way, wait: Any, other: Callable[[], Other], eventually: Eventually
) -> None:
    way("extend", ["alice"])
    held, waits = way("acquire"), Way(way.using, coroutines=False)
    waiting = other().start(lambda: waits("acquire", fair=True, wait=wait, note="of a waiter"))
    eventually(lambda: way("info").waiters == 1)
    assert [waiter.note for waiter in way("info").queue] == ["of a waiter"]
    way.on(held, "release")
    assert way.on(waiting.result(GENEROUS), "info").note == "of a waiter"


def test_who_polls_for_a_member_tries_no_more_often_than_it_was_told_to(way: Way) -> None:
    way("extend", ["alice"])
    way("acquire")
    with pytest.raises(LockNotAcquired, match=r"in time\. Made 3 attempts in [\d.]+ s\.") as caught:
        way("acquire", wait="poll", backoff=ConstantBackoff(0.02), attempts=3)
    assert caught.value.attempts == 3
    assert caught.value.waited >= 0.04
    assert way("info").waiters == 0


def test_who_polls_for_a_member_gets_it_and_nothing_subscribes(
    way: Way, fair: bool, other: Callable[[], Other], eventually: Eventually
) -> None:
    way("extend", ["alice"])
    held = way("acquire", wait="poll")
    thread, polls = other(), LockPool(POOL, using=way.using)
    waiting = thread.start(lambda: polls.acquire(fair=fair, wait="poll", backoff=ConstantBackoff(0.01)))
    eventually(lambda: way("info").waiters == 1)
    way.on(held, "release")
    member = waiting.result(GENEROUS)
    assert member.key == "alice"
    thread(member.release)
    assert get_listener(get_backend(way.using))._thread is None
    assert way("health_check") == (0, 1)


def test_a_held_member_is_renewed(pool: LockPool, client: redis.Redis, eventually: Eventually) -> None:
    with pool.acquire(ttl=3) as member:
        busy = f"{PREFIX}busy:{pool_name(POOL)}"
        first = client.zscore(busy, member.key) or 0.0
        eventually(lambda: (client.zscore(busy, member.key) or 0.0) > first + 1_000_000)
        member.check()
        assert audit(client)["locked"] == {member.key}


def test_whoever_loses_a_member_is_told(pool: LockPool, eventually: Eventually) -> None:
    lost: list[LockLost] = []
    member = pool.acquire(ttl=600, on_lost=lost.append)
    eventually(lambda: member._find().seen)  # type: ignore[union-attr]
    force_release(member.name)
    eventually(lambda: lost)
    assert lost[0].name == "pool:accounts:alice"
    with pytest.raises(LockLost):
        member.release()
    assert pool.health_check() == (0, 2)


def test_a_member_is_detached_and_adopted_like_any_lock(way: Way, client: redis.Redis) -> None:
    way("extend", ["alice", "bob"])
    member = way("acquire")
    token = way.on(member, "detach")
    lock = Lock(lock_of("alice"), token=token, using=way.using)
    assert way.on(lock, "acquire")
    assert way.on(lock, "extend", 10)
    assert way("acquire", blocking_timeout=0).key == "bob"
    way.on(lock, "release")
    assert way("acquire", blocking_timeout=0).key == "alice"


def test_another_process_adopts_a_member_and_gives_it_back(
    pool: LockPool, client: redis.Redis, start: Start, eventually: Eventually
) -> None:
    pool.shrink(["bob"])
    member = pool.acquire()
    lease = member._find()
    code = """
        lock = Lock(name, token=token)
        say("adopted" if lock.acquire() else "refused")
        hear()
        lock.release()
        say("released")
    """
    worker = start("\n".join(line.strip() for line in code.splitlines()), name=member.name, token=member.detach())
    worker.expect("adopted")
    assert pool.health_check() == (1, 0)
    worker.tell()
    worker.expect("released")
    assert lease is not None
    assert audit(client)["free"] == {"alice"}
    assert leftovers(client) == []


def test_a_member_that_is_locked_by_its_own_name_is_passed_over_and_comes_back(way: Way) -> None:
    way("extend", ["alice", "bob"])
    lock = Lock(lock_of("alice"), using=way.using)
    assert way.on(lock, "acquire")
    assert way("acquire", blocking_timeout=0).key == "bob"
    with pytest.raises(LockNotAcquired):
        way("acquire", blocking_timeout=0)
    way.on(lock, "release")
    assert way("acquire", blocking_timeout=0).key == "alice"


def test_the_pool_is_no_lock(way: Way) -> None:
    for refuses in (Lock, FairLock, force_release, get_lock):
        with pytest.raises(ValueError, match=r"'pool:accounts:' is a pool, no lock: .* LockPool"):
            refuses("pool:accounts:")


# -- servers and sites -----------------------------------------------------------------------------------------------


def test_scripts_may_be_flushed_at_any_time(pool: LockPool, client: redis.Redis) -> None:
    for call in (
        lambda: pool.extend(["carol"]),
        lambda: pool.assign(["alice", "bob"]),
        pool.keys,
        pool.health_check,
        lambda: pool.acquire().release(),
    ):
        client.script_flush()
        call()
    member = pool.acquire()
    client.script_flush()
    member.release()
    assert pool.health_check() == (0, 2)


async def test_scripts_may_be_flushed_under_coroutines(client: redis.Redis) -> None:
    pool = LockPool(POOL)
    client.script_flush()
    await pool.aextend(["carol"])
    client.script_flush()
    member = await pool.aacquire()
    client.script_flush()
    await member.arelease()
    assert await pool.ahealth_check() == (0, 1)


def test_after_a_flush_a_release_brings_nothing_back(pool: LockPool, client: redis.Redis) -> None:
    member = pool.acquire()
    client.flushall()
    with pytest.raises(LockLost):
        member.release()
    assert pool.keys() == []
    assert [key for key in client.keys("*") if b"fence" not in key] == []


def test_after_a_flush_a_pool_can_be_filled_anew(pool: LockPool, client: redis.Redis) -> None:
    member = pool.acquire()
    client.flushall()
    pool.extend(["alice"])
    again = pool.acquire()
    assert again.key == "alice"
    assert (again.fence or 0) > (member.fence or 0) > 0
    with pytest.raises(LockLost):
        member.release()
    assert again.owned()
    assert audit(client)["locked"] == {"alice"}


def test_sites_with_other_prefixes_have_other_pools(settings: Settings, client: redis.Redis, pool: LockPool) -> None:
    cache = settings.CACHES["default"]
    with caches({**cache, "KEY_PREFIX": "shop"}):
        theirs = LockPool(POOL)
        theirs.extend(["alice"])
        assert theirs.acquire(blocking_timeout=0).key == "alice"
        assert theirs.health_check() == (1, 0)
        assert audit(client, prefix="shop:redislock{0}:")["busy"] == {"alice"}
    assert pool.health_check() == (0, 2)


def test_rights_to_one_prefix_suffice(guarded: RedisServer) -> None:
    with (
        guarded.client() as client,
        caches(
            {
                **alias(DJANGO_REDIS, f"redis://127.0.0.1:{guarded.port}/0", username="site", password=PASSWORD),
                "KEY_PREFIX": "site",
            }
        ),
    ):
        client.flushall()
        pool = LockPool(POOL)
        pool.extend(["alice", "bob"])
        with ThreadPoolExecutor(4) as threads:

            def turn(_: int) -> str:
                with pool.acquire(fair=True) as member:
                    return member.key

            assert set(threads.map(turn, range(40))) == {"alice", "bob"}
        assert pool.health_check() == (0, 2)
        pool.clear()
        assert pool.keys() == []


def test_what_redis_refuses_is_no_half_done_change(own: RedisServer, settings: Settings) -> None:
    pool = LockPool(POOL)
    pool.extend(["alice", "bob"])
    with own.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
            pool.assign(["carol"])
        client.config_set("maxmemory", 0)
    assert pool.keys() == ["alice", "bob"]


def test_without_redis_it_says_so(own: RedisServer) -> None:
    pool = LockPool(POOL)
    own.stop()
    for call in (lambda: pool.extend(["x"]), pool.keys, pool.acquire):
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the pool 'accounts' .*'default'") as caught:
            call()
        assert caught.value.name == POOL
