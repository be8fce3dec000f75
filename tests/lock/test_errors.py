"""The errors: their classes, and the attributes of each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockError, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from django_redislock.engine.leases.lease import FORCED
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME


def test_every_error_is_a_lock_error_and_one_of_redis_py() -> None:
    for kind in (LockNotAcquired, LockNotOwned, LockLost, LockUnavailable):
        assert issubclass(kind, LockError)
        assert issubclass(kind, redis.exceptions.LockError)
    assert issubclass(LockLost, LockNotOwned)
    assert issubclass(LockNotOwned, redis.exceptions.LockNotOwnedError)
    assert not issubclass(LockNotAcquired, LockNotOwned)
    assert not issubclass(LockUnavailable, LockNotOwned)


def test_lock_not_acquired_says_how_long_it_was_tried_and_how_long_the_lock_is_still_busy(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME, ttl=100), "acquire")
    text = rf"^Could not acquire the lock '{NAME}' "
    with pytest.raises(LockNotAcquired, match=rf"{text}at once: held by \S+ .*\.$") as caught:
        you(Lock(NAME, blocking=False), "enter")
    assert (caught.value.name, caught.value.attempts) == (NAME, 1)
    assert 0 <= caught.value.waited < GENEROUS
    assert 100 - GENEROUS < caught.value.busy_for <= 100
    with pytest.raises(LockNotAcquired, match=rf"{text}within [\d.]+ s \(2 attempts\): held by \S+ .*\.$") as caught:
        you(Lock(NAME, poll=True, attempts=2, backoff=ConstantBackoff(0.2)), "enter")
    assert caught.value.attempts == 2
    assert caught.value.waited >= 0.2


def test_waiting_for_oneself_is_a_lock_error_that_says_what_to_do_instead(crowd: Crowd) -> None:
    me = crowd()
    me(Lock(NAME), "acquire")
    with pytest.raises(LockError, match=r"Pass a blocking_timeout, or reentrant=True\.") as caught:
        me(Lock(NAME), "enter")
    assert type(caught.value) is LockError
    assert caught.value.name == NAME


@pytest.mark.usefixtures("nowhere")
def test_lock_unavailable_carries_the_name_the_alias_and_the_cause(
    crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    with pytest.raises(LockUnavailable, match=f"for the lock '{NAME}' .cache alias 'default'.: ") as caught:
        crowd()(Lock(NAME), "acquire")
    assert caught.value.name == NAME
    assert isinstance(caught.value.__cause__, (redis.exceptions.ConnectionError, OSError))


def test_redis_pys_own_attribute_has_the_name_too() -> None:
    assert LockNotAcquired("busy", NAME).lock_name == NAME


def test_the_representation_is_the_class_and_the_message() -> None:
    error = LockNotAcquired("The lock 'order:42' is busy.", NAME)
    assert str(error) == "The lock 'order:42' is busy."
    assert repr(error) == "LockNotAcquired(\"The lock 'order:42' is busy.\")"


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_can_be_pickled_and_copied(again: Callable[[Any], Any]) -> None:
    lost = again(LockLost("gone", NAME, reason=FORCED, fence=7))
    assert type(lost) is LockLost
    assert (str(lost), lost.name, lost.reason, lost.fence) == ("gone", NAME, FORCED, 7)
    busy = again(LockNotAcquired("busy", NAME, attempts=3, waited=1.5, busy_for=20.0))
    assert (str(busy), busy.name, busy.attempts, busy.waited, busy.busy_for) == ("busy", NAME, 3, 1.5, 20.0)
    away = again(LockUnavailable("away", NAME, lease_left=4.0))
    assert (str(away), away.name, away.lock_name, away.lease_left) == ("away", NAME, NAME, 4.0)
