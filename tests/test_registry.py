from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import (
    FairLock,
    Lock,
    LockInfo,
    LockLost,
    LockUnavailable,
    aforce_release,
    force_release,
    get_lock,
    list_locks,
    lock_force_released,
    scripts,
)
from django_redislock.connection import get_backend
from django_redislock.names import make_keys
from django_redislock.steps import run
from redisserver import RedisServer

PREFIX = "redislock{0}:"
INDEX = f"{PREFIX}index"
FAR = 4e15  # microseconds


def hold(name: str, **options: Any) -> str:
    """Leave the lock held by nobody in particular; answers the token."""
    lock = Lock(name, **options)
    assert lock.acquire(blocking=False)
    return lock.detach()


def queue_up(name: str, count: int) -> list[str]:
    """Let ``count`` waiters of this process queue; answers their owners in order."""
    backend = get_backend()
    keys = make_keys(backend.prefix, name)
    owners = [f"waiter-{number}" for number in range(count)]
    for number, owner in enumerate(owners):
        token = f"{number:022}"
        run(scripts.acquire(backend, keys, name, token, ttl=30_000, mode="F", wait="1", ticket=None, owner=owner))
    return owners


@pytest.fixture
def wait_for(eventually: Callable[..., Any]) -> Iterator[Callable[..., threading.Event]]:
    """Let a thread wait for a lock; the event tells that it had it."""
    threads: list[threading.Thread] = []

    def wait_for(name: str, kind: type[Lock] = FairLock) -> threading.Event:
        got = threading.Event()

        def wait() -> None:
            with kind(name, blocking_timeout=60):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        threads.append(thread)
        eventually(lambda: (info := get_lock(name)) and info.waiters)
        return got

    yield wait_for
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


# -- list_locks -----------------------------------------------------------------------------------------------------


def test_no_locks_are_listed_when_none_are_held() -> None:
    assert list_locks() == []


def test_every_held_lock_is_listed_by_name() -> None:
    for name in ("seat:2", "order:42", "seat:1"):
        hold(name)
    assert [lock.name for lock in list_locks()] == ["order:42", "seat:1", "seat:2"]


def test_a_released_lock_is_not_listed() -> None:
    with Lock("a"):
        assert [lock.name for lock in list_locks()] == ["a"]
    assert list_locks() == []


def test_a_listed_lock_tells_what_get_lock_tells_short_of_the_queue() -> None:
    hold("a", ttl=600)
    queue_up("a", 3)
    (listed,) = list_locks()
    alone = get_lock("a")
    assert alone is not None
    assert (listed.owner, listed.fence, listed.since, listed.waiters, listed.token_hint) == (
        alone.owner,
        alone.fence,
        alone.since,
        3,
        alone.token_hint,
    )
    assert listed.queue == ()
    assert listed.lease_left == pytest.approx(alone.lease_left, abs=5)


@pytest.mark.parametrize(
    ("pattern", "names"),
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
def test_patterns_are_shell_style_and_match_the_whole_name_case_sensitively(pattern: str, names: list[str]) -> None:
    for name in ("order:1", "order:12", "order:2", "Order:1", "seat:1"):
        hold(name)
    assert [lock.name for lock in list_locks(pattern)] == names


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
    assert list_locks(pattern) == []


def test_a_name_with_pattern_characters_is_found_by_quoting_them() -> None:
    for name in ("a[1]*", "a1x"):
        hold(name)
    assert [lock.name for lock in list_locks("a[[]1][*]")] == ["a[1]*"]


def test_more_locks_than_one_batch_are_all_listed_without_a_scan(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.registry.BATCH", 7)
    names = [f"a:{number:02}" for number in range(30)]
    for name in names:
        hold(name)
    client.config_resetstat()
    assert [lock.name for lock in list_locks()] == names
    assert {"cmdstat_scan", "cmdstat_keys"}.isdisjoint(client.info("commandstats"))


def test_other_prefixes_and_aliases_have_locks_of_their_own(server: RedisServer) -> None:
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    with override_settings(CACHES={"default": backend, "other": {**backend, "KEY_PREFIX": "other"}}):
        hold("here")
        hold("there", using="other")
        assert [lock.name for lock in list_locks()] == ["here"]
        assert [lock.name for lock in list_locks(using="other")] == ["there"]
        with override_settings(REDISLOCK={"KEY_PREFIX": "elsewhere"}):
            assert list_locks() == []


def test_the_memory_mode_has_a_registry_too() -> None:
    lock = Lock("a", using="memory")
    lock.acquire()
    assert [found.fence for found in list_locks(using="memory")] == [lock.fence]
    assert get_lock("a", using="memory")
    assert list_locks() == []
    assert force_release("a", using="memory")
    assert get_lock("a", using="memory") is None
    with pytest.raises(LockLost):
        lock.release()


# -- the index ------------------------------------------------------------------------------------------------------


def test_expired_locks_are_not_listed_though_the_index_still_has_them(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    hold("a", ttl=0.5)
    eventually(lambda: not client.exists(f"{PREFIX}lock:a"))
    assert client.zcard(INDEX) == 1
    assert list_locks() == []


def test_index_entries_of_expired_locks_vanish_as_others_are_taken(
    client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    for number in range(40):
        hold(f"expired:{number}", ttl=0.5)
    assert client.zcard(INDEX) == 40

    def vanished() -> bool:
        with Lock("other"):
            pass
        return bool(client.zcard(INDEX) == 0)

    eventually(vanished)


def test_index_entries_of_held_locks_stay(client: redis.Redis, eventually: Callable[..., Any]) -> None:
    hold("expired", ttl=0.5)
    hold("held")

    def cleared() -> bool:
        with Lock("other"):
            pass
        return client.zscore(INDEX, "expired") is None

    eventually(cleared)
    assert [lock.name for lock in list_locks()] == ["held"]


# -- get_lock -------------------------------------------------------------------------------------------------------


def test_nobody_holds_a_free_lock() -> None:
    assert get_lock("a") is None
    assert Lock("a").info() is None


def test_info_tells_who_since_when_and_until_when(client: redis.Redis) -> None:
    before = datetime.now(timezone.utc)
    with Lock("a", ttl=60) as lock:
        info = lock.info()
        after = datetime.now(timezone.utc)
        assert info is not None
        assert lock.token is not None
        assert (info.name, info.fence, info.waiters, info.queue) == ("a", lock.fence, 0, ())
        assert before <= info.since <= after
        # Redis counts a lease in whole milliseconds
        assert abs(info.expires - info.since - timedelta(seconds=60)) < timedelta(milliseconds=5)
        assert 0 <= info.held_for <= (after - before).total_seconds()
        assert 0 < info.lease_left <= 60
        assert info.token_hint == f"{lock.token[:4]}…"
        assert lock.token not in repr(info)


def test_info_lists_the_first_hundred_waiters_in_order_and_counts_all() -> None:
    hold("a")
    owners = queue_up("a", 130)
    info = get_lock("a")
    assert info is not None
    assert info.waiters == 130
    assert [waiter.owner for waiter in info.queue] == owners[:100]
    assert all(waiter.fair for waiter in info.queue)
    waited = [waiter.waited for waiter in info.queue]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] >= 0


def test_info_tells_lock_waiters_from_fair_ones(wait_for: Callable[..., threading.Event]) -> None:
    hold("a")
    wait_for("a", Lock)
    info = get_lock("a")
    assert info is not None
    assert [waiter.fair for waiter in info.queue] == [False]
    force_release("a")


def test_a_queue_without_a_holder_is_no_lock() -> None:
    hold("a")
    queue_up("a", 2)
    get_backend().execute(("DEL", f"{PREFIX}lock:a"))
    assert get_lock("a") is None


@pytest.mark.parametrize("name", ["", "a\n", "x" * 513])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    for ask in (Lock, get_lock, force_release):
        with pytest.raises(ValueError, match="name") as caught:
            ask(name)
        assert not isinstance(caught.value, LockUnavailable)


# -- what others may have written under our keys --------------------------------------------------------------------


FOREIGN = [
    b"",
    b"x",
    b"\xff\xfe\x00",
    b"token channel c 1",
    b"token channel c one two owner",
    b"token channel c -1 -1 owner",
    b"token channel c \xc2\xb2 \xc2\xb2 owner",
    b"token channel c 1 " + b"9" * 18 + b" owner",
    b"token channel c 1 " + b"9" * 400 + b" owner",
    b"token channel c " + b"9" * 5000 + b" 1 owner",
]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value[:40]))
def test_a_foreign_value_is_no_lock_and_hides_none(value: bytes, client: redis.Redis) -> None:
    client.set(f"{PREFIX}lock:foreign", value)
    client.zadd(INDEX, {"foreign": FAR})
    hold("ours")
    assert get_lock("foreign") is None
    assert [lock.name for lock in list_locks()] == ["ours"]


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value[:40]))
def test_a_foreign_value_can_be_forced_away(value: bytes, client: redis.Redis) -> None:
    client.set(f"{PREFIX}lock:foreign", value)
    force_release("foreign")
    assert not client.exists(f"{PREFIX}lock:foreign")
    with Lock("foreign", blocking=False):
        pass


@pytest.mark.parametrize("entry", [None, b"", b"F", b"F channel", b"F channel x y z", b"\xff \xff \xff \xff \xff"])
def test_a_foreign_entry_in_the_queue_hides_no_lock(entry: bytes | None, client: redis.Redis) -> None:
    hold("a")
    client.zadd(f"{PREFIX}queue:a", {"stranger": "-inf", "other": "inf"})
    if entry is not None:
        client.hset(f"{PREFIX}waiters:a", "stranger", entry)
    info = get_lock("a")
    assert info is not None
    assert (info.waiters, len(info.queue)) == (2, 2)
    assert [lock.waiters for lock in list_locks()] == [2]


def test_index_entries_without_a_lock_or_that_are_no_name_are_not_listed(client: redis.Redis) -> None:
    value = f"{'t' * 22} channel c 5 1700000000000000 owner"
    client.set(f"{PREFIX}lock:\x1b[2J", value)
    client.zadd(INDEX, {b"\x1b[2J": FAR, b"\xff\xfe": FAR, b"no such lock": FAR, b"": FAR})
    hold("ours")
    assert [lock.name for lock in list_locks()] == ["ours"]


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300"])
def test_a_lease_in_the_index_that_cannot_be_is_still_a_time(score: str, client: redis.Redis) -> None:
    hold("a")
    client.zadd(INDEX, {"a": score})
    (lock,) = list_locks()
    assert lock.expires > datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("key", ["lock", "queue"])
def test_a_key_of_the_wrong_type_hides_no_other_lock(key: str, client: redis.Redis) -> None:
    hold("ours")
    hold("broken")
    client.delete(f"{PREFIX}{key}:broken")
    client.hset(f"{PREFIX}{key}:broken", "some", "hash")
    assert "ours" in [lock.name for lock in list_locks()]


@pytest.mark.parametrize("key", [f"{PREFIX}lock:a", f"{PREFIX}queue:a"])
def test_a_lock_behind_a_key_of_the_wrong_type_is_a_clear_error(key: str, client: redis.Redis) -> None:
    hold("a")
    client.delete(key)
    client.rpush(key, "some", "list")
    with pytest.raises(LockUnavailable, match=r"alias 'default'.*(WRONGTYPE|wrong kind)") as caught:
        get_lock("a")
    assert caught.value.name == "a"


def test_an_index_of_the_wrong_type_is_a_clear_error(client: redis.Redis) -> None:
    client.set(INDEX, "something")
    with pytest.raises(LockUnavailable, match=r"alias 'default'.*(WRONGTYPE|wrong kind)"):
        list_locks()


# -- force_release --------------------------------------------------------------------------------------------------


def test_nothing_is_released_when_nobody_holds_it() -> None:
    heard: list[str] = []

    def receiver(*, name: str, **facts: Any) -> None:
        heard.append(name)

    lock_force_released.connect(receiver)
    try:
        assert force_release("a") is None
    finally:
        lock_force_released.disconnect(receiver)
    assert heard == []


def test_force_answers_what_was_set_free_and_tells_by_whom(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[type, str, str]] = []

    def receiver(sender: type, *, name: str, by: str, **facts: Any) -> None:
        heard.append((sender, name, by))

    token = hold("a")
    queue_up("a", 2)
    before = get_lock("a")
    lock_force_released.connect(receiver)
    try:
        freed = force_release("a", by="jo")
    finally:
        lock_force_released.disconnect(receiver)
    assert freed is not None
    assert before is not None
    assert (freed.name, freed.owner, freed.fence, freed.since, freed.waiters) == (
        "a",
        before.owner,
        before.fence,
        before.since,
        2,
    )
    assert heard == [(LockInfo, "a", "jo")]
    assert "event=force-released name=a by=jo" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize("kind", [Lock, FairLock])
def test_force_wakes_the_next_waiter(kind: type[Lock], wait_for: Callable[..., threading.Event]) -> None:
    hold("a", ttl=600)
    got = wait_for("a", kind)
    assert force_release("a")
    assert got.wait(4)  # before any look by the clock


def test_force_tells_the_old_holder(eventually: Callable[..., Any], listens: Callable[[Lock], None]) -> None:
    lost: list[LockLost] = []
    lock = FairLock("a", ttl=600, on_lost=lost.append)
    lock.acquire()
    listens(lock)
    force_release("a")
    eventually(lambda: lost, within=5)
    assert lock.lost
    assert lock.remaining() == 0
    assert lost[0].reason == "it was released by force"
    with pytest.raises(LockLost):
        lock.release()


def test_force_with_a_fence_spares_whoever_came_later(caplog: pytest.LogCaptureFixture) -> None:
    first = Lock("a")
    first.acquire()
    seen = first.fence
    assert force_release("a", fence=seen)
    later = hold("a", ttl=600)
    caplog.clear()
    assert force_release("a", fence=seen) is None
    assert not caplog.records
    Lock("a", token=later).release()


def test_force_with_a_fence_hits_the_acquisition_that_has_it(wait_for: Callable[..., threading.Event]) -> None:
    hold("a", ttl=600)
    got = wait_for("a")
    info = get_lock("a")
    assert info
    assert force_release("a", fence=info.fence)
    assert got.wait(4)


def test_force_tells_whom_it_has_set_free_and_not_whom_it_saw_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    force, before = scripts.force, hold("a")
    after = Lock("a")
    after.purpose = "the later one"

    def late(*arguments: Any) -> Any:
        Lock("a", token=before).release()
        assert after.acquire()
        return force(*arguments)

    monkeypatch.setattr(scripts, "force", late)
    freed = force_release("a")
    assert freed is not None
    assert freed.owner.endswith(" the later one")
    assert "the later one" in caplog.text


async def test_the_asynchronous_force_knows_the_fence_too() -> None:
    lock = Lock("a")
    await lock.aacquire()
    assert lock.fence
    assert await aforce_release("a", fence=lock.fence - 1) is None
    assert await aforce_release("a", fence=lock.fence)


def test_force_gets_past_any_number_of_dead_waiters(
    client: redis.Redis, wait_for: Callable[..., threading.Event]
) -> None:
    hold("a", ttl=600)
    got = wait_for("a")
    dead = {f"dead-{number:017}": number for number in range(1, 11_001)}
    client.zadd(f"{PREFIX}queue:a", dead)
    client.hset(f"{PREFIX}waiters:a", mapping=dict.fromkeys(dead, "F no-such-channel 30000 1 dead"))
    assert force_release("a")
    assert got.wait(4)


def test_a_user_that_may_not_read_locks_is_lock_unavailable(client: redis.Redis, server: RedisServer) -> None:
    hold("a")
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-mget"])
    url = server.url.replace("//", "//blind:any@")
    blind = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    with override_settings(CACHES={"default": blind}), pytest.raises(LockUnavailable, match=r"refuses .*'default'"):
        list_locks()
    client.acl_deluser("blind")


def test_redis_out_of_reach_is_lock_unavailable() -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with override_settings(CACHES={"default": nowhere}), pytest.raises(LockUnavailable, match="alias 'default'"):
        list_locks()
