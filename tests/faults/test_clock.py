"""The server's clock jumps while locks and members of pools are held, or waited for; beside the faults in faults.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockPool
from django_redislock.testing import hold
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, TOKEN, count, queued
from tests.inside import limit

from .clock import Clock, server_with_clock

HOUR = 3600


@pytest.fixture
def clock(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of the locks' server, for this process and for workers."""
    with server_with_clock() as server:
        assert isinstance(server, Clock)
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", server.url)
        yield server


def test_a_handoff_is_accepted_when_the_clock_has_jumped_back(
    clock: Clock, other: Callable[[], Other], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=10.0 * GENEROUS)
    with clock.client() as client:
        lock = Lock(NAME, ttl=36_000)
        lock.acquire()
        waiting = other().start(Lock(NAME, ttl=36_000).acquire)
        eventually(lambda: queued(client))
        clock.jump(-HOUR)
        lock.release()
        assert waiting.result(GENEROUS)


def test_after_a_jump_back_the_members_of_a_pool_take_turns(clock: Clock, crowd: Crowd) -> None:
    me, pool = crowd(), LockPool("accounts")
    pool.assign([*"abcdef"])

    def take_turns() -> str:
        given = ""
        for _ in range(6):
            member = me(pool, "acquire")
            me(member, "release")
            given += member.key
        return given

    assert take_turns() == "abcdef"
    clock.jump(-HOUR)
    assert [take_turns(), take_turns()] == ["abcdef", "abcdef"]


@pytest.mark.parametrize("wanted", ["a lock", "a member", "any member"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_a_jump_back_does_not_prolong_a_suspension(wanted: str, held: bool, clock: Clock, crowd: Crowd) -> None:
    pool = LockPool("accounts")
    pool.assign(["a"])
    lock = Lock(NAME if wanted == "a lock" else "pool:accounts:a")
    if held:
        lock.acquire()
    lock.suspend(1)
    clock.jump(-HOUR)
    if held:
        lock.release()
    wants = pool if wanted == "any member" else Lock(lock.name)
    assert crowd()(wants, "acquire", blocking_timeout=GENEROUS)


# -- back: what Redis says of a lease is no longer true once the clock is put right -----------------------------------

TTL = 1.5  # seconds
Eventually = Callable[..., Any]


def member(me: Any, **options: Any) -> Any:
    LockPool(NAME).extend(["a", "b"])
    return me(LockPool(NAME), "acquire", ttl=TTL, **options)


def lock(me: Any, **options: Any) -> Lock:
    made = Lock(NAME, ttl=TTL, **options)
    me(made, "acquire")
    return made


TAKES: list[Callable[..., Any]] = [lock, member]


@pytest.mark.parametrize("take", TAKES)
def test_a_holder_believes_its_lease_no_longer_than_it_asked_for(
    take: Callable[..., Any], clock: Clock, crowd: Crowd, eventually: Eventually
) -> None:
    me = crowd()
    held = take(me)
    clock.jump(-HOUR)
    with clock.client() as client:
        before = count(client, "evalsha")
        # renewed more than three times, so that its end by the right time has passed
        eventually(lambda: count(client, "evalsha") > before + 3 + 1)
    assert 0 < me.read(held.remaining) <= TTL
    clock.jump(HOUR)
    with hold(held.name, ttl=HOUR):
        eventually(lambda: me.read(lambda: held.lost))


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("renewed", [False, True])
def test_an_extension_counts_for_what_was_asked_for(
    take: Callable[..., Any], renewed: bool, clock: Clock, crowd: Crowd
) -> None:
    me = crowd()
    held = take(me, auto_renew=renewed)
    clock.jump(-HOUR)
    before = me.read(held.remaining)
    me(held, "extend", 60)
    assert 60 < me.read(held.remaining) <= before + 60
    me(held, "extend", 30, replace_ttl=True)
    assert 0 < me.read(held.remaining) <= 30
    me(held, "reacquire")
    assert 0 < me.read(held.remaining) <= TTL


def test_a_lock_that_is_not_renewed_ends_after_its_ttl(clock: Clock, crowd: Crowd, eventually: Eventually) -> None:
    me = crowd()
    held = lock(me, auto_renew=False)
    clock.jump(-HOUR)
    eventually(lambda: me.read(lambda: held.lost))


def test_a_handoff_that_is_confirmed_counts_for_its_ttl(clock: Clock, crowd: Crowd, eventually: Eventually) -> None:
    me, you = crowd(), crowd()
    first, second = Lock(NAME), Lock(NAME, ttl=TTL, auto_renew=False)
    you(first, "acquire")
    waiting = me.start(second, "acquire")
    eventually(lambda: you(first, "info").waiters)
    you(first, "release")
    assert waiting.result(GENEROUS)
    clock.jump(-HOUR)
    eventually(lambda: me.read(lambda: second.lost))


@pytest.mark.parametrize("found", ["by its own token", "by a token that was left"])
def test_what_is_adopted_counts_for_its_ttl(
    found: str, clock: Clock, crowd: Crowd, start: Callable[..., Worker], eventually: Eventually
) -> None:
    """The process that has acquired it died, and the clock jumped back: in Redis, an hour is left of its lease."""
    detach = found != "by its own token"
    worker = start(
        f"lock = Lock({NAME!r}, token={TOKEN!r}, ttl=60)\n"
        f"assert lock.acquire()\nif {detach}: lock.detach()\nsay('held')\nhear()"
    )
    worker.expect("held")
    worker.kill()
    clock.jump(-HOUR)
    me, heir = crowd(), Lock(NAME, token=TOKEN, adopt=detach, ttl=TTL)
    assert me(heir, "acquire")
    assert 0 < me.read(heir.remaining) <= TTL


def test_a_grant_that_seems_to_come_from_the_future_is_asked_about(
    clock: Clock, crowd: Crowd, eventually: Eventually
) -> None:
    """The waiter has looked while the clock was behind, and it was put right since."""
    me, you = crowd(), crowd()
    first, second = Lock(NAME, ttl=600), Lock(NAME, ttl=TTL)
    you(first, "acquire")
    clock.jump(-30)  # not so much that Redis forgets who waits
    waiting = me.start(second, "acquire")
    eventually(lambda: you(first, "info").waiters)
    clock.jump(30)
    you(first, "release")
    assert waiting.result(GENEROUS)
    assert 0 < me.read(second.remaining) <= TTL
