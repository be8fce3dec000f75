"""Invalid names, tokens, durations and delays cause a short error before anything is sent to Redis."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis.backoff import AbstractBackoff

import django_redislock
from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockedCommand,
    LockPool,
    get_lock,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.testing import hold
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME, leftovers

from .texts import MEGA

nowhere = pytest.mark.usefixtures("nowhere")


def brief(value: object) -> str:
    return "a large number" if isinstance(value, int) and value > 2**64 else ascii(value)[:20]


def refuses(take: Callable[[], object], about: str) -> None:
    with pytest.raises((TypeError, ValueError, ImproperlyConfigured, CommandError), match=about) as caught:
        take()
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@nowhere
@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\0b", "\x1b[2J", "\ud800", "x" * 513, "\u00e9" * 257, b"bytes", None, 10**5000], ids=brief
)
def test_an_invalid_name_is_refused(crowd: Crowd, name: Any) -> None:
    me = crowd()
    refuses(lambda: Lock(name), "name")
    refuses(lambda: Counter(name), "name")
    refuses(lambda: ConditionalValue(name), "name")
    refuses(lambda: me(django_redislock, "get_lock", name), "name")
    refuses(lambda: me(django_redislock, "force_release", name), "name")


@nowhere
@pytest.mark.parametrize("member", ["", None, b"a", 7, "x" * MEGA], ids=brief)
def test_an_invalid_member_of_a_pool_is_refused(crowd: Crowd, member: Any) -> None:
    me = crowd()
    for method in ("extend", "assign", "shrink"):
        refuses(lambda method=method: me(LockPool("accounts"), method, [member]), ".")  # type: ignore[misc]


@nowhere
@pytest.mark.parametrize("name", ["a\r\nSet-Cookie: x=y", "", "x" * MEGA, None, b"a"], ids=brief)
def test_a_callable_that_returns_no_valid_name_is_refused(name: Any) -> None:
    @locked_view(lambda request: name)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    refuses(lambda: view(RequestFactory().get("/")), "lock")


def test_a_name_that_looks_like_a_template_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"^Lock\('order:{pk}'\) locks this very name: only decorators") as caught:
        assert Lock("order:{pk}").name == "order:{pk}"
    assert caught[0].filename == __file__
    assert [Lock(name).name for name in ("{", "a}", "a{{pk}}")] == ["{", "a}", "a{{pk}}"]


@pytest.mark.parametrize("prefix", ["a b", "a\0", "{a}", "\ud800", "", None, b"x", "{" * MEGA], ids=brief)
def test_an_invalid_prefix_is_refused(crowd: Crowd, prefix: Any, settings: Any) -> None:
    settings.REDISLOCK = {"KEY_PREFIX": prefix}
    refuses(lambda: crowd()(Lock(NAME), "acquire"), "KEY_PREFIX")


@nowhere
@pytest.mark.parametrize("token", ["", "short secret", "x" * 129, "x" * 22 + "\n", "\u00e9" * 22, b"x" * 22, 7])
def test_an_invalid_token_is_refused_and_not_shown(crowd: Crowd, token: Any) -> None:
    me = crowd()
    for take in (lambda: Lock(NAME, token=token), lambda: me(Lock(NAME), "acquire", token=token)):
        with pytest.raises(ValueError, match="A token must be") as caught:
            take()
        assert not token or str(token) not in str(caught.value)


# -- seconds ----------------------------------------------------------------------------------------------------------

NO_SECONDS: list[Any] = [math.nan, math.inf, -math.inf, -1, True, "10", "x" * MEGA, b"10", Decimal(10), [10], 1j]
TOO_LONG = [1e300, 10**5000, 2**63]
NO_DURATION = r"seconds|at most ten years"
TOO_SHORT = "must be at least 0.003 seconds and finite, not "


@pytest.mark.parametrize("value", [*NO_SECONDS, *TOO_LONG], ids=brief)
def test_an_invalid_duration_is_refused_and_leaves_a_held_lock_unchanged(
    crowd: Crowd, value: Any, cache_lock: Callable[..., Any]
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    refuses(lambda: me(lock, "acquire", blocking_timeout=value), NO_DURATION)
    refuses(lambda: me(Counter("a"), "incr", ttl=value), NO_DURATION)
    refuses(lambda: me(ConditionalValue("a"), "setgt", 1, ttl=value), NO_DURATION)
    if value not in TOO_LONG:
        refuses(lambda: cache_lock("a", timeout=value), NO_DURATION)
    assert get_lock(NAME) is None
    me(lock, "acquire")
    for method in ("extend", "detach"):
        refuses(lambda method=method: me(lock, method, value), NO_DURATION)  # type: ignore[misc]
    assert (info := get_lock(NAME)) is not None
    assert info.lease_left <= 100
    me(lock, "release")


class Nightly(LockedCommand):
    lock_name, lock_ttl = "nightly", 0.002

    def handle(self, *args: Any, **options: Any) -> None: ...


@nowhere
@pytest.mark.parametrize("ttl", [0.002, timedelta(milliseconds=2)])
def test_a_ttl_that_cannot_work_is_refused(ttl: Any, cache_lock: Callable[..., Any], settings: Any) -> None:
    refuses(lambda: Lock(NAME, ttl=ttl), TOO_SHORT)
    refuses(lambda: locked(NAME, ttl=ttl), TOO_SHORT)
    refuses(lambda: locked_view(NAME, ttl=ttl), TOO_SHORT)
    refuses(lambda: locked_atomic(NAME, ttl=ttl), TOO_SHORT)
    refuses(lambda: LockPool(NAME).acquire(ttl=ttl), TOO_SHORT)
    refuses(lambda: call_command(Nightly()), TOO_SHORT)
    refuses(lambda: hold(NAME, ttl=ttl).__enter__(), TOO_SHORT)
    refuses(lambda: cache_lock(NAME, timeout=ttl), TOO_SHORT)
    refuses(lambda: call_command("redislocks", "run", NAME, "--ttl", "0.002", "--", "true"), TOO_SHORT)
    for setting in ({"TTL": 0.002}, {"TTLS": {"order:*": 0.001}}):
        settings.REDISLOCK = setting
        refuses(lambda: Lock(NAME).acquire(), TOO_SHORT)


def test_a_held_lock_is_not_made_shorter_than_that(crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=60)
    me(lock, "acquire")
    refuses(lambda: me(lock, "detach", 0.002), TOO_SHORT)
    refuses(lambda: me(lock, "extend", 0.002, replace_ttl=True), TOO_SHORT)
    assert me(lock, "extend", 0.001) is True  # that much more
    assert me.read(lock.remaining) > 50


# -- delays between looks ---------------------------------------------------------------------------------------------


class Odd(AbstractBackoff):
    def __init__(self, delay: Any) -> None:
        self.delay = delay

    def compute(self, failures: int) -> Any:
        return self.delay


@pytest.mark.parametrize("delay", [math.nan, None, "1", [1]], ids=brief)
def test_a_delay_that_is_no_number_is_refused_and_leaves_nothing(crowd: Crowd, delay: Any, client: redis.Redis) -> None:
    lock = Lock(NAME, poll=True, backoff=Odd(delay))
    refuses(lambda: crowd()(lock, "acquire"), r"delays of backoff must be seconds.*, not ")
    assert leftovers(client) == []


@pytest.mark.parametrize("delay", [-1.0, 0, math.inf])
def test_a_delay_beyond_all_bounds_is_bounded(crowd: Crowd, delay: float) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    assert not you(Lock(NAME, poll=True, backoff=Odd(delay)), "acquire", blocking_timeout=0.05)
