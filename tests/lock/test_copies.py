"""Copies of a lock: what was acquired through it is not acquired through them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from django_redislock import Lock
from tests.helpers.state import NAME


@pytest.mark.parametrize("again", [lambda lock: pickle.loads(pickle.dumps(lock)), copy.deepcopy])
@pytest.mark.parametrize("held", [True, False])
def test_a_lock_that_was_used_can_be_copied(held: bool, again: Callable[[Lock], Lock]) -> None:
    lock = Lock(NAME, ttl=7, reentrant=True)
    lock.acquire()
    if not held:
        lock.release()
    other = again(lock)
    assert (other.name, other.ttl, other.lost, other.remaining()) == (NAME, 7, False, 0.0)
    assert other.acquire(blocking=False)
    other.release()
    if held:
        lock.release()
