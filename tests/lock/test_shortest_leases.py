"""The shortest TTL that can work: a holder counts with 2 ms less than Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from django_redislock import Lock, LockedCommand, LockPool, LockUnavailable, locked, locked_atomic, locked_view
from django_redislock.testing import hold
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME

REFUSAL = "must be at least 0.003 seconds and finite, not "


class Nightly(LockedCommand):
    lock_name, lock_ttl = "nightly", 0.002

    def handle(self, *args: Any, **options: Any) -> None: ...


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("ttl", [0.001, 0.002, timedelta(milliseconds=2)])
def test_a_ttl_that_cannot_work_is_refused_before_anything_is_sent(ttl: Any, cache_lock: Callable[..., Any]) -> None:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    takers: list[Callable[[], object]] = [
        lambda: Lock(NAME, ttl=ttl),
        lambda: locked(NAME, ttl=ttl),
        lambda: locked_view(NAME, ttl=ttl),
        lambda: locked_atomic(NAME, ttl=ttl),
        lambda: LockPool(NAME).acquire(ttl=ttl),
        lambda: call_command(Nightly()),
        lambda: hold(NAME, ttl=ttl).__enter__(),
        lambda: cache_lock(NAME, timeout=ttl),
        lambda: call_command("redislocks", "run", NAME, "--ttl", str(seconds), "--", "true"),
    ]
    for take in takers:
        with pytest.raises((ValueError, CommandError), match=REFUSAL):
            take()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("setting", [{"TTL": 0.002}, {"TTLS": {"order:*": 0.001}}])
def test_so_is_one_in_the_settings(setting: dict[str, Any], settings: Any) -> None:
    settings.REDISLOCK = setting
    with pytest.raises(ImproperlyConfigured, match=REFUSAL):
        Lock(NAME).acquire()


def test_so_is_one_for_a_lock_that_is_held(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=60)
    me(lock, "acquire")
    for method, options in (("detach", {}), ("extend", {"replace_ttl": True})):
        with pytest.raises(ValueError, match=REFUSAL):
            me(lock, method, 0.002, **options)
    assert me(lock, "extend", 0.001) is True  # that much more
    assert me.read(lock.remaining) > 50
    me(lock, "release")


def test_the_shortest_ttl_can_be_got(crowd: Crowd, eventually: Callable[..., Any]) -> None:
    me, lock = crowd(), Lock(NAME, ttl=0.003)

    def got() -> bool:
        with suppress(LockUnavailable):  # the answer took longer than a millisecond
            return bool(me(lock, "acquire"))
        return False

    eventually(got)


@pytest.mark.parametrize("ttl", [0.5, 30])
def test_a_renewed_lock_outlives_a_lease_that_is_made_short(
    ttl: float, crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=ttl)
    me(lock, "acquire")
    for _ in range(200):
        assert me(lock, "extend", 0.005, replace_ttl=True) is True
    eventually(lambda: me.read(lock.remaining) > ttl / 2)  # it was renewed
    assert me(lock, "owned")
    me(lock, "release")
