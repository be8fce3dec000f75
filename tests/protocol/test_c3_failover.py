"""What a failover may lose: who was granted the lock, and that another one had it in between."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost
from django_redislock.base.steps import run
from django_redislock.store import calls
from django_redislock.store.calls import LockRequest
from django_redislock.store.stores import get_partition
from tests import inside
from tests.helpers.state import LOCK, NAME
from tests.inside import keys_of, lease_of


def attempt(id: str) -> LockRequest:
    partition = get_partition()
    return LockRequest(partition, keys_of(NAME, partition.prefix), NAME, id * 22, 30.0, owner="somebody")


def acquire(request: LockRequest) -> inside.AcquireReply:
    return run(calls.acquire(request, inside.NOT_AT_ALL, None, until=math.inf, by=None))


def test_a_renewal_discovers_that_its_attempt_was_granted_the_lock_again(client: redis.Redis) -> None:
    one, other = attempt("a"), attempt("b")
    first = acquire(one)
    client.delete(LOCK)  # a new master that has never heard of it, and has the attempt in its queue
    assert acquire(other).state == inside.GRANTED
    run(calls.release(other, unknown=False))
    again = acquire(one)
    assert again.number > first.number
    for how in ("keep", "confirm", "set", "detach"):
        assert run(calls.renew(one, how, 30.0, first.number)).state == inside.LOST
    assert run(calls.renew(one, "keep", 30.0, again.number)).state == inside.HELD


def test_the_previous_holder_is_told(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    mine = lease_of(lock).request
    client.delete(LOCK)
    assert acquire(mine).state == inside.GRANTED
    with pytest.raises(LockLost):
        lock.extend(10)
    assert lock.lost


def test_a_process_learns_fences_from_handoffs(client: redis.Redis, other: Any, eventually: Any) -> None:
    """Otherwise a master whose clock is behind, and that has lost the last fence, could draw it again."""
    held = Lock(NAME)
    held.acquire()
    thread = other()
    waiter = Lock(NAME)
    waiting = thread.start(waiter.acquire)
    eventually(lambda: (info := held.info()) is not None and info.waiters == 1)
    held.release()
    assert waiting.result(30)
    assert get_partition().highest_fence == thread(lambda: waiter.fence)
