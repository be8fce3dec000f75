from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockUnavailable, list_locks
from django_redislock.connection import Backend
from django_redislock.listing import ORDERS, Page, read_page
from redisserver import RedisServer

from .actors import NAME, Ghost, put, server_time

PREFIX = "redislock{0}:"


def page(*order: str, first: int = 0, last: int = 100, words: list[str] | None = None) -> Page:
    return read_page(cut=lambda count: slice(first, last), words=words or [], order=order or ("name",))


def names(*order: str, **options: Any) -> list[str]:
    return [lock.name for lock in page(*order, **options).locks]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands of each round trip."""
    made: list[int] = []
    execute, execute_many = Backend.execute, Backend.execute_many

    def one(self: Backend, command: Any) -> Any:
        made.append(1)
        return execute(self, command)

    def many(self: Backend, commands: Any) -> Any:
        made.append(len(commands))
        return execute_many(self, commands)

    monkeypatch.setattr(Backend, "execute", one)
    monkeypatch.setattr(Backend, "execute_many", many)
    return made


@pytest.fixture
def three(client: redis.Redis) -> None:
    put(client, "a", owner="web-2", since=10, ttl=300, waiters=2)
    put(client, "b", owner="web-1", since=30, ttl=100)
    put(client, "c", owner="web-3", since=20, ttl=200, waiters=5)


def test_nothing_is_held_and_the_page_is_empty() -> None:
    assert page("owner") == Page([], 0, 0)


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
    assert locks[0].lease_left == pytest.approx(listed[0].lease_left, abs=5)


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


def test_what_has_expired_is_not_counted_though_the_index_still_has_it(client: redis.Redis) -> None:
    put(client, "held")
    client.zadd(f"{PREFIX}index", {"expired": server_time(client) - 1})
    assert page().total == 1


def test_a_lock_whose_waiters_are_all_dead_is_not_in_the_index_when_it_is_released(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    lock = Lock(NAME)
    assert lock.acquire()
    ghost(alive=False).queue("x" * 22, mode="F")
    lock.release()
    assert client.zcard("redislock{0}:index") == 0


@pytest.mark.parametrize("order", ["name", "owner", "waiters"])
def test_what_others_wrote_under_our_keys_hides_no_lock(order: str, client: redis.Redis) -> None:
    put(client, "ours", waiters=1)
    for name in ("foreign", "wrong type", "bad\nname"):
        put(client, name)
    client.set(f"{PREFIX}lock:foreign", "foreign")
    client.delete(f"{PREFIX}lock:wrong type")
    client.lpush(f"{PREFIX}lock:wrong type", "x")
    put(client, "queue")
    client.set(f"{PREFIX}queue:queue", "no queue")
    assert "ours" in names(order)
    assert {"foreign", "wrong type", "bad\nname"}.isdisjoint(names(order))


def test_a_lock_that_is_released_while_the_page_is_read_is_left_out(client: redis.Redis) -> None:
    put(client, "a")
    put(client, "b")

    def cut(count: int) -> slice:
        client.delete(f"{PREFIX}lock:a")
        return slice(0, 100)

    assert [lock.name for lock in read_page(cut=cut).locks] == ["b"]


@pytest.mark.parametrize("column", ORDERS)
@pytest.mark.parametrize("words", [[], ["a"]])
def test_the_number_of_round_trips_does_not_grow_with_the_locks(
    column: str, words: list[str], client: redis.Redis, trips: list[int]
) -> None:
    put(client, "a:0")
    page(column, words=words)
    few = len(trips)
    for number in range(1, 25):
        put(client, f"a:{number}", waiters=number % 3)
    trips.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redislock.registry.BATCH", 7)
        assert len(page(column, words=words, last=10).locks) == 10
    assert len(trips) == few <= 3


def test_sorted_as_the_index_is_only_the_locks_of_the_page_are_read(client: redis.Redis, trips: list[int]) -> None:
    for number in range(50):
        put(client, f"a:{number}")
    page(last=10)
    assert trips == [2, 2 + 10]  # the clock and the index; the clock, ten values at once, and ten queues


def test_the_memory_mode_has_pages_too() -> None:
    Lock("a", using="memory").acquire()
    found = read_page(cut=lambda count: slice(0, 10), order=["-waiters", "owner"], words=["a"], using="memory")
    assert [lock.name for lock in found.locks] == ["a"]


def test_a_user_that_may_not_read_the_index_is_lock_unavailable(client: redis.Redis, server: RedisServer) -> None:
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-zrange"])
    blind = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url.replace("//", "//blind:any@")}
    with override_settings(CACHES={"default": blind}), pytest.raises(LockUnavailable, match="refuses"):
        page()
    client.acl_deluser("blind")


def test_redis_out_of_reach_is_lock_unavailable() -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with override_settings(CACHES={"default": nowhere}), pytest.raises(LockUnavailable, match="alias 'default'"):
        page()
