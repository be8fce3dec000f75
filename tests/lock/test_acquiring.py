"""Acquiring, at once, in time, or not at all; tokens and fences; releasing, and what a block raises."""

import itertools
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockError, LockLost, LockNotOwned, LockUnavailable, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, holder, leftovers, queued
from tests.helpers.ways import DJANGO_REDIS, alias, caches, stopped
from tests.inside import limit

from .conftest import Block, until_told

FAILING = (ZeroDivisionError, ZeroDivisionError(), None)


def test_a_free_lock_is_acquired_at_once_and_by_nobody_else(me: Any, you: Any, using: str) -> None:
    assert me(Lock(NAME, using=using), "acquire") is True
    for once in ({"blocking": False}, {"blocking_timeout": 0}):
        assert you(Lock(NAME, using=using, **once), "acquire") is False
        assert you(Lock(NAME, using=using), "acquire", **once) is False
    assert get_lock(NAME, using=using).waiters == 0  # type: ignore[union-attr]
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
    me: Any, you: Any, using: str, made: dict[str, Any], asked: dict[str, Any], least: float, settings: Any
) -> None:
    """The arguments of acquire() override those of the constructor, and those the setting."""
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.1}
    me(Lock(NAME, using=using), "acquire")
    begin = monotonic()
    assert you(Lock(NAME, using=using, **made), "acquire", **asked) is False
    assert monotonic() - begin >= least
    assert get_lock(NAME, using=using).waiters == 0  # type: ignore[union-attr]


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
    start: Callable[..., Any], client: redis.Redis
) -> None:
    """Ctrl-C, and the time limit of a task queue."""
    lock = Lock(NAME)
    lock.acquire()
    worker = start(INTERRUPTED, name=NAME)
    for number in (signal.SIGINT, signal.SIGALRM):
        worker.expect("waits")
        until(lambda: queued(client))
        worker.signal(number)
        worker.expect("interrupted")
        until(lambda: queued(client) == 0)
        if number == signal.SIGALRM:
            assert lock.owned()
            lock.release()
            assert leftovers(client) == []
        worker.tell()
    assert worker.expect("acquired") == ["True"]


def test_each_acquisition_has_a_token_and_a_higher_fence_of_its_own(me: Any, you: Any, client: redis.Redis) -> None:
    """Across names, people, and a Redis that forgets everything."""
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


def test_a_lock_keeps_the_ttl_that_it_was_acquired_with(settings: Any) -> None:
    settings.REDISLOCK = {"TTL": 40, "TTLS": {"order:4?": 50, "order:*": 60}}
    with Lock(NAME) as lock:
        assert 40 < lock.remaining() <= 50
        settings.REDISLOCK = {}
        assert lock.ttl == 50
    assert lock.ttl == 30


def test_a_token_can_be_given_to_the_constructor_or_to_acquire(me: Any, client: redis.Redis) -> None:
    assert FairLock is Lock
    for lock, given in ((Lock(NAME, token=TOKEN), {}), (Lock(NAME), {"token": TOKEN})):
        assert repr(lock) == f"<Lock {NAME!r}>"
        me(lock, "acquire", **given)
        assert me.read(lambda lock=lock: (lock.token, type(lock.token))) == (TOKEN, str)
        assert holder(client) != TOKEN  # each attempt also has an id
        assert type(me(lock, "detach")) is str  # which can be pickled and compared like any other
        me(Lock(NAME, token=TOKEN), "release")


@pytest.mark.parametrize("forged", ["a beginning", "the id"])
def test_what_is_not_the_whole_token_releases_nothing(forged: str, crowd: Crowd, client: redis.Redis) -> None:
    """Ids of attempts travel in messages, so reading a message must not allow anybody to release the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME, token=f"{TOKEN}-and-more")
    me(lock, "acquire")
    forgery = Lock(NAME, token=TOKEN if forged == "a beginning" else holder(client))
    with pytest.raises(LockNotOwned, match=r"Cannot release the lock .* does not hold it"):
        you(forgery, "release")
    assert not you(forgery, "owned")
    assert me(lock, "owned")


def test_an_exception_in_the_block_matters_more_than_the_loss(
    crowd: Crowd, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    client.delete(LOCK)
    assert not me(lock, "exit", *FAILING)
    until(lambda: caplog.text.count("event=lost") == 1)
    assert "event=not-released" not in caplog.text  # which would tell the same again


def test_every_block_of_a_reentrant_lock_tells_of_the_loss(crowd: Crowd, client: redis.Redis) -> None:
    me, outer, inner = crowd(), Lock(NAME, reentrant=True), Lock(NAME, reentrant=True)
    me(outer, "enter")
    me(inner, "enter")
    client.delete(LOCK)
    with pytest.raises(LockLost):
        me(inner, "extend", 1)
    assert me.read(inner.remaining) == 0.0
    for lock in (inner, outer):
        with pytest.raises(LockLost):
            me(lock, "exit", None, None, None)


def test_who_holds_a_lock_on_one_alias_neither_enters_nor_is_refused_one_of_that_name_on_another(
    me: Any, you: Any, queue: Any, settings: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "other": {**settings.CACHES["default"], "KEY_PREFIX": "other"}}
    theirs = Lock(NAME, using="other")
    you(theirs, "acquire")
    me(Lock(NAME, ttl=600), "enter")
    assert me(Lock(NAME, using="other", reentrant=True), "acquire", blocking=False) is False
    waiting = queue(Lock(NAME, using="other"), me)
    you(theirs, "release")
    assert waiting.result(GENEROUS) is True


def test_a_lock_that_is_held_through_another_alias_of_the_same_redis_is_held(
    crowd: Crowd, settings: Any, client: redis.Redis
) -> None:
    settings.CACHES = {**settings.CACHES, "again": settings.CACHES["default"]}
    me, before = crowd(), Lock("before", using="again", ttl=600)
    me(before, "acquire")
    until_told(me, before)  # now the first request would queue
    me(before, "release")
    outer, inner = Lock(NAME, ttl=600), Lock(NAME, using="again", reentrant=True)
    me(outer, "enter")
    me(inner, "enter")
    assert me(outer, "info").waiters == 0
    with pytest.raises(LockError, match="holds it already, and would wait for itself without end"):
        me(Lock(NAME, using="again"), "acquire")
    assert me(outer, "info").waiters == 0
    for lock in (inner, outer):
        me(lock, "exit", None, None, None)
    assert leftovers(client) == []


def test_what_a_redis_that_hangs_had_not_read_is_withdrawn_for_as_long_as_it_may_begin_a_lease(
    crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch, retry_for: Callable[[float], None]
) -> None:
    limit(monkeypatch, remember_for=0.0)
    retry_for(0.2)
    me, lock = crowd(), Lock(NAME, ttl=600)
    with caches(alias(DJANGO_REDIS, own.url, socket_timeout=0.2)), own.client() as raw:
        me(Lock("another"), "acquire")  # so that this is connected
        with stopped(own):
            with pytest.raises(LockUnavailable):
                me(lock, "acquire", blocking_timeout=0.2)
            sleep(0.5)  # in which the withdrawal is sent in vain
        until(lambda: not raw.exists(LOCK))
