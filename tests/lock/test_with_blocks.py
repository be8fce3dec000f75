"""``with`` and ``async with``: what the end of a block raises, and that it releases whatever happens. See also
``test_context_managers.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.interrupts import Interrupt, interrupted_in
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, holder
from tests.inside import leave_block, limit, pending_releases, undo_interrupted

from .blocks import Block

Eventually = Callable[..., Any]

WELL = (None, None, None)
FAILING = (ZeroDivisionError, ZeroDivisionError(), None)


def test_an_exception_in_the_block_matters_more_than_the_loss(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    client.delete(LOCK)
    assert not me(lock, "exit", *FAILING)
    eventually(lambda: caplog.text.count("event=lost") == 1)
    assert "event=not-released" not in caplog.text  # which would tell the same again


def test_a_block_that_has_released_its_lock_itself_is_told_so_unless_it_raises(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME)
    for error in (WELL, FAILING):
        me(lock, "enter")
        me(lock, "release")
        with pytest.raises(LockNotOwned) if error is WELL else contextlib.nullcontext():
            assert not me(lock, "exit", *error)
    assert "event=not-released" not in caplog.text


@pytest.mark.parametrize("error", [WELL, FAILING])
def test_a_block_releases_what_it_has_acquired_last(error: Any, crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    me(lock, "release")
    assert me(lock, "acquire")
    assert not me(lock, "exit", *error)
    assert holder(client) == ""


def test_every_block_of_a_reentrant_lock_tells_of_the_loss(crowd: Crowd, client: redis.Redis) -> None:
    me, outer, inner = crowd(), Lock(NAME, reentrant=True), Lock(NAME, reentrant=True)
    me(outer, "enter")
    me(inner, "enter")
    client.delete(LOCK)
    assert me.read(inner.remaining) > 0
    with pytest.raises(LockLost):
        me(inner, "extend", 1)
    assert me.read(inner.remaining) == 0.0
    for lock in (inner, outer):
        with pytest.raises(LockLost):
            me(lock, "exit", *WELL)


def test_a_thread_enters_again_at_once_after_the_end_of_an_inner_block_was_interrupted() -> None:
    def inner() -> None:
        with interrupted_in(leave_block), Lock(NAME, reentrant=True):
            pass

    with Lock(NAME, reentrant=True) as lock:
        with pytest.raises(Interrupt):
            inner()
        with Lock(NAME, reentrant=True, blocking_timeout=0):
            assert lock.owned()


@pytest.mark.parametrize("remembered", [None, 0.0])
def test_what_a_block_that_raised_could_not_release_is_released_in_the_background(
    remembered: float | None, crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As long as the lease may last: what is given up sooner is what was abandoned in a queue."""
    if remembered is not None:
        limit(monkeypatch, remember_for=remembered)
    me, lock = crowd(), Lock(NAME, ttl=600, using="far")
    me(lock, "enter")
    network.cut()
    assert not me(lock, "exit", *FAILING)
    assert holder(client)
    assert f"event=not-released name={NAME} error=" in caplog.text
    eventually(lambda: "event=renewal-failed" in caplog.text)
    network.mend()
    eventually(lambda: not holder(client))


def test_one_object_can_be_entered_by_hand_while_the_error_of_its_last_exit_is_kept(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "enter")
    client.delete(LOCK)
    with pytest.raises(LockLost) as kept:
        me(lock, "exit", *WELL)
    me(lock, "enter")
    me(lock, "exit", *WELL)
    assert not me(lock, "locked")
    assert kept.value.name == NAME


def test_the_end_of_a_block_is_not_taken_for_an_interruption_while_it_waits_for_redis(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    """Whoever looks for blocks that were interrupted must not release the lock besides."""
    me, troubles = crowd(), []
    me(Block(Lock("warm-up", using="far")), "run")
    leaving = me.start(Block(Lock(NAME, using="far"), lambda: troubles.append(network.hold_request(LOCK))), "run")
    eventually(lambda: troubles and troubles[0].caught.is_set())
    undo_interrupted()
    assert not pending_releases("far")
    assert holder(client)
    troubles[0].let_go()
    leaving.result(GENEROUS)
