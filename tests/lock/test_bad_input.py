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
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME, leftovers

from .texts import MEGA

nowhere = pytest.mark.usefixtures("nowhere")


def brief(value: object) -> str:
    return "a large number" if isinstance(value, int) and value > 2**64 else ascii(value)[:20]


def refuses(take: Callable[[], object], about: str) -> None:
    with pytest.raises((TypeError, ValueError, ImproperlyConfigured), match=about) as caught:
        take()
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


# -- names ------------------------------------------------------------------------------------------------------------

NO_NAMES: list[Any] = [
    *("", "a\nb", "a\0b", "\x1b[2J", "\x85", "\ud800"),
    *("x" * 513, "\u00e9" * 257, "x" * MEGA),
    *(b"bytes", b"x" * MEGA, None, 7, 10**5000, 1.5, ["a"], True),
]


@nowhere
@pytest.mark.parametrize("name", NO_NAMES, ids=brief)
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


@pytest.mark.parametrize("prefix", ["a b", "a\0", "a\n", "{a}", "\ud800", "", None, 7, b"x", "{" * MEGA], ids=brief)
def test_an_invalid_prefix_is_refused(crowd: Crowd, prefix: Any, settings: Any) -> None:
    settings.REDISLOCK = {"KEY_PREFIX": prefix}
    refuses(lambda: crowd()(Lock(NAME), "acquire"), "KEY_PREFIX")


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

NO_SECONDS: list[Any] = [
    *(math.nan, math.inf, -math.inf, -1, -0.5, True),
    *("10", "x" * MEGA, b"10", Decimal(10), [10], 1j),
]
TOO_LONG = [1e300, 10**400, 10**5000, 2**63]
NO_DURATION = r"seconds|at most ten years"


@nowhere
@pytest.mark.parametrize("value", [*NO_SECONDS, *TOO_LONG], ids=brief)
def test_an_invalid_duration_is_refused(crowd: Crowd, value: Any, cache_lock: Callable[..., Any]) -> None:
    me = crowd()
    refuses(lambda: me(Lock(NAME), "acquire", blocking_timeout=value), NO_DURATION)
    refuses(lambda: me(Counter("a"), "incr", ttl=value), NO_DURATION)
    refuses(lambda: me(ConditionalValue("a"), "setgt", 1, ttl=value), NO_DURATION)
    if value not in TOO_LONG:
        refuses(lambda: cache_lock("a", timeout=value), NO_DURATION)


@pytest.mark.parametrize("value", [0, *NO_SECONDS, *TOO_LONG], ids=brief)
def test_an_invalid_duration_leaves_a_held_lock_unchanged(crowd: Crowd, value: Any) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    me(lock, "acquire")
    for method in ("extend", "detach"):
        refuses(lambda method=method: me(lock, method, value), NO_DURATION)  # type: ignore[misc]
    assert (info := get_lock(NAME)) is not None
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
    lock = Lock(NAME, poll=True, backoff=Odd(delay))
    refuses(lambda: crowd()(lock, "acquire"), r"delays of backoff must be seconds.*, not ")
    assert leftovers(client) == []


@pytest.mark.parametrize("delay", [-1.0, 0, math.inf, -math.inf])
def test_a_delay_beyond_all_bounds_is_bounded(crowd: Crowd, delay: float) -> None:
    me, you = crowd(), crowd()
    me(Lock(NAME), "acquire")
    assert not you(Lock(NAME, poll=True, backoff=ConstantBackoff(delay)), "acquire", blocking_timeout=0.05)
