"""Acquiring: at once, in time, or not at all; and the token, fence and TTL of an acquisition."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockNotOwned, get_lock
from tests.helpers.actors import GENEROUS, Crowd, server_time
from tests.helpers.state import FENCE, LOCK, NAME, TOKEN, fence_of, holder, leftovers, queued
from tests.inside import own_process

from .blocks import Block


def test_a_free_lock_is_acquired_at_once_and_by_nobody_else(crowd: Crowd, using: str) -> None:
    me, you = crowd(), crowd()
    assert me(Lock(NAME, using=using), "acquire") is True
    for once in ({"blocking": False}, {"blocking_timeout": 0}):
        assert you(Lock(NAME, using=using, **once), "acquire") is False
        assert you(Lock(NAME, using=using), "acquire", **once) is False
    assert (info := get_lock(NAME, using=using)) is not None
    assert info.waiters == 0
    assert you(Lock("order:43", using=using), "acquire", blocking=False) is True


@pytest.mark.parametrize(
    ("made", "asked", "least"),
    [
        ({"blocking_timeout": timedelta(milliseconds=250)}, {}, 0.25),
        ({"blocking": False}, {"blocking": True, "blocking_timeout": 0.2}, 0.2),
        ({"blocking": False}, {"blocking_timeout": 0.2}, 0.2),
        ({"blocking_timeout": GENEROUS * 2}, {"blocking_timeout": 0.01}, 0.01),
        ({"blocking_timeout": GENEROUS * 2}, {"blocking": False}, 0.0),
        ({}, {}, 0.1),
    ],
)
def test_a_bounded_wait_ends_in_time_and_leaves_the_queue(
    crowd: Crowd, using: str, made: dict[str, Any], asked: dict[str, Any], least: float, settings: Any
) -> None:
    """The arguments of acquire() override those of the constructor, and those the setting."""
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.1}
    me, you = crowd(), crowd()
    me(Lock(NAME, using=using), "acquire")
    begin = monotonic()
    assert you(Lock(NAME, using=using, **made), "acquire", **asked) is False
    assert monotonic() - begin >= least
    assert (info := get_lock(NAME, using=using)) is not None
    assert info.waiters == 0


@pytest.mark.usefixtures("nowhere")
def test_whether_to_wait_is_true_or_false(crowd: Crowd) -> None:
    with pytest.raises(TypeError, match=r"^blocking must be True, False or None, not 5"):
        crowd()(Lock(NAME), "acquire", blocking=5)


INTERRUPTED = """
import signal
class TooLong(Exception): ...
def late(*args): raise TooLong
signal.signal(signal.SIGALRM, late)
for ending in (KeyboardInterrupt, TooLong):
    try:
        say("waits")
        Lock(name).acquire()
    except ending:
        say("interrupted")
    hear()
say("acquired", Lock(name).acquire())
hear()
"""


def test_what_a_signal_handler_raises_ends_a_wait_and_leaves_no_place_in_the_queue(
    start: Callable[..., Any], client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    """Ctrl-C, and the time limit of a task queue."""
    lock = Lock(NAME)
    lock.acquire()
    worker = start(INTERRUPTED, name=NAME)
    for number in (signal.SIGINT, signal.SIGALRM):
        worker.expect("waits")
        eventually(lambda: queued(client))
        worker.signal(number)
        worker.expect("interrupted")
        eventually(lambda: queued(client) == 0)
        if number == signal.SIGALRM:
            assert lock.owned()
            lock.release()
            assert leftovers(client) == []
        worker.tell()
    assert worker.expect("acquired") == ["True"]


# -- what is acquired -------------------------------------------------------------------------------------------------


def test_each_acquisition_has_a_token_and_a_higher_fence_of_its_own(crowd: Crowd, client: redis.Redis) -> None:
    """Across names, people, and a Redis that forgets everything."""
    me, you = crowd(), crowd()
    seen: list[tuple[str, int]] = []
    for _ in range(5):
        for who, name in ((me, NAME), (me, "order:43"), (you, NAME)):
            lock = Lock(name)
            who(Block(lock, lambda lock=lock: seen.append((str(lock.token), lock.fence))), "run")  # type: ignore[misc]
            assert who.read(lambda lock=lock: (lock.token, fence_of(lock))) == (None, None)
        client.flushall()
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22,}", token) for token, _ in seen)
    assert len({token for token, _ in seen}) == 15
    assert all(one < two for (_, one), (_, two) in itertools.pairwise(seen))
    with pytest.raises(LockNotOwned, match=rf"^Cannot read the fence of the lock '{NAME}': this thread or task does"):
        me.read(lambda: Lock(NAME).fence)


def test_fences_grow_even_when_redis_forgets_them_and_its_clock_is_behind(client: redis.Redis) -> None:
    process = own_process()
    known, future = process.known_fence, server_time(client) + 10**9
    try:
        client.set(FENCE, future)
        for _ in range(2):
            future += 1
            with Lock(NAME) as lock:
                assert lock.fence == future
            client.flushall()
    finally:
        process.know_fence(known)  # so that the next test has the real time


def test_a_lock_keeps_the_ttl_that_it_was_acquired_with(settings: Any, client: redis.Redis) -> None:
    settings.REDISLOCK = {"TTL": 40, "TTLS": {"order:4?": 50, "order:*": 60}}
    lock = Lock(NAME)
    lock.acquire()
    assert 40_000 < int(client.pttl(LOCK)) <= 50_000
    settings.REDISLOCK = {}
    assert lock.ttl == 50
    lock.release()
    assert lock.ttl == 30


def test_a_token_can_be_given_to_the_constructor_or_to_acquire(crowd: Crowd, client: redis.Redis) -> None:
    assert FairLock is Lock
    me = crowd()
    for lock, given in ((Lock(NAME, token=TOKEN), {}), (Lock(NAME), {"token": TOKEN})):
        assert repr(lock) == f"<Lock {NAME!r}>"
        me(lock, "acquire", **given)
        assert me.read(lambda lock=lock: (lock.token, type(lock.token))) == (TOKEN, str)
        assert holder(client) != TOKEN  # each attempt also has an id
        assert type(me(lock, "detach")) is str  # which can be pickled and compared like any other
        me(Lock(NAME, token=TOKEN), "release")
