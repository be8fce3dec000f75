"""Helpers of the tests of inspection: held locks, and queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock
from tests.helpers.actors import Ghost

Queue = Callable[..., list[str]]


def hold(name: str, **options: Any) -> str:
    """Acquire the lock and detach it, so that it stays held; return the token."""
    lock = Lock(name, **options)
    assert lock.acquire(blocking=False)
    return lock.detach()


@pytest.fixture
def queue_up(ghost: Callable[..., Ghost]) -> Queue:
    """Let so many waiters queue for a lock, one after the other; return their owners in order."""
    there = ghost()

    def queue_up(name: str, count: int, **more: Any) -> list[str]:
        owners = [f"waiter-{number}" for number in range(count)]
        for number, owner in enumerate(owners):
            request = there.request(f"{name}-{number:022}", name=name, **{"owner": owner, **more})
            there.acquire(request)
        return owners

    return queue_up
