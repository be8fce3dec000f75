from __future__ import annotations

import copy
import pickle

import pytest
import redis.exceptions
from django.test import override_settings

from django_redislock import (
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    force_release,
)


def test_every_error_is_a_lock_error_and_one_of_redis_py() -> None:
    for kind in (LockNotAcquired, LockNotOwned, LockLost, LockUnavailable):
        assert issubclass(kind, LockError)
        assert issubclass(kind, redis.exceptions.LockError)
    assert issubclass(LockLost, LockNotOwned)
    assert issubclass(LockNotOwned, redis.exceptions.LockNotOwnedError)
    assert not issubclass(LockNotAcquired, LockNotOwned)
    assert not issubclass(LockUnavailable, LockNotOwned)


def test_a_busy_lock_in_a_with_block_carries_its_name() -> None:
    with Lock("order:42"), pytest.raises(LockNotAcquired, match="'order:42'") as caught:
        Lock("order:42", blocking=False).__enter__()
    assert caught.value.name == "order:42"


def test_a_lock_that_was_never_held_carries_its_name() -> None:
    with pytest.raises(LockNotOwned, match="'order:42'") as caught:
        Lock("order:42").release()
    assert caught.value.name == "order:42"
    assert not isinstance(caught.value, LockLost)


def test_a_lost_lock_carries_name_fence_and_reason() -> None:
    lock = Lock("order:42")
    lock.acquire()
    fence = lock.fence
    force_release("order:42")
    with pytest.raises(LockLost, match="'order:42'") as caught:
        lock.release()
    assert (caught.value.name, caught.value.fence) == ("order:42", fence)
    assert caught.value.reason


def test_waiting_for_oneself_without_end_carries_the_name() -> None:
    with Lock("order:42"), pytest.raises(LockError, match="reentrant=True") as caught:
        Lock("order:42").acquire()
    assert type(caught.value) is LockError
    assert caught.value.name == "order:42"


def test_a_redis_out_of_reach_carries_the_name_and_the_cause() -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with override_settings(CACHES={"default": nowhere}), pytest.raises(LockUnavailable) as caught:
        Lock("order:42").acquire()
    assert caught.value.name == "order:42"
    assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError)


def test_redis_pys_own_attribute_has_the_name_too() -> None:
    assert LockNotAcquired("busy", "order:42").lock_name == "order:42"


def test_the_representation_is_the_kind_and_the_message() -> None:
    error = LockNotAcquired("The lock 'order:42' is busy.", "order:42")
    assert str(error) == "The lock 'order:42' is busy."
    assert repr(error) == "LockNotAcquired(\"The lock 'order:42' is busy.\")"


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_survive_the_way_to_another_process(again: object) -> None:
    assert callable(again)
    error = again(LockLost("gone", "order:42", reason="it was released by force", fence=7))
    assert type(error) is LockLost
    assert (str(error), error.name, error.reason, error.fence) == ("gone", "order:42", "it was released by force", 7)
