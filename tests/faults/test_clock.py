"""The server's clock jumps while locks are held or waited for: what Redis says of a lease is not true any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockPool, get_lock
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, TOKEN, count
from tests.inside import hears, listen

from .clock import Clock, server_with_clock

pytestmark = pytest.mark.complete
HOUR = 3600
TTL = 0.9  # seconds
Eventually = Callable[..., Any]


@pytest.fixture
def clock(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of the locks' server, for this process and for workers."""
    with server_with_clock() as server:
        assert isinstance(server, Clock)
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", server.url)
        yield server


@pytest.mark.parametrize("pooled", [False, True], ids=["a lock", "a member"])
def test_a_holder_believes_its_lease_no_longer_than_it_asked_for(
    pooled: bool, clock: Clock, crowd: Crowd, eventually: Eventually
) -> None:
    me = crowd()
    LockPool(NAME).extend(["a", "b"])
    held: Any = me(LockPool(NAME), "acquire", ttl=TTL) if pooled else Lock(NAME, ttl=TTL)
    assert pooled or me(held, "acquire")
    clock.set(-HOUR)
    with clock.client() as client:
        before = count(client, "evalsha")
        # renewed more than three times, so that its end by the right time has passed
        eventually(lambda: count(client, "evalsha") > before + 3 + 1)
    before = me.read(held.remaining)
    assert 0 < before <= TTL
    me(held, "extend", 60)
    assert 60 < me.read(held.remaining) <= TTL + 60
    me(held, "extend", 30, replace_ttl=True)
    assert 0 < me.read(held.remaining) <= 30
    me(held, "reacquire")
    assert 0 < me.read(held.remaining) <= TTL
    clock.set(0)
    with hold(held.name, ttl=HOUR):
        eventually(lambda: me.read(lambda: held.lost))


@pytest.mark.parametrize("jump", [-HOUR, 30])  # not so far that Redis forgets who waits
def test_a_handoff_counts_for_its_ttl(jump: int, clock: Clock, crowd: Crowd, eventually: Eventually) -> None:
    listen()
    eventually(hears)  # the waiter does not look again
    me, you = crowd(), crowd()
    first, second = Lock(NAME, ttl=36_000), Lock(NAME, ttl=TTL, auto_renew=False)
    you(first, "acquire")
    waiting = me.start(second, "acquire")
    eventually(lambda: you(first, "info").waiters)
    clock.set(jump)
    you(first, "release")
    assert waiting.result(GENEROUS)
    clock.set(-2 * HOUR)
    eventually(lambda: me.read(lambda: second.lost))


def test_what_is_adopted_counts_for_its_ttl(clock: Clock, crowd: Crowd, start: Callable[..., Worker]) -> None:
    """The process that has acquired it died, and the clock jumped back: in Redis, an hour is left of its lease."""
    worker = start(f"Lock({NAME!r}, token={TOKEN!r}, ttl=60).acquire()\nsay('held')\nhear()")
    worker.expect("held")
    worker.kill()
    clock.set(-HOUR)
    me, heir = crowd(), Lock(NAME, token=TOKEN, ttl=TTL)
    assert me(heir, "acquire")
    assert 0 < me.read(heir.remaining) <= TTL


def test_a_grant_that_seems_to_come_from_the_future_is_asked_about(
    clock: Clock, crowd: Crowd, start: Callable[..., Worker], eventually: Eventually
) -> None:
    """The waiter has looked while the clock was behind, and it was put right since."""
    worker = start(f"with Lock({NAME!r}, ttl=600):\n    say('held')\n    hear()")
    worker.expect("held")
    clock.set(-30)  # not so much that Redis forgets who waits
    me, lock = crowd(), Lock(NAME, ttl=TTL)
    waiting = me.start(lock, "acquire")
    eventually(lambda: get_lock(NAME).waiters)  # type: ignore[union-attr]
    clock.set(0)
    with clock.client() as client:
        before = count(client, "evalsha")
        worker.tell()
        assert waiting.result(GENEROUS)
        assert count(client, "evalsha") >= before + 2  # the release, and the question
    assert 0 < me.read(lock.remaining) <= TTL


def test_after_a_jump_back_the_members_of_a_pool_take_turns(clock: Clock, crowd: Crowd) -> None:
    me, pool, given = crowd(), LockPool("accounts"), ""
    pool.assign([*"abc"])
    for offset in (0, -HOUR, -HOUR):
        clock.set(offset)
        for _ in range(3):
            member = me(pool, "acquire")
            me(member, "release")
            given += member.key
    assert given == "abcabcabc"


@pytest.mark.parametrize("wanted", ["a lock", "a member", "any member"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_a_jump_back_does_not_prolong_a_suspension(wanted: str, held: bool, clock: Clock, crowd: Crowd) -> None:
    pool = LockPool("accounts")
    pool.assign(["a"])
    lock = Lock(NAME if wanted == "a lock" else "pool:accounts:a")
    if held:
        lock.acquire()
    lock.suspend(0.5)
    clock.set(-HOUR)
    if held:
        lock.release()
    wants = pool if wanted == "any member" else Lock(lock.name)
    assert crowd()(wants, "acquire", blocking_timeout=GENEROUS)
