"""Calls of scripts that stop half-way, so as not to keep Redis, and are called again until all is done."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool
from tests.inside import keys_of


def put_dead(client: redis.Redis, name: str) -> None:
    """More dead waiters than one call drops."""
    client.zadd(keys_of(name).queue, {f"dead-{number}": number + 1 for number in range(1200)})


@pytest.mark.parametrize("name", ["order:42", "pool:accounts:alice"])
def test_an_acquire_and_a_release_drop_any_number_of_dead_waiters(name: str, me: Any, client: redis.Redis) -> None:
    lock = Lock(name)
    put_dead(client, name)
    assert me(lock, "acquire", blocking=False)
    assert not client.exists(keys_of(name).queue)
    put_dead(client, name)
    me(lock, "release")
    assert not client.exists(keys_of(name).queue)
    assert not me(lock, "locked")


def test_a_change_of_a_pool_drops_any_number_of_dead_waiters(me: Any, client: redis.Redis) -> None:
    line = keys_of("pool:accounts:").line
    client.zadd(line, {f"dead-{number}": number + 1 for number in range(1200)})
    assert me(LockPool("accounts"), "extend", ["alice"]) == 1
    assert not client.exists(line)
