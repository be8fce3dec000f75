"""What a lock says about itself, to its holder and to others: locked, owned, status, info, and the note."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockStatus, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import LOCK, NAME, TOKEN, queued

from .texts import ENCODABLE


def answers(person: Any, lock: Lock) -> tuple[bool, bool, LockStatus]:
    return person(lock, "locked"), person(lock, "owned"), person(lock, "status")


FREE = (False, False, LockStatus.FREE)
HELD_HERE = (True, True, LockStatus.LOCKED)
HELD_ELSEWHERE = (True, False, LockStatus.UNAVAILABLE)


def test_a_lock_says_whether_anybody_holds_it_and_whether_this_thread_or_task_does(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    assert answers(me, lock) == FREE
    me(lock, "acquire")
    assert answers(me, lock) == HELD_HERE
    assert answers(you, lock) == answers(you, Lock(NAME, using=using)) == HELD_ELSEWHERE
    token = me.read(lambda: lock.token)
    assert answers(you, Lock(NAME, token=token, using=using)) == HELD_HERE
    me(lock, "release")
    assert answers(me, lock) == answers(you, Lock(NAME, token=token, using=using)) == FREE


def test_a_lock_answers_from_redis_and_not_from_memory(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME, token=TOKEN), Lock(NAME)
    me(lock, "acquire")
    you(Lock(NAME, token=TOKEN), "seize")  # another acquisition with the same token
    assert answers(me, lock) == answers(me, Lock(NAME)) == HELD_ELSEWHERE
    with pytest.raises(LockLost):
        me(lock, "release")
    assert answers(me, lock) == HELD_HERE  # by the constructor's token, of whichever acquisition
    client.delete(LOCK)
    assert answers(me, lock) == FREE
    assert you(second, "acquire", blocking=False)
    assert answers(me, lock) == HELD_ELSEWHERE
    client.persist(LOCK)
    assert you(second, "status") is LockStatus.ERROR
    client.pexpire(LOCK, 30_000)
    assert you(second, "status") is LockStatus.LOCKED
    client.set(LOCK, "of somebody else", px=30_000)
    assert you(second, "status") is LockStatus.ERROR


def known_as(person: Any) -> str:
    """The owner that Redis shows for a thread or a task."""
    thread = person.read(lambda: threading.current_thread().name)
    task = f"/{person.read(lambda: asyncio.current_task().get_name())}" if person.awaits else ""  # type: ignore[union-attr]
    return f"{socket.gethostname()}:{os.getpid()}:{thread}{task}"


def test_info_tells_who_holds_and_who_waits_in_order(crowd: Crowd, using: str, eventually: Callable[..., Any]) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100, using=using)
    assert me(lock, "info") is None
    me(lock, "acquire")
    queue = [(crowd(), Lock(NAME, using=using, purpose=f"/{number}")) for number in range(1, 4)]
    for number, (person, theirs) in enumerate(queue, 1):
        person.start(theirs, "acquire")
        eventually(lambda number=number: me(lock, "info").waiters == number)
    info = me(lock, "info")
    assert (info.name, info.fence, info.waiters, info.note) == (NAME, me.read(lambda: lock.fence), 3, "")
    assert info.owner == known_as(me)
    assert 0 <= info.held_for < GENEROUS
    assert 100 - GENEROUS < info.lease_left <= 100
    assert [one.waited for one in info.queue] == sorted((one.waited for one in info.queue), reverse=True)
    token = me.read(lambda: lock.token)
    assert info.token_hint == f"{token[:4]}…"
    assert token not in repr(info)
    me(lock, "release")
    for person, theirs in queue:
        person(theirs, "release")
    names = [known_as(person) for person, _ in queue]
    assert [one.owner for one in info.queue] == [f"{name} /{number}" for number, name in enumerate(names, 1)]


@pytest.mark.parametrize("note", ["\n", " ", "x" * 1000, "\u00fc" * 500, *ENCODABLE], ids=ascii)
def test_the_notes_of_holder_and_waiters_are_kept_as_they_are(
    note: str, crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, note=note)
    me(lock, "acquire")
    me(lock, "extend", 5)
    waiting = you.start(Lock(NAME, note=note), "acquire")
    eventually(lambda: queued(client))
    info = me(lock, "info")
    assert (info.note, info.queue[0].note) == (note, note)
    assert "\n" not in info.owner + info.queue[0].owner
    assert [one.note for one in list_locks()] == [note]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert (handed := get_lock(NAME)) is not None
    assert handed.note == note
