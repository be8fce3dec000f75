"""Locks that are not to be renewed, and run out: they are ``expired``, which is no warning, and not ``lost``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockPool, force_release
from django_redislock.testing import lose
from tests.helpers.actors import Crowd, Other
from tests.helpers.state import NAME

Eventually = Callable[..., Any]
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


def losses(heard: Heard) -> list[tuple[str, bool]]:
    return [(facts["name"], facts["expired"]) for which, facts in heard if which == "lost"]


@pytest.mark.parametrize("kind", ["option", "setting", "pool"])
def test_a_lock_that_was_not_to_be_renewed_has_expired(
    kind: str, crowd: Crowd, settings: Any, events: Events, heard: Heard, eventually: Eventually
) -> None:
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
    assert losses(heard) == [(lock.name, True)]
    assert events() == [("INFO", "expired")]
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost, match="not to be renewed"):
        me.read(lock.check)
    with pytest.raises(LockLost, match="not to be renewed") as caught:
        me(lock, "release")
    assert len(events()) == len(told) == 1
    assert (told[0].name, told[0].fence, told[0].reason) == (lock.name, fence, caught.value.reason)


def test_a_lock_of_the_cache_with_a_timeout_has_expired(
    cache_lock: Callable[..., Any], events: Events, heard: Heard, eventually: Eventually
) -> None:
    assert cache_lock("task", timeout=SHORT).acquire()  # as tasks do that must not run again so soon
    eventually(lambda: losses(heard))
    assert (losses(heard), events()) == ([("task", True)], [("INFO", "expired")])


def test_a_release_that_comes_too_late_finds_it_expired_and_not_lost(
    crowd: Crowd, client: redis.Redis, events: Events, heard: Heard, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=1.5, auto_renew=False)  # long enough to be acquired at the first request
    me(lock, "acquire")
    client.client_pause(3000)
    with pytest.raises(LockLost, match="not to be renewed"):
        me(lock, "release")  # sent in time
    eventually(lambda: losses(heard))
    assert (losses(heard), events()) == ([(NAME, True)], [("INFO", "expired")])


@pytest.mark.parametrize("how", ["force_release", "lose"])
def test_one_that_was_taken_away_before_its_end_is_lost(
    how: str, crowd: Crowd, events: Events, heard: Heard, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600, auto_renew=False)
    me(lock, "acquire")
    force_release(NAME) if how == "force_release" else lose(lock)
    with pytest.raises(LockLost):
        me(lock, "release")
    eventually(lambda: losses(heard))
    assert losses(heard) == [(NAME, False)]
    assert ("WARNING", "lost") in events()


def test_one_that_ran_into_its_limit_is_lost(
    crowd: Crowd, events: Events, heard: Heard, eventually: Eventually
) -> None:
    """Its holder may well be at work still."""
    me, lock = crowd(), Lock(NAME, ttl=SHORT, max_hold=SHORT)
    me(lock, "acquire")
    eventually(lambda: losses(heard))
    assert losses(heard) == [(NAME, False)]
    assert events() == [("WARNING", "max-hold"), ("WARNING", "lost")]
    with pytest.raises(LockLost, match="not to be renewed beyond max_hold"):
        me(lock, "release")


def test_one_whose_thread_has_ended_is_warned_of_once(
    other: Callable[[], Other], events: Events, heard: Heard, eventually: Eventually
) -> None:
    lock, thread = Lock(NAME, ttl=SHORT), other()
    thread(lock.acquire)
    thread.end()
    eventually(lambda: losses(heard))
    assert losses(heard) == [(NAME, True)]
    assert events() == [("WARNING", "owner-ended"), ("INFO", "expired")]
