"""What a jump of the server's clock does to locks and pools, beside the faults in faults.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockPool
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.state import NAME, queued
from tests.inside import limit

from .clock import Clock, server_with_clock

HOUR = 3600


@pytest.fixture
def clock(settings: Any) -> Iterator[Clock]:
    """The clock of the locks' server."""
    with server_with_clock() as server:
        assert isinstance(server, Clock)
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
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
