"""``list_locks()`` and ``list_pools()``, and pages of held locks: searched, sorted and cut, without reading more than
needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import (
    Lock,
    LockInfo,
    LockPool,
    LockStatus,
    LockUnavailable,
    PoolSummary,
    get_lock,
    list_locks,
    list_pools,
)
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.state import INDEX, put
from tests.helpers.ways import DJANGO_REDIS, alias, caches
from tests.inside import PREFIX, limit, page
from tests.inspection.conftest import hold

Eventually = Callable[..., Any]

COLUMNS = ["name", "owner", "held_for", "lease_left", "fence", "waiters"]
HELD = f"{PREFIX}held:pool:accounts:"
FAR = 4e15  # microseconds

each_way = pytest.mark.parametrize("way", ["list_locks", "name", "lease_left", "owner"])
both_ways = pytest.mark.parametrize("way", ["list_locks", "name"])


def listed(way: str) -> list[LockInfo]:
    """The held locks by ``list_locks()``, or those of a page with this order."""
    return list_locks() if way == "list_locks" else page(way).locks


def names(locks: list[LockInfo]) -> list[str]:
    return [lock.name for lock in locks]


def statuses(way: str) -> dict[str, LockStatus]:
    return {lock.name: lock.status for lock in listed(way)}


def test_every_held_lock_is_listed_by_name_until_it_is_released(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    assert you(django_redislock, "list_locks") == page("owner").locks == []
    locks = [Lock(name) for name in ("seat:2", "order:42", "seat:1")]
    for lock in locks:
        me(lock, "acquire")
    assert names(you(django_redislock, "list_locks")) == ["order:42", "seat:1", "seat:2"]
    for lock in locks:
        me(lock, "release")
    assert you(django_redislock, "list_locks") == []


@both_ways
def test_members_of_pools_are_listed_among_the_others_with_those_who_want_any(way: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    with pool.acquire(ttl=600) as alice, pool.acquire(ttl=300), Lock("a"):
        client.zadd(f"{PREFIX}queue:pool:accounts:", {"any": 1})
        client.zadd(f"{PREFIX}queue:pool:accounts:bob", {"first": 1, "second": 2})
        found = {lock.name: (lock.waiters, lock.pool_waiters) for lock in listed(way)}
        assert found == {"a": (0, 0), "pool:accounts:alice": (0, 1), "pool:accounts:bob": (2, 1)}
        _, first, second = listed(way)
        assert first.fence == alice.fence
        assert 270 < second.lease_left <= 300 < 570 < first.lease_left <= 600
        assert names(page("-waiters", "name").locks) == ["pool:accounts:bob", "pool:accounts:alice", "a"]
        assert names(page("lease_left").locks)[1:] == ["pool:accounts:bob", "pool:accounts:alice"]
    assert listed(way) == []


def test_other_prefixes_and_aliases_have_locks_of_their_own(server: RedisServer, settings: Any) -> None:
    entry = alias(DJANGO_REDIS, server.url)
    settings.CACHES = {**settings.CACHES, "default": entry, "other": {**entry, "KEY_PREFIX": "other"}}
    for using in ("default", "other", "memory"):
        hold(using, using=using)
    for using in ("default", "other", "memory"):
        assert names(list_locks(using=using)) == names(page(using=using).locks) == [using]
    settings.REDISLOCK = {"KEY_PREFIX": "elsewhere"}
    assert list_locks() == []


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
    assert names(list_locks()) == [*held, *(f"pool:accounts:{number:02}" for number in range(20))]
    assert not [command for command in client.info("commandstats") if "scan" in command or "keys" in command]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["Order:1", "a[1]*", "order:1", "order:12", "order:2"]),
        ("order:?", ["order:1", "order:2"]),
        ("order:[13]", ["order:1"]),
        ("order:[!1]", ["order:2"]),
        ("a[[]1][*]", ["a[1]*"]),
        *((text, []) for text in ("order", "", "[", "[z-a]", "\\", "(", "^order:1$", ".*", "order:1\n", "?" * 600)),
    ],
)
def test_patterns_are_shell_style_and_match_the_whole_name_case_sensitively(pattern: str, found: list[str]) -> None:
    for name in ("order:1", "order:12", "order:2", "Order:1", "a[1]*"):
        hold(name)
    assert names(list_locks(pattern)) == found


@pytest.mark.parametrize("ask", [list_locks, list_pools])
def test_a_pattern_that_is_no_text_is_refused(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^A pattern of names must be a str, not None\.$"):
        ask(None)


def test_expired_locks_are_not_listed_and_their_entries_vanish_as_others_are_taken(
    client: redis.Redis, eventually: Eventually
) -> None:
    for number in range(40):
        hold(f"expired:{number}", ttl=0.05)
    hold("held", ttl=600)
    eventually(lambda: len(list(client.scan_iter(f"{PREFIX}lock:*"))) == 1)
    assert client.zcard(INDEX) > 1
    assert names(list_locks()) == names(page().locks) == ["held"]

    def vanished() -> bool:
        with Lock("other"):
            pass
        return bool(client.zcard(INDEX) == 1)

    eventually(vanished)
    assert names(list_locks()) == ["held"]


@each_way
def test_what_others_wrote_under_our_keys_hides_no_lock(way: str, client: redis.Redis) -> None:
    put(client, "ours", waiters=1)
    client.zadd(INDEX, {b"\x1b[2J": FAR, b"\xff\xfe": FAR, b"no such lock": FAR, b"": FAR, b"pool:a:": FAR})
    client.set(f"{PREFIX}lock:\x1b[2J", f"{'t' * 22} channel c 5 1700000000000000 - owner")
    foreign = {f"foreign:{value!r}": value for value in (b"", b"x", b"\xff\xfe\x00", b"id channel c 1 1 -")}
    for name, value in foreign.items():
        put(client, name)
        client.set(f"{PREFIX}lock:{name}", value, px=60_000)
    for name in ("list", "queue"):
        put(client, name)
    client.delete(f"{PREFIX}lock:list")
    client.lpush(f"{PREFIX}lock:list", "x")
    client.set(f"{PREFIX}queue:queue", "no queue")
    for score in ("1e300", "inf"):
        client.zadd(INDEX, {"ours": score})
        ours = {"ours": LockStatus.UNAVAILABLE, "queue": LockStatus.UNAVAILABLE}
        assert statuses(way) == {**ours, **dict.fromkeys(foreign, LockStatus.ERROR)}
        assert {lock.name: lock.waiters for lock in listed(way) if lock.name in ours} == {"ours": 1, "queue": 0}
        assert all(0 < lock.lease_left <= 60 for lock in listed(way) if lock.name == "ours")


@both_ways
@pytest.mark.parametrize("denied", ["mget", "zrange"])
def test_a_user_that_may_not_read_locks_is_lock_unavailable(
    way: str, denied: str, client: redis.Redis, server: RedisServer
) -> None:
    hold("a")
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{denied}"])
    blind = alias(DJANGO_REDIS, server.url.replace("//", "//blind:any@"))
    with caches(blind), pytest.raises(LockUnavailable, match=r"refuses .*'default'"):
        listed(way)
    client.acl_deluser("blind")


@pytest.mark.usefixtures("endless")
@each_way
def test_locks_that_never_end_are_listed_and_found(way: str, trips: list[int]) -> None:
    everyone = {"persisted": LockStatus.ERROR, "foreign": LockStatus.ERROR, "sound": LockStatus.UNAVAILABLE}
    assert statuses(way) == everyone
    assert len(trips) <= 3
    if way != "list_locks":
        assert (page(way).matching, page(way).total) == (3, 3)
        searched = page(way, words=["WEB"])
        assert (names(searched.locks), searched.matching, searched.total) == (["persisted"], 1, 3)
        found = page(way, names={"persisted", "foreign"}).locks
        assert {lock.name: lock.owner for lock in found} == {"foreign": "?", "persisted": "web-1"}
    info = get_lock("persisted")
    assert info is not None
    assert (info.lease_left, info.expires.year) == (math.inf, 9999)
    assert names(page("lease_left").locks)[0] == names(page("-lease_left").locks)[-1] == "sound"


@pytest.fixture
def three(client: redis.Redis) -> None:
    put(client, "a", owner="web-2", since=10, ttl=300, waiters=2)
    put(client, "b", owner="web-1", since=30, ttl=100)
    put(client, "c", owner="Web-2", since=20, ttl=200, waiters=5)


@pytest.mark.usefixtures("three")
def test_pages_are_sorted_cut_and_searched() -> None:
    told: list[int] = []

    def cut(count: int) -> slice:
        told.append(count)
        return slice(1, 2)

    orders = zip(COLUMNS, ["abc", "cba", "acb", "bca", "bca", "bac"], strict=True)
    for column, ascending in (each for each in orders if each[0] != "owner"):
        assert "".join(names(page(column).locks)) == ascending
        assert "".join(names(page(f"-{column}").locks)) == ascending[::-1]
    found = page(cut=cut, words=["WEB"])
    assert told == [3]
    assert (names(found.locks), found.matching, found.total) == (["b"], 3, 3)
    for words, matching in ((["web-2"], ["a", "c"]), (["WEB", "c"], ["c"]), (["*"], []), (["["], [])):
        found = page(words=words)
        assert (names(found.locks), found.matching, found.total) == (matching, len(matching), 3)
    found = page(names={"a", "c", "free"})
    assert (names(found.locks), found.matching, found.total) == (["a", "c"], 2, 3)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("words", [[], ["a"]])
def test_the_number_of_round_trips_does_not_grow_with_the_locks(
    column: str, words: list[str], client: redis.Redis, trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a:0")
    page(column, words=words)
    few = len(trips)
    for number in range(1, 25):
        put(client, f"a:{number}", waiters=number % 3)
    trips.clear()
    limit(monkeypatch, list_batch=7)
    assert len(page(column, words=words, last=10).locks) == 10
    assert len(trips) == few <= 3


@pytest.mark.usefixtures("two_aliases")
def test_a_page_has_the_locks_of_every_alias_sorted_and_cut_together(trips: list[int]) -> None:
    for number, using in enumerate(["locks", "default", "again", "locks"]):
        assert Lock(f"order:{number}", using=using).acquire()
    found = page("-fence", cut=lambda count: slice(1, count))
    pairs = [("order:2", "default"), ("order:1", "default"), ("order:0", "locks")]
    assert [(lock.name, lock.alias) for lock in found.locks] == pairs
    assert (found.matching, found.total) == (4, 4)
    trips.clear()
    assert names(page(using="default").locks) == ["order:1", "order:2"]
    assert len(trips) == 2


def summary(name: str, members: int, held: int = 0, waiters: int = 0) -> PoolSummary:
    return PoolSummary(name, "default", members, held, waiters)


def test_every_pool_is_listed_by_name_as_long_as_it_has_members(crowd: Crowd, client: redis.Redis) -> None:
    me, you = crowd(), crowd()
    assert you(django_redislock, "list_pools") == []
    for name, members in (("b", "xyz"), ("a:ä", "x"), ("c", "x")):
        me(LockPool(name), "assign", list(members))
    assert you(django_redislock, "list_pools") == [summary("a:ä", 1), summary("b", 3), summary("c", 1)]
    assert you(django_redislock, "list_pools", "?") == [summary("b", 3), summary("c", 1)]
    me(LockPool("b"), "shrink", ["x", "y"])
    me(LockPool("c"), "clear")
    me(LockPool("a:ä"), "shrink", ["x"])
    assert you(django_redislock, "list_pools") == [summary("b", 1)]
    client.set(f"{PREFIX}pools", "a text")
    with pytest.raises(LockUnavailable, match="pools"):
        you(django_redislock, "list_pools")


def test_members_that_are_held_suspended_or_waited_for_are_counted(crowd: Crowd, eventually: Any) -> None:
    me, you, pool = crowd(), crowd(), LockPool("accounts")
    me(pool, "extend", ["alice", "bob", "carol"])
    member = me(pool, "acquire")
    me(pool, "suspend", "carol", 600)
    assert list_pools() == [summary("accounts", 3, held=2)]
    me(pool, "acquire")
    waiting = you.start(pool, "acquire")
    eventually(lambda: list_pools() == [summary("accounts", 3, held=3, waiters=1)])
    me(member, "release")
    waiting.result(30)
    assert list_pools() == [summary("accounts", 3, held=3)]
