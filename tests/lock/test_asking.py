"""What a lock says about itself, to its holder and to others: locked, owned, status, info."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockStatus, force_release
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, TOKEN

Eventually = Callable[..., Any]


def answers(person: Any, lock: Lock) -> tuple[bool, bool, LockStatus]:
    return person(lock, "locked"), person(lock, "owned"), person(lock, "status")


FREE = (False, False, LockStatus.FREE)
HELD_HERE = (True, True, LockStatus.LOCKED)
HELD_ELSEWHERE = (True, False, LockStatus.UNAVAILABLE)


def test_a_lock_says_whether_anybody_holds_it_and_whether_this_thread_or_task_does(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    assert answers(me, lock) == FREE
    me(lock, "acquire")
    assert answers(me, lock) == answers(me, Lock(NAME, using=using)) == HELD_HERE  # through any object
    assert answers(you, lock) == answers(you, Lock(NAME, using=using)) == HELD_ELSEWHERE
    token = me.read(lambda: lock.token)
    assert answers(you, Lock(NAME, token=token, using=using)) == HELD_HERE
    me(lock, "release")
    assert answers(me, lock) == answers(you, Lock(NAME, token=token, using=using)) == FREE


def test_a_lock_answers_from_redis_and_not_from_memory(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME), Lock(NAME)
    me(lock, "acquire")
    client.delete(LOCK)
    assert answers(me, lock) == FREE
    assert you(second, "acquire", blocking=False)
    assert answers(me, lock) == HELD_ELSEWHERE
    assert answers(you, second) == HELD_HERE


def test_a_lock_that_another_acquisition_with_the_same_token_has_taken_is_held_elsewhere(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    you(Lock(NAME, token=TOKEN), "seize")
    assert answers(me, lock) == answers(me, Lock(NAME)) == HELD_ELSEWHERE
    with pytest.raises(LockLost):
        me(lock, "release")
    assert answers(me, lock) == HELD_HERE  # by the constructor's token, of whichever acquisition


def test_a_lock_that_never_ends_or_that_somebody_else_wrote_is_an_error(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    client.persist(LOCK)
    assert me(lock, "status") is LockStatus.ERROR
    client.pexpire(LOCK, 30_000)
    assert me(lock, "status") is LockStatus.LOCKED
    client.set(LOCK, "of somebody else")
    assert me(lock, "status") is LockStatus.ERROR
    client.set(LOCK, "of somebody else", px=30_000)
    assert me(lock, "status") is LockStatus.ERROR


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("method", ["locked", "owned", "status", "info"])
def test_each_answer_is_one_round_trip(crowd: Crowd, method: str, client: redis.Redis) -> None:
    me = crowd()
    lock = Lock(NAME, token="a-token-of-somebody-else")
    me(lock, method)
    client.config_resetstat()
    me(lock, method)
    used: Any = client.info("commandstats")
    assert used["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in used


def known_as(person: Any) -> str:
    """The owner that Redis shows for a thread or a task."""
    thread = person.read(lambda: threading.current_thread().name)
    task = f"/{person.read(lambda: asyncio.current_task().get_name())}" if person.awaits else ""  # type: ignore[union-attr]
    return f"{socket.gethostname()}:{os.getpid()}:{thread}{task}"


def test_info_tells_who_holds_and_who_waits_in_order(crowd: Crowd, using: str, eventually: Eventually) -> None:
    me, queue, lock = crowd(), [crowd() for _ in range(3)], Lock(NAME, ttl=100, using=using)
    assert me(lock, "info") is None
    me(lock, "acquire")
    waiting, names = [], [f"{known_as(person)} /{number}" for number, person in enumerate(queue, 1)]
    for number, person in enumerate(queue, 1):
        waiting.append(person.start(Lock(NAME, using=using, purpose=f"/{number}"), "acquire"))
        eventually(lambda number=number: me(lock, "info").waiters == number)
    info = me(lock, "info")
    assert (info.name, info.fence, info.waiters) == (NAME, me.read(lambda: lock.fence), 3)
    assert info.owner == known_as(me)
    assert abs(info.since - datetime.now(timezone.utc)) < timedelta(seconds=GENEROUS)
    assert abs(info.expires - info.since - timedelta(seconds=100)) < timedelta(seconds=GENEROUS)
    assert 0 <= info.held_for < GENEROUS
    assert 100 - GENEROUS < info.lease_left <= 100
    assert [one.owner for one in info.queue] == names
    assert [one.waited for one in info.queue] == sorted((one.waited for one in info.queue), reverse=True)
    assert me.read(lambda: lock.token) not in repr(info)
    me(lock, "release")
    for future in waiting:
        assert future.result(GENEROUS)
        force_release(NAME, using=using)
    assert me(lock, "info") is None
