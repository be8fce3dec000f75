"""The members of a pool: putting in, taking out, replacing; valid members. See test_held_members.py for those in
use."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, LockPool, force_release, get_lock
from django_redislock.inspection import LockStatus
from django_redislock.store.keys import make_keys, pools_key
from django_redislock.store.scripts import Script
from tests.helpers.pools import ANY, POOL, lock_of
from tests.helpers.processes import Worker
from tests.inside import PREFIX

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

ODD = ["a:b", "a%3Ab", "x y", "größe", "日本", "{0}", "100%", "line\nbreak", "*", "\u3000", "-", "%"]


def test_members_are_put_in_and_taken_out(me: Any, pool: LockPool) -> None:
    assert me(pool, "keys") == []
    assert me(pool, "extend", ["bob", "alice"]) == 2
    assert me(pool, "extend", iter(["alice", "carol", "carol"])) == 1
    assert me(pool, "keys") == ["alice", "bob", "carol"]
    assert me(pool, "shrink", ["bob", "dave"]) == 1
    assert me(pool, "keys") == ["alice", "carol"]
    assert me(pool, "shrink", ("alice", "carol")) == 2
    assert me(pool, "keys") == []


def test_assign_has_these_members_and_no_others(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    assert me(pool, "assign", ["bob", "carol", "dave"]) == 2
    assert me(pool, "keys") == ["bob", "carol", "dave"]
    assert me(pool, "assign", ["bob"]) == 0
    assert me(pool, "keys") == ["bob"]


def test_clear_takes_all_out(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob"])
    assert me(pool, "clear") is None
    assert me(pool, "keys") == []


@pytest.mark.parametrize("how", ["extend", "shrink"])
def test_no_members_are_no_change(me: Any, pool: LockPool, how: str) -> None:
    me(pool, "extend", ["alice"])
    assert me(pool, how, []) == 0
    assert me(pool, "keys") == ["alice"]


def test_a_pool_knows_how_many_members_it_has_and_which(me: Any, pool: LockPool) -> None:
    assert me(pool, "len") == 0
    me(pool, "extend", ["alice", "bob"])
    assert me(pool, "len") == 2
    assert me(pool, "contains", "alice") is True
    assert me(pool, "contains", "carol") is False
    assert me(pool, "contains", 7) is False


def test_in_and_iteration_ask_redis(pool: LockPool) -> None:
    pool.extend(["alice", "bob"])
    assert "alice" in pool
    assert "carol" not in pool
    assert list(pool) == ["alice", "bob"]


async def test_coroutines_iterate(pool: LockPool) -> None:
    await pool.aextend(["alice", "bob"])
    assert [key async for key in pool] == ["alice", "bob"]


def test_a_pool_is_true_without_a_look(client: redis.Redis) -> None:
    client.config_resetstat()
    assert LockPool(POOL)
    assert not {"cmdstat_evalsha", "cmdstat_zcard", "cmdstat_zrange"} & client.info("commandstats").keys()


def test_keys_may_be_any_text(me: Any, pool: LockPool) -> None:
    assert me(pool, "extend", ODD) == len(ODD)
    assert sorted(me(pool, "keys")) == sorted(ODD)
    assert all(me(pool, "contains", key) for key in ODD)
    taken = [me(pool, "acquire", blocking_timeout=0) for _ in ODD]
    assert sorted(member.key for member in taken) == sorted(ODD)
    assert {member.name for member in taken} == {lock_of(key) for key in ODD}
    assert dict(me(pool, "items_locked_status")) == dict.fromkeys(ODD, LockStatus.LOCKED)
    for member in taken:
        me(member, "release")
    assert me(pool, "health_check") == (0, len(ODD))
    assert me(pool, "shrink", ODD) == len(ODD)
    assert me(pool, "keys") == []


def test_pools_whose_names_look_alike_are_apart(using: str) -> None:
    names = ["a", "a:b", "a%3Ab", "a b", "ä", "lock", "pool:a", "pool:a:"]
    pools = [LockPool(name, using=using) for name in names]
    for number, pool in enumerate(pools):
        pool.extend([f"key-{number}", "same"])
    for number, pool in enumerate(pools):
        assert pool.keys() == [f"key-{number}", "same"]
        assert pool.acquire(blocking_timeout=0).key == f"key-{number}"
        assert pool.health_check() == (1, 1)


@pytest.mark.complete
def test_an_assign_of_any_size_takes_effect_at_one_moment(pool: LockPool, using: str) -> None:
    many = 20_000 if using == "default" else 1_000
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


def test_members_that_do_not_all_arrive_change_nothing(accounts: LockPool, client: redis.Redis) -> None:
    sent = f"{PREFIX}next_members:x", f"{PREFIX}next_fresh:x"
    for key in sent:
        client.zadd(key, {"carol": 0})
    members = Script("members", "member")
    keys = (f"{PREFIX}slot:x", *make_keys(PREFIX, ANY).all, *sent, pools_key(PREFIX))
    with pytest.raises(redis.ResponseError, match="not all members have arrived"):
        client.eval(members.source, len(keys), *keys, 1, ANY, "switch", "channel", 0, 2)
    assert accounts.keys() == ["alice", "bob"]
    assert accounts.acquire(blocking_timeout=0).key == "alice"


@pytest.mark.complete
def test_a_process_that_dies_during_an_assign_changes_nothing_and_its_data_expires(
    accounts: LockPool, client: redis.Redis, start: Start, eventually: Eventually
) -> None:
    worker = start("say('begins'); LockPool(name).assign(f'key-{n}' for n in range(1_000_000))", name=POOL)
    worker.expect("begins")
    sent = eventually(lambda: client.keys(f"{PREFIX}next_*"), within=60)
    worker.kill()
    assert accounts.keys() == ["alice", "bob"]
    assert all(0 < int(client.pttl(key)) <= 60_000 for key in sent)


@pytest.mark.parametrize("method", ["extend", "shrink", "assign"])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("alice", TypeError, "must be an iterable of str, not the single str 'alice'"),
        (["alice", ""], TypeError, "must be a non-empty str, not ''"),
        (["alice", 7], TypeError, "must be a non-empty str, not 7"),
        ([b"alice"], TypeError, "must be a non-empty str, not b'alice'"),
        (["a" * 600], ValueError, r"The member name .* has 614 bytes; at most 512"),
    ],
)
def test_bad_members_are_refused_before_anything_is_sent(
    me: Any, method: str, keys: Any, error: type[Exception], message: str
) -> None:
    pool = LockPool(POOL)
    me(pool, "extend", ["bob"])
    with pytest.raises(error, match=message):
        me(pool, method, keys)
    assert me(pool, "keys") == ["bob"]


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


@pytest.mark.parametrize("refuses", [Lock, force_release, get_lock])
def test_a_pool_is_not_a_lock(refuses: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match=r"'pool:accounts:' is a pool, not a lock: LockPool\.acquire\(\) takes any"):
        refuses(ANY)


async def test_blocking_calls_in_an_event_loop_name_the_async_version() -> None:
    pool = LockPool(POOL)
    for twin, call in {
        "aextend": lambda: pool.extend(["x"]),
        "ashrink": lambda: pool.shrink(["x"]),
        "aassign": lambda: pool.assign(["x"]),
        "akeys": pool.keys,
        "alen": lambda: len(pool),
        "acontains": lambda: "alice" in pool,
        "aacquire": pool.acquire,
        "ainfo": pool.info,
        "aitems_locked_status": pool.items_locked_status,
        "avalues_lock_status": pool.values_lock_status,
        "ahealth_check": pool.health_check,
        "aclear": pool.clear,
    }.items():
        with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"Await {twin}() instead")):
            call()
    with pytest.raises(SynchronousOnlyOperation, match="Use async for instead"):
        list(pool)
