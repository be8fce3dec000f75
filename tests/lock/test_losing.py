"""Losing a held lock: what notices it and when, and how the holder is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, force_release, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.state import NAME, holder, put
from tests.inside import HAS_ENDED, HAS_VANISHED, WAS_FORCED, WAS_TAKEN

Eventually = Callable[..., Any]
Hears = Callable[[Any, Lock], None]
Heard = list[tuple[str, dict[str, Any]]]


def test_a_flush_is_noticed_at_the_next_renewal(
    crowd: Crowd, hears: Hears, client: redis.Redis, eventually: Eventually, heard: Heard
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=3, on_lost=losses.append)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    hears(me, lock)
    client.flushall()
    eventually(lambda: losses)
    assert losses[0].reason == HAS_VANISHED  # not because of the local clock
    with pytest.raises(LockLost, match="gone from Redis"):
        me.read(lock.check)
    with pytest.raises(LockLost, match="gone from Redis"):
        me(lock, "release")
    facts = {"name": NAME, "template": NAME, "fence": fence, "reason": HAS_VANISHED, "expired": False}
    assert heard[1:] == [("lost", facts)]
    assert len(losses) == 1


def test_a_lock_that_somebody_else_holds_now_is_lost_and_left_alone(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=3, on_lost=losses.append)
    me(lock, "acquire")
    put(client, NAME)
    theirs = holder(client)
    eventually(lambda: losses)
    assert losses[0].reason == WAS_TAKEN
    with pytest.raises(LockLost):
        me(lock, "release")
    assert holder(client) == theirs


@pytest.mark.parametrize("extended", [False, True])
def test_the_holder_of_a_force_released_lock_is_told_by_a_message(
    crowd: Crowd, using: str, extended: bool, hears: Hears, eventually: Eventually, heard: Heard
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=300, on_lost=losses.append, using=using)
    me(lock, "acquire")
    if extended:
        me(lock, "extend", 300)
    fence = me.read(lambda: lock.fence)
    hears(me, lock)
    assert force_release(NAME, using=using, by="the test") is not None
    eventually(lambda: losses)
    assert losses[0].reason == WAS_FORCED == "it was force-released"  # only the message says so
    assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0.0)
    with pytest.raises(LockLost, match="force-released"):
        me(lock, "release")
    assert sorted(heard[1:]) == [
        ("force", {"name": NAME, "by": "the test"}),
        ("lost", {"name": NAME, "template": NAME, "fence": fence, "reason": WAS_FORCED, "expired": False}),
    ]


@pytest.mark.usefixtures("fresh")
def test_a_holder_that_polls_learns_of_it_at_its_next_renewal(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=3, poll=True, on_lost=losses.append)
    me(lock, "acquire")
    force_release(NAME)
    eventually(lambda: losses)
    assert losses[0].reason == HAS_VANISHED
    assert client.pubsub_channels() == []


def test_a_loss_that_the_release_discovers_is_reported_as_well(
    crowd: Crowd, using: str, eventually: Eventually, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, on_lost=losses.append, using=using)
    me(lock, "acquire")
    force_release(NAME, using=using)
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    eventually(lambda: losses)
    assert str(losses[0]) == str(caught.value)
    assert [which for which, _ in heard].count("lost") == 1
    assert caplog.text.count("event=lost") == 1


def test_the_end_of_a_lease_is_reported_when_redis_refuses_the_renewal(
    crowd: Crowd, own: RedisServer, settings: Any, eventually: Eventually
) -> None:
    database = {**settings.CACHES["default"], "LOCATION": f"redis://127.0.0.1:{own.port}/1"}
    settings.CACHES = {**settings.CACHES, "default": database}
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=0.9, on_lost=losses.append)
    me(lock, "acquire")
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-select")  # no new connection reaches its database
        client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: losses)
    assert losses[0].reason == HAS_ENDED


# -- on_lost ----------------------------------------------------------------------------------------------------------


def test_on_lost_is_called_in_a_thread_of_its_own_once_the_lock_counts_as_lost(crowd: Crowd) -> None:
    """Even if the holder itself discovers the loss, so on_lost may wait for something that the holder does next."""
    me = crowd()
    seen: Future[tuple[bool, str]] = Future()

    def on_lost(error: LockLost) -> None:
        lost = me.read(lambda: lock.lost)
        seen.set_result((lost, threading.current_thread().name))

    lock = Lock(NAME, on_lost=on_lost)
    me(lock, "acquire")
    force_release(NAME)
    with pytest.raises(LockLost):
        me(lock, "extend", 1)
    assert seen.result(GENEROUS) == (True, "redislock-notifier")


def test_an_on_lost_that_raises_stops_neither_renewals_nor_reports_of_other_losses(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def on_lost(error: LockLost) -> None:
        raise ZeroDivisionError if error.name == NAME else SystemExit

    losses: list[LockLost] = []
    kept, last = Lock("kept", ttl=3), Lock("last", ttl=0.6, auto_renew=False, on_lost=losses.append)
    kept.acquire()
    for name in (NAME, "order:43"):
        Lock(name, ttl=0.3, auto_renew=False, on_lost=on_lost).acquire()
    last.acquire()
    eventually(lambda: losses)
    eventually(lambda: caplog.text.count("event=on-lost-failed") == 2)
    for _ in range(2):  # it is renewed, and renewed again
        eventually(lambda: kept.remaining() < 2.5)
        eventually(lambda: kept.remaining() > 2.5)
    kept.release()


def test_a_slow_on_lost_delays_no_waiter(other: Callable[[], Other]) -> None:
    mutex = threading.Lock()
    told = threading.Event()

    def on_lost(error: LockLost) -> None:
        with mutex:
            told.set()

    me, busy = other(), other()
    me(Lock("lost", on_lost=on_lost).acquire)
    busy(Lock(NAME).acquire)
    with mutex, contextlib.ExitStack() as stack:
        # on_lost wants something that the waiting thread holds, and that thread may be the one that reads messages
        def force_release_when_somebody_waits() -> None:
            while not ((info := get_lock(NAME)) and info.waiters):
                pass
            force_release("lost")

        helper = other().start(force_release_when_somebody_waits)
        stack.callback(lambda: helper.result(GENEROUS))
        assert not Lock(NAME).acquire(blocking_timeout=1)
    assert told.wait(GENEROUS)
