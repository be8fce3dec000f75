"""Losing a held lock: what notices it and when, how the holder is told, and which locks have ``expired`` instead."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockPool, force_release
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, holder, put
from tests.inside import HAS_ENDED, HAS_VANISHED, WAS_FORCED, WAS_TAKEN

Eventually = Callable[..., Any]
Hears = Callable[[Any, Lock], None]
Heard = list[tuple[str, dict[str, Any]]]
Events = Callable[[], list[tuple[str, str]]]

SHORT = 0.2  # seconds


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Events:
    """What the log says of locks."""
    caplog.set_level(logging.INFO, "django_redislock")

    def events() -> list[tuple[str, str]]:
        found = [(each.levelname, re.match(r"event=(\S+) name=", each.getMessage())) for each in caplog.records]
        return [(level, match[1]) for level, match in found if match]

    return events


def losses_in(heard: Heard) -> list[tuple[str, bool]]:
    return [(facts["name"], facts["expired"]) for which, facts in heard if which == "lost"]


@pytest.mark.parametrize("how", ["flushed", "taken", "forced while polling"])
def test_a_loss_is_noticed_at_the_next_renewal(
    how: str, crowd: Crowd, hears: Hears, client: redis.Redis, eventually: Eventually, heard: Heard
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=2, on_lost=losses.append, poll=how == "forced while polling")
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    if how == "flushed":
        hears(me, lock)
        client.flushall()
    elif how == "taken":
        put(client, NAME)
    else:
        force_release(NAME)
    theirs, reason = holder(client), WAS_TAKEN if how == "taken" else HAS_VANISHED  # not because of the local clock
    eventually(lambda: losses)
    assert losses[0].reason == reason
    with pytest.raises(LockLost, match=re.escape(reason)):
        me.read(lock.check)
    with pytest.raises(LockLost, match=re.escape(reason)):
        me(lock, "release")
    facts = {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    assert [found for which, found in heard if which == "lost"] == [facts]
    assert len(losses) == 1
    assert holder(client) == theirs


def test_the_holder_of_a_force_released_lock_is_told_by_a_message(
    crowd: Crowd, using: str, hears: Hears, eventually: Eventually, heard: Heard
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=300, on_lost=losses.append, using=using)
    me(lock, "acquire")
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


def test_a_loss_that_the_release_discovers_is_reported_as_well(
    crowd: Crowd, using: str, eventually: Eventually, heard: Heard, events: Events
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=600, auto_renew=False, on_lost=losses.append, using=using)
    me(lock, "acquire")
    force_release(NAME, using=using)
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    eventually(lambda: losses)
    assert str(losses[0]) == str(caught.value)
    assert losses_in(heard) == [(NAME, False)]
    assert events().count(("WARNING", "lost")) == 1


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
    kept, last = Lock("kept", ttl=1.5), Lock("last", ttl=0.6, auto_renew=False, on_lost=losses.append)
    kept.acquire()
    for name in (NAME, "order:43"):
        Lock(name, ttl=0.3, auto_renew=False, on_lost=on_lost).acquire()
    last.acquire()
    eventually(lambda: losses)
    eventually(lambda: caplog.text.count("event=on-lost-failed") == 2)
    eventually(lambda: kept.remaining() < 1.2)
    eventually(lambda: kept.remaining() > 1.2)
    kept.release()


# -- expired ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["option", "setting", "pool", "cache.lock"])
def test_a_lock_that_was_not_to_be_renewed_and_runs_out_has_expired(
    kind: str, crowd: Crowd, settings: Any, cache_lock: Callable[..., Any], events: Events, heard: Heard,
    eventually: Eventually,
) -> None:  # fmt: skip
    if kind == "cache.lock":
        assert cache_lock(NAME, timeout=SHORT).acquire()  # as tasks do that must not run again so soon
        eventually(lambda: losses_in(heard))
        assert (losses_in(heard), events()) == ([(NAME, True)], [("INFO", "expired")])
        return
    told: list[LockLost] = []
    options: dict[str, Any] = {"ttl": SHORT, "on_lost": told.append}
    if kind == "setting":
        settings.REDISLOCK = {"AUTO_RENEW": False}
    else:
        options["auto_renew"] = False
    me, pool = crowd(), LockPool("accounts")
    me(pool, "assign", ["alice"])
    lock = me(pool, "acquire", **options) if kind == "pool" else Lock(NAME, **options)
    if kind != "pool":
        me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    eventually(lambda: told)
    assert losses_in(heard) == [(lock.name, True)]
    assert events() == [("INFO", "expired")]
    with pytest.raises(LockLost, match="not to be renewed"):
        me.read(lock.check)
    with pytest.raises(LockLost, match="not to be renewed") as caught:
        me(lock, "release")
    assert len(events()) == len(told) == 1
    assert (told[0].name, told[0].fence, told[0].reason) == (lock.name, fence, caught.value.reason)


@pytest.mark.parametrize("where", ["settings", "option"])
def test_one_that_ran_into_its_max_hold_is_lost(
    where: str, crowd: Crowd, settings: Any, events: Events, heard: Heard, eventually: Eventually
) -> None:
    """Its holder may well be at work still."""
    settings.REDISLOCK = {"MAX_HOLD": SHORT if where == "settings" else 3600}
    me, lock = crowd(), Lock(NAME, ttl=SHORT, max_hold=SHORT if where == "option" else None)
    me(lock, "acquire")
    eventually(lambda: losses_in(heard))
    assert losses_in(heard) == [(NAME, False)]
    assert events() == [("WARNING", "max-hold"), ("WARNING", "lost")]
    with pytest.raises(LockLost, match="not to be renewed beyond max_hold"):
        me(lock, "release")


def test_one_whose_thread_or_task_has_ended_is_warned_of_once_and_expires(
    crowd: Crowd, using: str, events: Events, heard: Heard, eventually: Eventually
) -> None:
    me = crowd()
    me(Lock(NAME, ttl=SHORT, using=using), "acquire")
    me.end()
    eventually(lambda: losses_in(heard))
    assert losses_in(heard) == [(NAME, True)]
    assert events() == [("WARNING", "owner-ended"), ("INFO", "expired")]
