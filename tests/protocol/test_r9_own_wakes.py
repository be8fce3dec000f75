"""R9: who finds the lock free behind dead waiters takes it itself, in the same call, and tells nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redislock import Lock, LockPool
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.state import NAME, TOKEN, count, flag, holder, queued
from tests.inside import Ears
from tests.protocol.scene import Ear, Line, vanish


@pytest.mark.parametrize("dead", [1, 250, 1200])
def test_a_single_try_gets_a_free_lock_whose_waiters_are_all_dead(
    dead: int, crowd: Crowd, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """After dropping them, the script decides again; where they are very many, it is called again."""
    me, gone = crowd(), ghost(alive=False)
    Lock(NAME).acquire()
    for number in range(dead):
        gone.queue(f"{TOKEN}-{number}", name=NAME, age=10)
    vanish(client, NAME)
    assert me(Lock(NAME), "acquire", blocking=False)
    assert queued(client) == 0


def test_a_single_try_gets_a_free_member_of_a_pool_whose_waiters_are_all_dead(
    crowd: Crowd, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    pool, me, gone = LockPool("accounts"), crowd(), ghost(alive=False)
    pool.extend(["alice"])
    member = pool.acquire()
    for number in range(250):
        gone.queue(f"{TOKEN}-{number}", name="pool:accounts:", age=10)
    client.zadd("redislock{0}:busy:pool:accounts:", {"alice": 1})  # its lease has ended
    assert me(pool, "acquire", blocking_timeout=0).key == "alice"
    assert pool.info().waiters == 0
    assert member.lost is False  # by the local clock: nobody has told it yet


def test_a_waiter_that_finds_the_lock_free_takes_it_and_wakes_nobody(
    line: Line, client: redis.Redis, listening: Callable[[], Ears]
) -> None:
    """Never is anything published to the caller itself, nor the caller queued again."""
    listening()
    Lock(NAME, ttl=0.5, auto_renew=False).acquire()
    before = count(client, "publish")
    waiting = line.join(Lock(NAME))
    assert waiting.result()
    assert (holder(client), flag(client), queued(client)) == (waiting.id, "c", 0)
    assert count(client, "publish") == before


def test_a_waiter_behind_dead_ones_acquires_an_expired_lock_by_its_own_look(
    line: Line, ghost: Callable[..., Ghost], ear: Ear
) -> None:
    """The dead are dropped and the caller decides again, instead of telling itself."""
    Lock(NAME, ttl=0.5, auto_renew=False).acquire()
    ghost(alive=False).queue(TOKEN, name=NAME, age=1)
    waiting = line.join(Lock(NAME))
    assert waiting.result()
    assert [words for words in ear.heard() if words[0] == "g"] == []
