"""Invalid names, tokens, durations and delays cause a short error before anything is sent to Redis.

The options of locks and decorators are tested in tests/base/test_options.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis.backoff import AbstractBackoff, ConstantBackoff

import django_redislock
from django_redislock import ConditionalValue, Counter, Lock, LockPool, get_lock, locked_view
from django_redislock.base.display import shown
from django_redislock.cache_lock import CacheLock
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME, leftovers

from .texts import MEGA

nowhere = pytest.mark.usefixtures("nowhere")


def brief(value: object) -> str:
    return ascii(shown(value))[:20]


# -- names ------------------------------------------------------------------------------------------------------------

NO_NAMES: list[Any] = [
    "",
    "a\nb",
    "a\0b",
    "\x1b[2J",
    "\x85",
    "\ud800",
    "x" * 513,
    "\u00e9" * 257,
    "x" * MEGA,
    b"bytes",
    b"x" * MEGA,
    None,
    7,
    10**5000,
    1.5,
    ["a"],
    True,
]


@nowhere
@pytest.mark.parametrize("name", NO_NAMES, ids=brief)
def test_an_invalid_name_is_refused(crowd: Crowd, name: Any) -> None:
    me = crowd()
    takers: list[Callable[[], object]] = [
        lambda: Lock(name),
        lambda: Counter(name),
        lambda: ConditionalValue(name),
        lambda: CacheLock(name),
        lambda: me(django_redislock, "get_lock", name),
        lambda: me(django_redislock, "force_release", name),
    ]
    for take in takers:
        with pytest.raises((TypeError, ValueError), match="name") as caught:
            take()
        assert len(str(caught.value)) < 400
        assert str(caught.value).isprintable()


@nowhere
@pytest.mark.parametrize("member", ["", None, b"a", 7, "x" * MEGA], ids=brief)
def test_an_invalid_member_of_a_pool_is_refused(crowd: Crowd, member: Any) -> None:
    for method in ("extend", "assign", "shrink"):
        with pytest.raises((TypeError, ValueError)) as caught:
            crowd()(LockPool("accounts"), method, [member])
        assert len(str(caught.value)) < 400


@nowhere
@pytest.mark.parametrize("name", ["a\r\nSet-Cookie: x=y", "", "x" * MEGA, None, b"a"], ids=brief)
def test_a_callable_that_returns_no_valid_name_is_refused(name: Any) -> None:
    @locked_view(lambda request: name)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    with pytest.raises((TypeError, ValueError), match="lock") as caught:
        view(RequestFactory().get("/"))
    assert len(str(caught.value)) < 400


def test_a_name_that_looks_like_a_template_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"^Lock\('order:{pk}'\) locks this very name: only decorators") as caught:
        assert Lock("order:{pk}").name == "order:{pk}"
    assert caught[0].filename == __file__
    assert [Lock(name).name for name in ("{", "a}", "a{{pk}}")] == ["{", "a}", "a{{pk}}"]


@pytest.mark.parametrize("prefix", ["a b", "a\0", "a\n", "{a}", "\ud800", "", None, 7, b"x", "{" * MEGA], ids=brief)
def test_an_invalid_prefix_is_refused(crowd: Crowd, prefix: Any, settings: Any) -> None:
    settings.REDISLOCK = {"KEY_PREFIX": prefix}
    with pytest.raises(ImproperlyConfigured, match="KEY_PREFIX") as caught:
        crowd()(Lock(NAME), "acquire")
    assert len(str(caught.value)) < 400


# -- tokens -----------------------------------------------------------------------------------------------------------


@nowhere
@pytest.mark.parametrize(
    "token", ["", "short secret", "x" * 129, "x" * 21 + " ", "x" * 22 + "\n", "\u00e9" * 22, b"x" * 22, 7, "*" * 30]
)
def test_an_invalid_token_is_refused_and_not_shown(crowd: Crowd, token: Any) -> None:
    me = crowd()
    for take in (lambda: Lock(NAME, token=token), lambda: me(Lock(NAME), "acquire", token=token)):
        with pytest.raises(ValueError, match="A token must be") as caught:
            take()
        assert not token or str(token) not in str(caught.value)


# -- seconds ----------------------------------------------------------------------------------------------------------

TOO_LONG = [1e300, 10**400, 10**5000, 2**63]
NO_SECONDS: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    True,
    "10",
    "x" * MEGA,
    b"10",
    Decimal(10),
    [10],
    1j,
]


@nowhere
@pytest.mark.parametrize("value", NO_SECONDS, ids=brief)
def test_an_invalid_duration_is_refused_by_cache_lock_too(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="seconds") as caught:
        CacheLock("a", timeout=value)
    assert shown(value) in str(caught.value)
    assert len(str(caught.value)) < 1000


@nowhere
@pytest.mark.parametrize("value", [*NO_SECONDS, *TOO_LONG], ids=brief)
def test_an_invalid_duration_is_refused(crowd: Crowd, value: Any) -> None:
    me = crowd()
    takers: list[Callable[[], object]] = [
        lambda: me(Lock(NAME), "acquire", blocking_timeout=value),
        lambda: me(Counter("a"), "incr", ttl=value),
        lambda: me(ConditionalValue("a"), "setgt", 1, ttl=value),
    ]
    for take in takers:
        with pytest.raises((TypeError, ValueError), match=r"seconds|at most ten years") as caught:
            take()
        assert shown(value) in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [0, *NO_SECONDS, *TOO_LONG], ids=brief)
def test_an_invalid_duration_leaves_a_held_lock_unchanged(crowd: Crowd, value: Any) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    me(lock, "acquire")
    for method in ("extend", "detach"):
        with pytest.raises((TypeError, ValueError), match=r"seconds|at most ten years"):
            me(lock, method, value)
    info = get_lock(NAME)
    assert info is not None
    assert info.lease_left <= 100
    me(lock, "release")


# -- delays between looks ---------------------------------------------------------------------------------------------


class Odd(AbstractBackoff):
    def __init__(self, delay: Any) -> None:
        self.delay = delay

    def compute(self, failures: int) -> Any:
        return self.delay


@pytest.mark.parametrize("delay", [math.nan, None, "1", b"", [1]], ids=brief)
def test_a_delay_that_is_no_number_is_refused_and_leaves_nothing(crowd: Crowd, delay: Any, client: redis.Redis) -> None:
    with pytest.raises(ValueError, match=r"delays of backoff must be seconds.*, not ") as caught:
        crowd()(Lock(NAME, poll=True, backoff=Odd(delay)), "acquire")
    assert shown(delay) in str(caught.value)
    assert leftovers(client) == []


@pytest.mark.parametrize("delay", [-1.0, 0, math.inf, -math.inf])
def test_a_delay_beyond_all_bounds_is_bounded(crowd: Crowd, delay: float) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    assert not you(Lock(NAME, poll=True, backoff=ConstantBackoff(delay)), "acquire", blocking_timeout=0.05)
