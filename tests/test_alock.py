"""Locks in coroutines."""

from __future__ import annotations

from django_redislock import Lock


async def test_a_lock_is_held_within_async_with() -> None:
    lock = Lock("a")
    async with lock:
        assert await lock.alocked()
        assert await lock.aowned()
    assert not await lock.alocked()
