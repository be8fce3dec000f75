"""``list_locks()``: all held locks, or those whose names match a pattern."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings

import django_redislock
from django_redislock import (
    Lock,
    LockPool,
    LockStatus,
    LockUnavailable,
    force_release,
    get_lock,
    list_locks,
    list_pools,
    lock_name,
)
from redisserver import RedisServer
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.state import INDEX
from tests.inside import limit
from tests.inspection.conftest import Queue, hold

PREFIX = "redislock{0}:"
FAR = 4e15  # microseconds


def names(pattern: str = "*") -> list[str]:
    return [lock.name for lock in list_locks(pattern)]


def test_every_held_lock_is_listed_by_name_until_it_is_released(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    assert you(django_redislock, "list_locks") == []
    locks = [Lock(name) for name in ("seat:2", "order:42", "seat:1")]
    for lock in locks:
        me(lock, "acquire")
    assert [lock.name for lock in you(django_redislock, "list_locks")] == ["order:42", "seat:1", "seat:2"]
    for lock in locks:
        me(lock, "release")
    assert you(django_redislock, "list_locks") == []


def test_a_listed_lock_tells_what_get_lock_tells_short_of_the_queue(queue_up: Queue, crowd: Crowd) -> None:
    hold("a", ttl=600, note="for people")
    queue_up("a", 3)
    (listed,) = crowd()(django_redislock, "list_locks", "a")
    alone = get_lock("a")
    assert alone is not None
    facts = ("name", "owner", "fence", "since", "waiters", "token_hint", "note", "status")
    assert [getattr(listed, fact) for fact in facts] == [getattr(alone, fact) for fact in facts]
    assert (listed.waiters, listed.queue) == (3, ())
    assert listed.lease_left == pytest.approx(alone.lease_left, abs=30)


def test_members_of_pools_are_listed_among_the_others(ghost: Callable[..., Ghost]) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    with pool.acquire(ttl=600) as alice, Lock("a"):
        ghost(alive=False).queue("t" * 22, name="pool:accounts:")
        _, listed = list_locks()
        assert (listed.name, listed.fence, listed.pool_waiters) == ("pool:accounts:alice", alice.fence, 1)
        assert 500 < listed.lease_left <= 600
        assert names("pool:*") == ["pool:accounts:alice"]
    assert names() == []


def test_other_prefixes_and_aliases_have_locks_of_their_own(server: RedisServer) -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    with override_settings(CACHES={"default": entry, "other": {**entry, "KEY_PREFIX": "other"}}):
        hold("here")
        hold("there", using="other")
        assert names() == ["here"]
        assert [lock.name for lock in list_locks(using="other")] == ["there"]
        with override_settings(REDISLOCK={"KEY_PREFIX": "elsewhere"}):
            assert list_locks() == []


def test_the_memory_mode_lists_its_own() -> None:
    lock = Lock("a", using="memory")
    lock.acquire()
    assert [found.fence for found in list_locks(using="memory")] == [lock.fence]
    assert list_locks() == []


# -- patterns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["Order:1", "order:1", "order:12", "order:2", "seat:1"]),
        ("order:*", ["order:1", "order:12", "order:2"]),
        ("order:?", ["order:1", "order:2"]),
        ("order:[13]", ["order:1"]),
        ("order:[!1]", ["order:2"]),
        ("*:1", ["Order:1", "order:1", "seat:1"]),
        ("order:1", ["order:1"]),
        ("order", []),
        ("", []),
    ],
)
def test_patterns_are_shell_style_and_match_the_whole_name_case_sensitively(pattern: str, found: list[str]) -> None:
    for name in ("order:1", "order:12", "order:2", "Order:1", "seat:1"):
        hold(name)
    assert names(pattern) == found


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "[!",
        "[]",
        "[z-a]",
        "[a-",
        "\\",
        "(",
        "^order:1$",
        ".*",
        "order:1\n",
        "order:\x001",
        "*" * 60 + "b",
        "?" * 600,
    ],
)
def test_hostile_patterns_match_nothing_and_break_nothing(pattern: str) -> None:
    hold("order:1")
    hold("a" * 500)
    assert names(pattern) == []


SLOW = ["a*" * 250 + "b", "*a" * 250 + "b", "?*" * 250 + "b", "*" * 500 + "b", "[a" * 250, "*" + "[a-z]*" * 80 + "!"]


@pytest.mark.parametrize("pattern", SLOW, ids=lambda pattern: pattern[:12])
def test_a_pattern_that_would_try_every_way_is_matched_at_once(
    pattern: str, settings: Any, client: redis.Redis
) -> None:
    """Python's fnmatch does not backtrack over earlier stars. Redis's own patterns are not used."""
    held = [lock_name("a" * 500, number) for number in range(50)]
    client.zadd(INDEX, dict.fromkeys(held, 9e15))
    start = time.process_time()
    assert names(pattern) == []
    settings.REDISLOCK = {"TTLS": {pattern: 5}}
    assert {Lock(name).ttl for name in held} == {30}
    assert time.process_time() - start < 5


@pytest.mark.parametrize("ask", [list_locks, list_pools])
def test_a_pattern_that_is_no_text_is_refused(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^A pattern of names must be a str, not None\.$"):
        ask(None)


def test_no_pattern_is_ever_given_to_redis() -> None:
    package = Path(django_redislock.__file__).parent
    # reset() for the tests of a site asks for names
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".lua") and path.name != "testing.py"]
    assert len(sources) > 50
    command = re.compile(r"""[(\[]["'](KEYS|SCAN|[HSZ]SCAN|PSUBSCRIBE|SORT|CONFIG)["']|["']MATCH["']""")
    assert [path.name for path in sources if command.search(path.read_text("utf-8"))] == []


def test_a_name_with_pattern_characters_is_found_by_quoting_them() -> None:
    for name in ("a[1]*", "a1x"):
        hold(name)
    assert names("a[[]1][*]") == ["a[1]*"]


def test_more_locks_than_one_batch_are_all_listed_without_a_scan(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, list_batch=7)
    held = [f"a:{number:02}" for number in range(30)]
    for name in held:
        hold(name)
    pool = LockPool("accounts")
    pool.extend([f"{number:02}" for number in range(20)])
    for _ in range(20):
        pool.acquire()
    client.config_resetstat()
    assert names() == [*held, *(f"pool:accounts:{number:02}" for number in range(20))]
    assert not [command for command in client.info("commandstats") if "scan" in command or "keys" in command]


# -- the index ------------------------------------------------------------------------------------------------------


def test_expired_locks_are_not_listed_though_the_index_still_has_them(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    hold("a", ttl=0.1)
    eventually(lambda: not client.exists(f"{PREFIX}lock:a"))
    assert client.zcard(INDEX) == 1
    assert list_locks() == []


def test_entries_of_expired_locks_vanish_as_others_are_taken_and_those_of_held_ones_stay(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    for number in range(40):
        hold(f"expired:{number}", ttl=0.05)
    hold("held", ttl=600)
    assert client.zcard(INDEX) > 1

    def vanished() -> bool:
        with Lock("other"):
            pass
        return bool(client.zcard(INDEX) == 1)

    eventually(vanished)
    assert names() == ["held"]


def test_a_lock_whose_waiters_are_all_dead_leaves_no_entry_when_it_is_released(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    with Lock("a"):
        ghost(alive=False).queue("x" * 22, name="a")
    assert client.zcard(INDEX) == 0


def test_entries_without_a_lock_or_that_are_no_name_are_not_listed(client: redis.Redis) -> None:
    client.set(f"{PREFIX}lock:\x1b[2J", f"{'t' * 22} channel c 5 1700000000000000 - owner")
    client.zadd(INDEX, {b"\x1b[2J": FAR, b"\xff\xfe": FAR, b"no such lock": FAR, b"": FAR, b"pool:a:": FAR})
    hold("ours")
    assert names() == ["ours"]


@pytest.mark.parametrize("value", [b"", b"x", b"\xff\xfe\x00", b"id channel c 1 1 -"], ids=repr)
def test_a_foreign_value_is_listed_and_hides_no_lock(value: bytes, client: redis.Redis) -> None:
    client.set(f"{PREFIX}lock:foreign", value, px=60_000)
    client.zadd(INDEX, {"foreign": FAR})
    hold("ours")
    assert {lock.name: lock.status for lock in list_locks()} == {
        "foreign": LockStatus.ERROR,
        "ours": LockStatus.UNAVAILABLE,
    }


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_are_listed(trips: list[int]) -> None:
    assert {lock.name: lock.status for lock in list_locks()} == {
        "foreign": LockStatus.ERROR,
        "persisted": LockStatus.ERROR,
        "sound": LockStatus.UNAVAILABLE,
    }
    assert len(trips) == 2


def test_a_lock_that_never_ends_is_listed_before_its_lease_would_have_ended(client: redis.Redis) -> None:
    hold("a", ttl=600)
    client.persist(f"{PREFIX}lock:a")
    assert [lock.status for lock in list_locks()] == [LockStatus.ERROR]


def test_an_entry_beyond_all_times_is_still_a_time(client: redis.Redis) -> None:
    hold("a")
    client.zadd(INDEX, {"a": 1e300})
    (lock,) = list_locks()
    assert lock.expires > datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("key", ["lock", "queue"])
def test_a_key_of_the_wrong_type_hides_no_other_lock(key: str, client: redis.Redis) -> None:
    hold("ours")
    hold("broken")
    client.delete(f"{PREFIX}{key}:broken")
    client.hset(f"{PREFIX}{key}:broken", "some", "hash")
    assert "ours" in names()


@pytest.mark.parametrize("taken", [INDEX, f"{PREFIX}held:pool:accounts:"])
def test_a_key_of_many_locks_of_the_wrong_type_is_a_clear_error(taken: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    pool.acquire()
    client.set(taken, "something")
    with pytest.raises(LockUnavailable, match=r"alias 'default'.*(WRONGTYPE|wrong kind)"):
        list_locks()


def test_a_user_that_may_not_read_locks_is_lock_unavailable(client: redis.Redis, server: RedisServer) -> None:
    hold("a")
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-mget"])
    blind = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url.replace("//", "//blind:any@")}
    try:
        with override_settings(CACHES={"default": blind}), pytest.raises(LockUnavailable, match=r"refuses .*'default'"):
            list_locks()
    finally:
        client.acl_deluser("blind")


def test_what_was_force_released_is_listed_no_more() -> None:
    for name in "ab":
        hold(name)
    force_release("a")
    assert names() == ["b"]
