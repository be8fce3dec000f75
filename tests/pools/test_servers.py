"""Pools on servers that are flushed, out of memory, restricted or gone; and pools of several sites on one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import LockLost, LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.pools import POOL, Held, Wait, audit, got
from tests.helpers.ways import DJANGO_REDIS, alias, caches
from tests.inside import PREFIX, limit


def test_after_a_flush_a_release_brings_nothing_back_and_the_pool_can_be_filled_anew(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    first, second = me(accounts, "acquire"), me(accounts, "acquire")
    client.flushall()
    with pytest.raises(LockLost):
        me(first, "release")
    assert accounts.keys() == []
    assert [key for key in client.keys("*") if b"fence" not in key] == []
    accounts.extend(["bob"])
    again = accounts.acquire()
    assert again.key == "bob"
    assert (again.fence or 0) > me.read(lambda: second.fence) > 0
    with pytest.raises(LockLost):
        me(second, "release")
    assert again.owned()
    assert audit(client).held == {"bob"}


@pytest.mark.usefixtures("listening", "held")
def test_after_a_flush_waiters_get_members_of_the_new_set(
    wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    waiter = wait()
    client.flushall()
    LockPool(POOL).extend(["zoe"])
    assert got(waiter) == "zoe"


def test_a_user_without_the_rights_for_pools_is_told_the_name_of_the_pool(
    client: redis.Redis, server: RedisServer
) -> None:
    client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hexists"])
    limited = alias(DJANGO_REDIS, server.url.replace("//", "//limited:any@"))
    with caches(limited), pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"):
        LockPool(POOL).info()
    client.acl_deluser("limited")


def test_sites_with_other_prefixes_have_other_pools(settings: Any, client: redis.Redis, accounts: LockPool) -> None:
    with caches({**settings.CACHES["default"], "KEY_PREFIX": "shop"}):
        theirs = LockPool(POOL)
        theirs.extend(["alice"])
        assert theirs.acquire(blocking_timeout=0).key == "alice"
        assert theirs.health_check() == (1, 0)
        assert audit(client, prefix=f"shop:{PREFIX}").held == {"alice"}
    assert accounts.health_check() == (0, 2)


def take_and_return(pool: LockPool) -> None:
    """Many times, because only one call in eight looks for ended leases, and begins with a deletion."""
    for _ in range(100):
        pool.acquire(blocking_timeout=0).release()


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
def test_without_memory_a_release_serves_a_waiter_and_a_refused_call_changes_nothing(
    held: Held, wait: Wait, client: redis.Redis, accounts: LockPool
) -> None:
    """R2: the first write of a script is allowed at the limit of memory, and so all later ones are."""
    waiter = wait()
    client.config_set("maxmemory", 1)
    try:
        held("alice")
        assert got(waiter) == "alice"
        held("bob")
        for call in (take_and_return, lambda pool: pool.assign(["carol"])):
            with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
                call(accounts)
    finally:
        client.config_set("maxmemory", 0)
    assert audit(client).members == {"alice", "bob"}
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
