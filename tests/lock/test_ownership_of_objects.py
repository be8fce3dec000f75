"""Acquisitions of one Lock object by several threads or tasks, and of several objects by one, where the lock is shared,
lost or ends by itself. See also ``test_whose_object.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost
from tests.helpers.actors import Crowd
from tests.helpers.state import LOCK, NAME, holder


def test_a_lock_that_is_not_reentrant_is_entered_again_through_an_object_that_is(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, outer, inner = crowd(), Lock(NAME), Lock(NAME, reentrant=True)
    me(outer, "acquire")
    assert me(inner, "acquire")
    me(outer, "release")
    assert me(inner, "owned")
    me(inner, "release")
    assert holder(client) == ""


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lost_lock_is_not_entered_again_or_refused_but_acquired_anew(
    reentrant: bool, crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    """Redis is asked first, before the error about waiting for oneself is raised."""
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, reentrant=reentrant, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    client.delete(LOCK)
    assert me(lock, "acquire")
    assert me.read(lambda: lock.fence) > fence
    eventually(lambda: [loss.fence for loss in losses] == [fence])
    me(lock, "release")
    assert holder(client) == ""


def test_whoever_has_lost_many_locks_goes_on_with_new_ones(crowd: Crowd) -> None:
    me = crowd()
    for ttl in (0.2, 600):  # it waits for its own lock, as that ends by itself
        locks = [Lock(f"seat:{number}", ttl=ttl, auto_renew=False) for number in range(60)]
        for lock in locks:
            assert me(lock, "acquire")
    for lock in locks:
        me(lock, "release")
