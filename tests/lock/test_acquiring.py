"""Acquiring: at once, in time, in turn or not at all; and the token, fence and TTL of an acquisition."""

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
from django_redislock.store.stores import get_partition
from tests.helpers.actors import GENEROUS, Crowd, server_time
from tests.helpers.processes import Worker
from tests.helpers.state import FENCE, LOCK, NAME, TOKEN, fence_of, holder, leftovers, queued

from .blocks import Block

Eventually = Callable[..., Any]
Settings = Any  # its type has another name in each pytest-django
Start = Callable[..., Worker]


def waiters(using: str = "default") -> int:
    info = get_lock(NAME, using=using)
    return 0 if info is None else info.waiters


# -- in time ----------------------------------------------------------------------------------------------------------


def test_a_free_lock_is_acquired_at_once_and_by_nobody_else(crowd: Crowd, using: str) -> None:
    me, you = crowd(), crowd()
    assert me(Lock(NAME, using=using), "acquire") is True
    for once in ({"blocking": False}, {"blocking_timeout": 0}):
        assert you(Lock(NAME, using=using, **once), "acquire") is False
        assert you(Lock(NAME, using=using), "acquire", **once) is False
    assert waiters(using) == 0
    assert you(Lock("order:43", using=using), "acquire", blocking=False) is True


@pytest.mark.parametrize("timeout", [0.25, timedelta(milliseconds=250)])
def test_a_bounded_wait_ends_in_time_and_leaves_the_queue(crowd: Crowd, using: str, timeout: float | timedelta) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME, using=using), "acquire")
    begin = monotonic()
    assert you(Lock(NAME, using=using, blocking_timeout=timeout), "acquire") is False
    assert 0.25 <= monotonic() - begin < 5
    assert waiters(using) == 0


def test_the_arguments_of_acquire_override_those_of_the_constructor(crowd: Crowd) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    begin = monotonic()
    assert not you(Lock(NAME, blocking=False), "acquire", blocking=True, blocking_timeout=0.2)
    assert monotonic() - begin >= 0.2
    begin = monotonic()
    assert not you(Lock(NAME, blocking=False), "acquire", blocking_timeout=0.2)
    assert monotonic() - begin >= 0.2
    assert not you(Lock(NAME, blocking_timeout=GENEROUS * 2), "acquire", blocking_timeout=0.01)
    assert not you(Lock(NAME, blocking_timeout=GENEROUS * 2), "acquire", blocking=False)


@pytest.mark.usefixtures("nowhere")
def test_whether_to_wait_is_true_or_false(crowd: Crowd) -> None:
    with pytest.raises(TypeError, match=r"^blocking must be True, False or None, not 5"):
        crowd()(Lock(NAME), "acquire", blocking=5)


def test_without_a_timeout_the_setting_bounds_the_wait(crowd: Crowd, settings: Settings) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.1}
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    assert not you(Lock(NAME), "acquire")


def test_without_any_timeout_a_waiter_waits_until_its_turn_comes(
    crowd: Crowd, using: str, eventually: Eventually
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    me(lock, "acquire")
    waiting = you.start(Lock(NAME, using=using), "acquire")
    eventually(lambda: waiters(using) == 1)
    assert not waiting.done()
    me(lock, "release")
    assert waiting.result(GENEROUS) is True
    assert waiters(using) == 0


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
    start: Start, client: redis.Redis, eventually: Eventually
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


def test_every_lock_is_fair() -> None:
    assert FairLock is Lock


def test_a_lock_shows_its_name_and_not_its_token() -> None:
    assert repr(Lock(NAME, token=TOKEN)) == f"<Lock {NAME!r}>"


def test_each_acquisition_has_a_token_and_a_fence_of_its_own(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME)
    seen: list[tuple[str | None, int | None]] = []
    me(Block(lock, lambda: seen.append((lock.token, lock.fence)), times=20), "run")
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22,}", token or "") for token, _ in seen)
    assert len({token for token, _ in seen}) == len({fence for _, fence in seen}) == 20
    assert me.read(lambda: (lock.token, fence_of(lock))) == (None, None)
    with pytest.raises(
        LockNotOwned, match=r"^Cannot read the fence of the lock 'order:42': this thread or task does not"
    ):
        me.read(lambda: lock.fence)


def test_fences_grow_strictly_across_names_people_and_a_flush(crowd: Crowd, client: redis.Redis) -> None:
    me, you = crowd(), crowd()
    fences: list[int] = []

    def take(who: Any, name: str) -> None:
        lock = Lock(name)
        who(Block(lock, lambda: fences.append(lock.fence or 0)), "run")

    for _ in range(5):
        take(me, NAME)
        take(me, "order:43")
        take(you, NAME)
        client.flushall()
    assert all(one < two for one, two in itertools.pairwise([0, *fences]))


def test_fences_grow_even_when_redis_forgets_them_and_its_clock_is_behind(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # restored at the end, so that the next test has the real time
    monkeypatch.setattr(get_partition(), "highest_fence", 0)
    future = server_time(client) + 10**9
    client.set(FENCE, future)
    with Lock(NAME) as lock:
        assert lock.fence == future + 1
    client.flushall()
    with Lock(NAME) as lock:
        assert lock.fence == future + 2


def test_the_ttl_comes_from_the_constructor_the_first_matching_pattern_or_the_setting(
    settings: Settings, client: redis.Redis
) -> None:
    assert Lock(NAME).ttl == 30
    settings.REDISLOCK = {"TTL": 40, "TTLS": {"order:4?": 50, "order:*": 60}}
    assert [Lock(name).ttl for name in ("seat:1", NAME, "order:5")] == [40, 50, 60]
    assert Lock(NAME, ttl=timedelta(seconds=70)).ttl == 70
    assert Lock(NAME, ttl=1.5).ttl == 1.5
    lock = Lock(NAME)
    lock.acquire()
    assert 40_000 < int(client.pttl(LOCK)) <= 50_000
    settings.REDISLOCK = {}
    assert lock.ttl == 50  # the TTL of this acquisition
    lock.release()
    assert lock.ttl == 30


def test_a_token_can_be_given_to_the_constructor_or_to_acquire(crowd: Crowd, client: redis.Redis) -> None:
    me = crowd()
    for lock, given in ((Lock(NAME, token=TOKEN), {}), (Lock(NAME), {"token": TOKEN})):
        me(lock, "acquire", **given)
        assert me.read(lambda lock=lock: lock.token) == TOKEN
        assert holder(client) != TOKEN  # each attempt also has an id
        me(lock, "release")
