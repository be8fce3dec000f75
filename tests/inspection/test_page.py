"""Pages of held locks: searching, sorting and slicing, without reading more than needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockNotAcquired, LockPool, LockStatus, LockUnavailable, list_locks
from django_redislock.inspection.listing import ORDERS, Page, read_page
from redisserver import RedisServer
from tests.helpers.actors import server_time
from tests.helpers.state import INDEX, put
from tests.inside import limit

PREFIX = "redislock{0}:"
each_column = pytest.mark.parametrize("column", ORDERS)


def page(*order: str, first: int = 0, last: int = 100, words: list[str] | None = None) -> Page:
    return read_page(cut=lambda count: slice(first, last), words=words or [], order=order or ("name",))


def names(*order: str, **options: Any) -> list[str]:
    return [lock.name for lock in page(*order, **options).locks]


@pytest.fixture
def three(client: redis.Redis) -> None:
    put(client, "a", owner="web-2", since=10, ttl=300, waiters=2)
    put(client, "b", owner="web-1", since=30, ttl=100)
    put(client, "c", owner="web-3", since=20, ttl=200, waiters=5)


def test_nothing_is_held_and_the_page_is_empty() -> None:
    assert page("owner") == Page([], 0, 0)


# -- sorting, searching, cutting ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("column", "ascending"),
    [
        ("name", "abc"),
        ("owner", "bac"),
        ("held_for", "acb"),
        ("lease_left", "bca"),
        ("fence", "bca"),
        ("waiters", "bac"),
    ],
)
def test_every_column_sorts_both_ways(column: str, ascending: str) -> None:
    assert "".join(names(column)) == ascending
    assert "".join(names(f"-{column}")) == ascending[::-1]


def test_the_first_column_counts_most_and_ties_go_to_the_next(client: redis.Redis) -> None:
    for name, owner in {"a": "x", "b": "y", "c": "x", "d": "y"}.items():
        put(client, name, owner=owner)
    assert names("-owner", "name") == ["b", "d", "a", "c"]
    assert names("owner", "-name") == ["c", "a", "d", "b"]


@pytest.mark.usefixtures("three")
def test_a_page_tells_of_its_locks_what_list_locks_tells() -> None:
    locks, listed = page().locks, list_locks()
    assert [(lock.name, lock.owner, lock.fence, lock.since, lock.waiters) for lock in locks] == [
        (lock.name, lock.owner, lock.fence, lock.since, lock.waiters) for lock in listed
    ]
    assert locks[0].lease_left == pytest.approx(listed[0].lease_left, abs=30)


@pytest.mark.usefixtures("three")
def test_the_cut_is_told_how_many_match_and_decides_what_is_shown() -> None:
    told: list[int] = []

    def cut(count: int) -> slice:
        told.append(count)
        return slice(1, 2)

    found = read_page(cut=cut, words=["web"])
    assert told == [3]
    assert [lock.name for lock in found.locks] == ["b"]
    assert (found.matching, found.total) == (3, 3)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ["Order:1", "order:2", "seat:1"]),
        (["order"], ["Order:1", "order:2"]),
        (["ORDER"], ["Order:1", "order:2"]),
        (["WEB-1"], ["Order:1", "seat:1"]),
        (["order", "web-1"], ["Order:1"]),
        ([":1", ":2"], []),
        (["*"], []),
        (["["], []),
    ],
)
def test_all_words_must_stand_in_name_or_owner_whatever_their_case(
    words: list[str], found: list[str], client: redis.Redis
) -> None:
    for name, owner in {"Order:1": "web-1", "order:2": "Web-2", "seat:1": "Web-1"}.items():
        put(client, name, owner=owner)
    result = page(words=words)
    assert [lock.name for lock in result.locks] == found
    assert (result.matching, result.total) == (len(found), 3)


@pytest.mark.usefixtures("three")
def test_of_given_names_only_those_that_are_held_are_found() -> None:
    found = read_page(names={"a", "c", "free"})
    assert [lock.name for lock in found.locks] == ["a", "c"]
    assert (found.matching, found.total) == (2, 3)


def test_members_of_pools_are_listed_with_those_who_want_any(client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    with pool.acquire(ttl=600), pool.acquire(ttl=300):
        put(client, "a", waiters=2)
        client.zadd(f"{PREFIX}queue:pool:accounts:", {"any": 1})
        client.zadd(f"{PREFIX}queue:pool:accounts:bob", {"first": 1, "second": 2})
        rows = page("-waiters", "name").locks
        assert [(lock.name, lock.waiters, lock.pool_waiters) for lock in rows] == [
            ("pool:accounts:bob", 2, 1),
            ("a", 2, 0),
            ("pool:accounts:alice", 0, 1),
        ]
        left = {lock.name: lock.lease_left for lock in rows}
        assert 270 < left["pool:accounts:bob"] <= 300
        assert 570 < left["pool:accounts:alice"] <= 600
        assert names("lease_left") == ["a", "pool:accounts:bob", "pool:accounts:alice"]


def test_the_memory_mode_has_pages_too() -> None:
    Lock("a", using="memory").acquire()
    found = read_page(cut=lambda count: slice(0, 10), order=["-waiters", "owner"], words=["a"], using="memory")
    assert [lock.name for lock in found.locks] == ["a"]


# -- what it costs --------------------------------------------------------------------------------------------------


@each_column
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


def test_sorted_as_the_index_is_only_the_locks_of_the_page_are_read(client: redis.Redis, trips: list[int]) -> None:
    for number in range(50):
        put(client, f"a:{number}")
    page(last=10)
    assert trips == [2, 2 + 10 + 10]  # the clock and the index; the clock, ten values at once, ten ends, ten queues


# -- what has gone, and what others wrote ---------------------------------------------------------------------------


def test_what_has_expired_is_not_counted_though_the_index_still_has_it(client: redis.Redis) -> None:
    put(client, "held")
    client.zadd(INDEX, {"expired": server_time(client) - 1})
    assert page().total == 1


def test_a_lock_that_is_released_while_the_page_is_read_is_left_out(client: redis.Redis) -> None:
    put(client, "a")
    put(client, "b")

    def cut(count: int) -> slice:
        client.delete(f"{PREFIX}lock:a")
        return slice(0, 100)

    assert [lock.name for lock in read_page(cut=cut).locks] == ["b"]


@each_column
def test_what_others_wrote_under_our_keys_hides_no_lock(column: str, client: redis.Redis) -> None:
    put(client, "ours", waiters=1)
    for name in ("foreign", "wrong type", "bad\nname"):
        put(client, name)
    client.set(f"{PREFIX}lock:foreign", "foreign", px=60_000)
    client.delete(f"{PREFIX}lock:wrong type")
    client.lpush(f"{PREFIX}lock:wrong type", "x")
    put(client, "queue")
    client.set(f"{PREFIX}queue:queue", "no queue")
    assert {lock.name: lock.waiters for lock in page(column).locks} == {"foreign": 0, "ours": 1, "queue": 0}


def test_a_user_that_may_not_read_the_index_is_lock_unavailable(client: redis.Redis, server: RedisServer) -> None:
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-zrange"])
    blind = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url.replace("//", "//blind:any@")}
    try:
        with override_settings(CACHES={"default": blind}), pytest.raises(LockUnavailable, match="refuses"):
            page()
    finally:
        client.acl_deluser("blind")


def test_redis_out_of_reach_is_lock_unavailable() -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with override_settings(CACHES={"default": nowhere}), pytest.raises(LockUnavailable, match="alias 'default'"):
        page()


# -- locks that never end -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("order", [*ORDERS, "-lease_left"])
def test_locks_that_never_end_are_listed(order: str) -> None:
    found = page(order)
    assert {lock.name: lock.status for lock in found.locks} == {
        "persisted": LockStatus.ERROR,
        "foreign": LockStatus.ERROR,
        "sound": LockStatus.UNAVAILABLE,
    }
    assert (found.matching, found.total) == (3, 3)
    searched = page(order, words=["WEB"])
    assert [lock.name for lock in searched.locks] == ["persisted"]
    assert (searched.matching, searched.total) == (1, 3)


@pytest.mark.usefixtures("endless")
def test_they_come_last_by_what_is_left() -> None:
    assert names("lease_left")[0] == "sound"
    assert names("-lease_left")[-1] == "sound"


@pytest.mark.usefixtures("endless")
def test_they_are_found_by_name() -> None:
    found = read_page(names={"persisted", "foreign"})
    assert [(lock.name, lock.owner) for lock in found.locks] == [("foreign", "?"), ("persisted", "web-1")]


def test_one_that_was_ours_is_found_the_moment_that_its_lease_would_have_ended(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    lock = Lock("a", ttl=0.2, auto_renew=False)
    lock.acquire()
    client.persist(f"{PREFIX}lock:a")
    eventually(lambda: names() == ["a"] and page().locks[0].status is LockStatus.ERROR)


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300"])
def test_a_lease_in_the_index_that_cannot_be_is_still_a_time(score: str, client: redis.Redis) -> None:
    put(client, "a", ttl=60)
    client.zadd(INDEX, {"a": score})
    (lock,) = page().locks
    assert lock.status is LockStatus.UNAVAILABLE
    assert 0 < lock.lease_left <= 60
    assert [lock.expires.year < 9999 for lock in list_locks()] == [True]


def test_a_pools_member_that_never_ends_is_listed_once_somebody_has_wanted_this_one(client: redis.Redis) -> None:
    LockPool("accounts").extend(["alice"])
    client.hset(f"{PREFIX}held:pool:accounts:", "alice", "somebody's")
    assert not Lock("pool:accounts:alice").acquire(blocking=False)
    (shown,) = page().locks
    assert (shown.name, shown.status, shown.owner) == ("pool:accounts:alice", LockStatus.ERROR, "?")


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken before"])
def test_a_pools_member_that_never_ends_is_listed_once_somebody_has_wanted_any(
    client: redis.Redis, taken: bool
) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    if taken:
        with pool.acquire():
            pass
    client.hset(f"{PREFIX}held:pool:accounts:", "alice", "somebody's")
    with pytest.raises(LockNotAcquired):
        pool.acquire(blocking_timeout=0.1)
    (shown,) = page().locks
    assert (shown.name, shown.status) == ("pool:accounts:alice", LockStatus.ERROR)


def test_a_pools_member_whose_end_somebody_has_taken_away_is_listed(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    pool.acquire(ttl=0.2, auto_renew=False)
    client.zrem(f"{PREFIX}busy:pool:accounts:", "alice")
    eventually(lambda: [lock.status for lock in page().locks] == [LockStatus.ERROR])


def test_one_that_somebody_waits_for_is_listed_however_long_it_has_stood(client: redis.Redis) -> None:
    put(client, "persisted", ttl=1, now=server_time(client) - 5_000_000)
    client.persist(f"{PREFIX}lock:persisted")
    for number in range(16):
        Lock(f"other:{number}").acquire()
    assert not Lock("persisted").acquire(blocking=False)
    assert names(words=["pers"]) == ["persisted"]


# -- several aliases --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_aliases")
def test_a_page_has_the_locks_of_every_alias_sorted_and_cut_together(trips: list[int]) -> None:
    for number, using in enumerate(["locks", "default", "again", "locks"]):
        assert Lock(f"order:{number}", using=using).acquire()
    found = read_page(cut=lambda count: slice(1, count), order=["-fence"])
    assert [(lock.name, lock.alias) for lock in found.locks] == [
        ("order:2", "default"),
        ("order:1", "default"),
        ("order:0", "locks"),
    ]
    assert (found.matching, found.total) == (4, 4)
    trips.clear()
    assert [lock.name for lock in read_page(using="default").locks] == ["order:1", "order:2"]
    assert len(trips) == 2
