"""R14: scripts may be flushed before any call, which is then sent again with the text of the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Counter, Lock, LockLost, LockPool, LockUnavailable
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder, leftovers, queued
from tests.inside import keys_of
from tests.protocol.scene import LONG, Eventually, Line


class Forgetful:
    """A user before whose every call Redis forgets the scripts."""

    def __init__(self, person: Any, client: redis.Redis) -> None:
        self.person = person
        self.client = client

    def __call__(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        self.client.script_flush()
        return self.person(thing, method, *args, **options)


def test_a_script_flush_before_every_call_does_no_harm(crowd: Crowd, client: redis.Redis) -> None:
    me, you = Forgetful(crowd(), client), Forgetful(crowd(), client)
    lock, other = Lock(NAME, ttl=LONG), Lock(NAME)
    assert me(lock, "acquire")
    assert me(lock, "info")
    assert me(lock, "status").value == "locked"
    assert me(lock, "extend", 1)
    assert me(lock, "reacquire")
    assert not you(other, "acquire", blocking=False)
    assert not you(other, "acquire", blocking_timeout=0.1)  # and withdraws
    assert not you(Lock(NAME, poll=True), "acquire", blocking_timeout=0.1)
    assert me(django_redislock, "get_lock", NAME).waiters == 0
    assert [info.name for info in me(django_redislock, "list_locks")] == [NAME]
    token = me(lock, "detach")
    assert you(Lock(NAME, token=token), "acquire")
    assert me(django_redislock, "force_release", NAME)
    assert not me(lock, "locked")
    me(lock, "acquire")
    token = me(lock, "detach")
    you(Lock(NAME, token=token), "release")
    you(other, "seize")
    you(other, "release")
    counter = Counter("hits")
    assert (me(counter, "incr"), me(counter, "reset")) == (1, 1)
    assert holder(client) == ""


def test_a_script_flush_before_every_call_does_no_harm_to_pools(crowd: Crowd, client: redis.Redis) -> None:
    me, pool = Forgetful(crowd(), client), LockPool("accounts")
    assert me(pool, "assign", ["alice", "bob"]) == 2
    assert me(pool, "extend", ["carol"]) == 1
    assert me(pool, "shrink", ["carol"]) == 1
    member = me(pool, "acquire")
    assert me(member, "extend", 1)
    assert me(pool, "info").free == 1
    me(member, "release")
    me(pool, "clear")
    assert leftovers(client) == []


def test_a_script_flush_does_no_harm_to_waiters(line: Line, client: redis.Redis) -> None:
    """Neither when it queues, looks or gives up, nor when it is handed the lock."""
    lock = Lock(NAME)
    lock.acquire()
    client.script_flush()
    waiting = line.join(Lock(NAME))
    leaving = line.join(Lock(NAME, blocking_timeout=0.3))
    client.script_flush()
    assert not leaving.result()
    assert queued(client) == 1
    client.script_flush()
    lock.release()
    assert waiting.result()


def test_a_script_flush_does_no_harm_to_renewals_of_many_locks_at_once(
    client: redis.Redis, eventually: Eventually, renew_all: Callable[..., None]
) -> None:
    """Each command is checked by itself."""
    losses: list[LockLost] = []
    locks = [Lock(f"{NAME}:{number}", ttl=LONG, on_lost=losses.append) for number in range(5)]
    keys = [keys_of(lock.name).lock for lock in locks]
    for lock, key in zip(locks, keys, strict=True):
        lock.acquire()
        client.pexpire(key, 100_000)
    client.script_flush()
    renew_all()
    eventually(lambda: all(int(client.pttl(key)) > 200_000 for key in keys))
    assert losses == []


def test_a_script_flush_does_no_harm_to_a_release_in_the_background(
    network: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """The release is that of a block whose end did not reach Redis."""
    me, lock = crowd(), Lock(NAME, ttl=LONG, using="other")
    me(lock, "enter")
    network.cut()
    with pytest.raises(LockUnavailable):
        me(lock, "exit", None, None, None)
    client.script_flush()
    network.mend()
    eventually(lambda: holder(client) == "")
