"""What a failover may lose: who was granted the lock, and that another one had it in between."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost
from tests import inside
from tests.helpers.state import LOCK, NAME


def test_a_renewal_discovers_that_its_attempt_was_granted_the_lock_again(client: redis.Redis) -> None:
    here = inside.own_process()
    one, other = (here.request(id * 22, name=NAME) for id in "ab")
    first = here.acquire(one, inside.NOT_AT_ALL)
    client.delete(LOCK)  # a new master that has never heard of it, and has the attempt in its queue
    assert here.acquire(other, inside.NOT_AT_ALL).state == inside.GRANTED
    here.release(other)
    again = here.acquire(one, inside.NOT_AT_ALL)
    assert again.number > first.number
    for how in ("keep", "confirm", "set", "detach"):
        assert here.renew(one, how, fence=first.number).state == inside.LOST
    assert here.renew(one, fence=again.number).state == inside.HELD


def test_the_previous_holder_is_told(client: redis.Redis) -> None:
    lock = Lock(NAME)
    lock.acquire()
    here = inside.own_process()
    client.delete(LOCK)
    mine = here.request(lock.token or "", name=NAME)
    assert here.acquire(mine, inside.NOT_AT_ALL).state == inside.GRANTED
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
    assert inside.own_process().known_fence == thread(lambda: waiter.fence)
