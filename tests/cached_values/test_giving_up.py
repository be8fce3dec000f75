"""After the timeout, or without Redis, callers get an error instead of the value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from django.core.cache import caches

from django_redislock import Lock, LockNotAcquired, LockUnavailable, force_release, list_locks
from django_redislock.computations import Computation
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd

from .conftest import NAME, Computing, Value, under_way

Eventually = Callable[..., Any]

# -- blocking_timeout -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "elsewhere"])
@pytest.mark.parametrize("patience", [0, 0.05])
def test_a_caller_whose_timeout_has_passed_gets_an_error(
    crowd: Crowd, computing: Computing, elsewhere: bool, patience: float
) -> None:
    def ask() -> None:
        begun = monotonic()
        with pytest.raises(LockNotAcquired, match="'x' in time: it is being computed elsewhere") as raised:
            crowd()(Value("never", blocking_timeout=patience), "get")
        assert monotonic() - begun >= patience
        assert raised.value.name == NAME
        assert raised.value.outcome == ("timeout" if patience else "busy")
        assert raised.value.waited >= patience

    if elsewhere:
        crowd()(Lock(NAME), "acquire")
        ask()
        assert not under_way()
    else:
        with computing():
            ask()


def test_the_setting_is_the_default_timeout(me: Any, computing: Computing, settings: Any) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.05}
    with computing(), pytest.raises(LockNotAcquired):
        me(Value("never"), "get")


def test_a_caller_with_a_longer_timeout_outwaits_the_others(
    crowd: Crowd, joined: list[Computation], eventually: Eventually
) -> None:
    crowd()(Lock(NAME), "acquire")
    first = crowd().start(Value("first", blocking_timeout=0.5), "get")
    eventually(under_way)
    second = crowd().start(Value("second"), "get")
    eventually(lambda: joined or first.done())
    with pytest.raises(LockNotAcquired):
        first.result(GENEROUS)
    force_release(NAME)
    assert second.result(GENEROUS) == "second"


def test_a_loop_that_ends_after_a_coroutine_gave_up_gets_no_more_wakes(
    computing: Computing, caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Value("never").aget(), 0.05)

    with computing():
        asyncio.run(give_up())
    assert not [record for record in caplog.records if record.name in ("asyncio", "concurrent.futures")]


# -- without the Redis server used for locks --------------------------------------------------------------------------


@pytest.fixture
def apart(own: RedisServer, settings: Any) -> RedisServer:
    """The server used for locks; the values are in this process."""
    settings.REDISLOCK = {"CACHE": "default"}
    return own


def test_a_value_that_is_there_is_read(me: Any, apart: RedisServer) -> None:
    caches["locmem"].set("x", 1)
    apart.stop()
    assert me(Value(using="locmem"), "get") == 1


def test_during_an_outage_a_missing_value_is_not_computed_and_all_callers_are_told_at_once(
    crowd: Crowd, apart: RedisServer
) -> None:
    apart.stop()
    value = Value(using="locmem")
    begun = monotonic()
    turns = [crowd().start(value, "get") for _ in range(10)]
    for turn in turns:
        with pytest.raises(LockUnavailable) as raised:
            turn.result(GENEROUS)
        assert raised.value.name == "get_or_set:locmem::1:x"
    assert monotonic() - begun < 6  # not one after the other
    assert value.calls == 0


def test_an_outage_that_the_default_meets_is_its_own(
    me: Any, computing: Computing, joined: list[Computation], eventually: Eventually
) -> None:
    with computing(LockUnavailable("another lock", "another")) as value:
        turn = me.start(Value("second"), "get")
        eventually(lambda: joined)
        value.go.set()
        assert turn.result(GENEROUS) == "second"


def test_a_release_that_cannot_be_sent_costs_nobody_the_value(
    me: Any, apart: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    value = Value("mine", using="locmem", held_up=True)
    turn = me.start(value, "get")
    assert value.called.wait(GENEROUS)
    assert list_locks()
    apart.stop()
    value.go.set()
    assert turn.result(GENEROUS) == "mine"
    assert caches["locmem"].get("x") == "mine"
    assert "event=not-released name=get_or_set:locmem::1:x" in caplog.text
