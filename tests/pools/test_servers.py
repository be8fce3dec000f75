"""Pools on servers that are flushed, out of memory, restricted or gone; and pools of several sites on one server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import LockLost, LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.pools import LINE, POOL, Held, Wait, audit, got
from tests.helpers.ways import DJANGO_REDIS, PASSWORD, alias, caches
from tests.inside import PREFIX, limit, listener

Eventually = Callable[..., Any]


def test_after_a_flush_a_release_brings_nothing_back(accounts: LockPool, client: redis.Redis) -> None:
    member = accounts.acquire()
    client.flushall()
    with pytest.raises(LockLost):
        member.release()
    assert accounts.keys() == []
    assert [key for key in client.keys("*") if b"fence" not in key] == []


def test_a_user_without_the_rights_for_pools_is_told_the_name_of_the_pool(
    client: redis.Redis, server: RedisServer
) -> None:
    client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hexists"])
    limited = {"BACKEND": DJANGO_REDIS, "LOCATION": server.url.replace("//", "//limited:any@")}
    try:
        with (
            override_settings(CACHES={"default": limited}),
            pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"),
        ):
            LockPool(POOL).info()
    finally:
        client.acl_deluser("limited")


def test_after_a_flush_a_pool_can_be_filled_anew(me: Any, accounts: LockPool, client: redis.Redis) -> None:
    member = me(accounts, "acquire")
    client.flushall()
    accounts.extend(["alice"])
    again = accounts.acquire()
    assert again.key == "alice"
    assert (again.fence or 0) > me.read(lambda: member.fence) > 0
    with pytest.raises(LockLost):
        me(member, "release")
    assert again.owned()
    assert audit(client).held == {"alice"}


@pytest.mark.usefixtures("listening", "held")
def test_after_a_flush_waiters_get_members_of_the_new_set(
    wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    waiter = wait()
    client.flushall()
    LockPool(POOL).extend(["zoe"])
    assert got(waiter) == "zoe"


def test_without_messages_waiters_look_by_themselves(
    client: redis.Redis, server: RedisServer, settings: Any, me: Any, crowd: Any, eventually: Eventually
) -> None:
    client.acl_setuser(
        "mute", enabled=True, nopass=True, reset_channels=True, keys=["*"], commands=["+@all", "-@pubsub", "+publish"]
    )
    cache = {**settings.CACHES["default"], "LOCATION": f"redis://mute:@127.0.0.1:{server.port}/0"}
    with caches(cache):
        pool = LockPool(POOL)
        pool.extend(["alice", "bob"])
        members = [me(pool, "acquire") for _ in range(2)]
        waiters = [crowd().start(pool, "acquire") for _ in range(2)]
        eventually(lambda: client.zcard(LINE) == 2)
        assert listener().polled
        for member in members:
            me(member, "release")
        assert {got(waiter) for waiter in waiters} == {"alice", "bob"}


def test_sites_with_other_prefixes_have_other_pools(settings: Any, client: redis.Redis, accounts: LockPool) -> None:
    cache = settings.CACHES["default"]
    with caches({**cache, "KEY_PREFIX": "shop"}):
        theirs = LockPool(POOL)
        theirs.extend(["alice"])
        assert theirs.acquire(blocking_timeout=0).key == "alice"
        assert theirs.health_check() == (1, 0)
        assert audit(client, prefix=f"shop:{PREFIX}").held == {"alice"}
    assert accounts.health_check() == (0, 2)


def test_rights_to_one_prefix_suffice(guarded: RedisServer, own_pools: None) -> None:
    there = alias(DJANGO_REDIS, f"redis://127.0.0.1:{guarded.port}/0", username="site", password=PASSWORD)
    with guarded.client() as client, caches({**there, "KEY_PREFIX": "site"}):
        client.flushall()
        pool = LockPool(POOL)
        pool.assign(["alice", "bob"])
        with ThreadPoolExecutor(4) as threads:

            def turn(_: int) -> str:
                with pool.acquire() as member:
                    return member.key

            assert set(threads.map(turn, range(40))) == {"alice", "bob"}
        assert pool.health_check() == (0, 2)
        pool.clear()
        assert pool.keys() == []


def test_a_refused_command_changes_nothing(own: RedisServer) -> None:
    pool = LockPool(POOL)
    pool.extend(["alice", "bob"])
    with own.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
            pool.assign(["carol"])
        client.config_set("maxmemory", 0)
    assert pool.keys() == ["alice", "bob"]


def take_and_return(pool: LockPool) -> None:
    """Many times, because only one call in eight looks for ended leases, and begins with a deletion."""
    for _ in range(100):
        pool.acquire(blocking_timeout=0).release()


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
def test_a_release_serves_a_waiter_even_if_redis_is_out_of_memory(
    held: Held, wait: Wait, client: redis.Redis, accounts: LockPool
) -> None:
    """R2: the first write of a script is allowed at the limit of memory, and so all later ones are."""
    waiter = wait()
    client.config_set("maxmemory", 1)
    try:
        held("alice")
        assert got(waiter) == "alice"
        held("bob")
        with pytest.raises(LockUnavailable, match="maxmemory"):
            take_and_return(accounts)
    finally:
        client.config_set("maxmemory", 0)
    assert audit(client).free == {"bob"}
    assert accounts.acquire(blocking_timeout=0).key == "bob"


def test_without_redis_it_says_so(own: RedisServer, retry_for: Callable[[float], None]) -> None:
    retry_for(0.2)
    pool = LockPool(POOL)
    own.stop()
    for call in (lambda: pool.extend(["x"]), pool.keys, pool.acquire, pool.info):
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the pool 'accounts' .*'default'") as caught:
            call()
        assert caught.value.name == POOL
