"""The errors: their classes, and the attributes of each; and copies of errors and locks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery  # type: ignore[import-untyped]
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockError, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME


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
    for method in ("acquire", "enter"):
        with pytest.raises(LockError, match=r"wait for itself.*Pass a .*, or reentrant=True\.") as caught:
            me(Lock(NAME), method)
        assert (type(caught.value), caught.value.name) == (LockError, NAME)


# -- copies -----------------------------------------------------------------------------------------------------------


def through_celery(error: Exception) -> Any:
    """As a result of a task, in JSON, which keeps ``args`` alone."""
    app = Celery("site", backend="cache+memory://", set_as_current=False)
    app.backend.store_result("a", error, "FAILURE")
    return app.AsyncResult("a").result


COPIES: list[Callable[[Any], Any]] = [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, through_celery]
FACTS: dict[type[LockError], dict[str, Any]] = {
    LockError: {},
    LockNotAcquired: {"outcome": "full", "attempts": 3, "waited": 1.5, "busy_for": 20.0, "holder": "web1:7:main"},
    LockNotOwned: {},
    LockLost: {"reason": "it was force-released", "fence": 7},
    LockUnavailable: {"lease_left": 4.0},
}


@pytest.mark.parametrize("again", COPIES)
@pytest.mark.parametrize("kind", FACTS)
def test_an_error_stays_whole_where_it_is_copied_or_sent(kind: type[LockError], again: Callable[[Any], Any]) -> None:
    assert issubclass(kind, LockError)
    assert issubclass(kind, redis.exceptions.LockError)
    assert issubclass(kind, redis.exceptions.LockNotOwnedError) == (kind in (LockNotOwned, LockLost))
    unknown, error = kind("a text"), again(kind("a text", NAME, **FACTS[kind]))
    assert {getattr(unknown, fact) for fact in ("name", *FACTS[kind])} == {None}
    assert type(error) is kind
    assert (str(error), repr(error)) == ("a text", f"{kind.__name__}('a text')")
    assert (error.name, error.lock_name) == (NAME, NAME)
    assert {fact: getattr(error, fact) for fact in FACTS[kind]} == FACTS[kind]


@pytest.mark.usefixtures("nowhere")
def test_the_error_of_cache_lock_stays_whole_too(
    cache_lock: Callable[..., Any], retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    with pytest.raises(LockUnavailable) as caught:
        cache_lock(NAME).acquire()
    assert isinstance(caught.value, redis.exceptions.ConnectionError)
    for again in COPIES:
        error = again(caught.value)
        assert (type(error), str(error), error.name) == (type(caught.value), str(caught.value), NAME)


@pytest.mark.parametrize("again", [lambda lock: pickle.loads(pickle.dumps(lock)), copy.deepcopy])
def test_what_was_acquired_through_a_lock_is_not_acquired_through_its_copies(again: Callable[[Lock], Lock]) -> None:
    lock = Lock(NAME, ttl=7, reentrant=True)
    with lock:
        other = again(lock)
        assert (other.name, other.ttl, other.lost, other.remaining()) == (NAME, 7, False, 0.0)
        assert other.acquire(blocking=False)
        other.release()
