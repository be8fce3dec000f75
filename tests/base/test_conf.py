"""``settings.REDISLOCK``: what can be set, what is refused, and which TTL a name gets."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import Lock
from tests import inside
from tests.helpers.actors import GENEROUS, Other

NO_TIME = [0, -0.5, 0.0001, math.nan, math.inf, timedelta(0), timedelta(seconds=-1), 10**10]
NO_NUMBER = [True, "30", b"30", [30]]

# default, another value, and what is refused
SETTINGS: dict[str, tuple[Any, Any, list[Any]]] = {
    "CACHE": ("default", "locks", [None, "", 7, b"default"]),
    "CLUSTER": (False, ("locks",), [None, 1, "", "locks", [7], {"locks": True}]),
    "MAX_CONNECTIONS": (16, 2, [None, 1, 0, -1, 2.0, True, "16"]),
    "REQUIRE_REDIS": (False, True, [None, 0, 1, "yes", ""]),
    "TTL": (30.0, 5, [None, *NO_TIME, *NO_NUMBER]),
    "TTLS": (
        {},
        {"report:*": 600},
        [None, 7, [("a", 7)], "a", {"": 7}, {7: 7}, {"a": None}, {"a": True}, {"a": 0}, {"a": "7"}],
    ),
    "BLOCKING_TIMEOUT": (None, 0, [-1, math.nan, math.inf, timedelta(seconds=-1), *NO_NUMBER]),
    "POLL": (False, True, [None, 0, 1, "poll", ""]),
    "AUTO_RENEW": (True, False, [None, 0, 1, "yes", ""]),
    "MAX_HOLD": (None, 3600.0, [*NO_TIME, *NO_NUMBER]),
    "MAX_WAITERS": (
        {},
        {"view:*": 20},
        [None, 7, [("a", 7)], {"": 7}, {7: 7}, {"a": None}, {"a": True}, {"a": -1}, {"a": 1.5}],
    ),
    "REPLICAS": (0, 1, [None, -1, 1.5, True, "1"]),
    "SLOW_WAIT": (10.0, 3, [*NO_TIME, *NO_NUMBER]),
    "RETRY_FOR": (1.0, 2.5, [None, -1, 31, math.nan, math.inf, *NO_NUMBER]),
    "KEY_PREFIX": ("redislock", "site:locks", [None, "", 7, "a{b}", "a}", "a b", "a\n", "a\x00", "\ud800"]),
    "VIEW_STATUS": (423, 409, [None, 200, 399, 600, "423", 423.0, True]),
    "VIEW_ON_CONFLICT": (None, "shop.views.busy", ["", 7, print]),
    "VIEW_OWNER": ("django_redislock.web.request_owner", None, ["", 7, print]),
    "VIEW_MAX_RETRY_AFTER": (30, 5, [None, 0, -1, 2.5, "5", True]),
    "VIEW_UNAVAILABLE_STATUS": (None, 503, [200, "503", True]),
    "RELEASE_IN_TRANSACTION": ("warn", "error", [None, "", "raise", True, b"warn", ["warn"]]),
    "FENCED": ((), ("account:*",), [None, True, "account:*", {"account:*": True}]),
    "FENCE_TIMEOUT": (10.0, 2, [*NO_TIME, *NO_NUMBER]),
    "MAX_VALUE_BYTES": (1_000_000, 32, [None, 31, 1e6, True, "1000000"]),
}


def read(raw: Any) -> dict[str, Any]:
    with override_settings(REDISLOCK=raw):
        return inside.settings()


def refused(raw: Any) -> str:
    """How any use of a lock is refused with these settings."""
    with override_settings(REDISLOCK=raw), pytest.raises(ImproperlyConfigured) as caught:
        Lock("a").acquire()
    return str(caught.value)


# -- what can be set --------------------------------------------------------------------------------------------------


def test_without_the_setting_there_are_defaults() -> None:
    assert inside.settings() == {name: default for name, (default, _, _) in SETTINGS.items()}


def test_every_setting_can_be_set() -> None:
    values = {name: value for name, (_, value, _) in SETTINGS.items()}
    assert read(values) == values
    assert read({"MAX_HOLD": timedelta(hours=1)})["MAX_HOLD"] == 3600


@pytest.mark.parametrize(
    "name", ["BLOCKING_TIMEOUT", "MAX_HOLD", "SLOW_WAIT", "VIEW_ON_CONFLICT", "VIEW_OWNER", "VIEW_UNAVAILABLE_STATUS"]
)
def test_none_switches_off_what_can_be_switched_off(name: str) -> None:
    assert read({name: None})[name] is None


# -- when they are read -----------------------------------------------------------------------------------------------


def test_override_settings_works() -> None:
    lock = Lock("a")
    with override_settings(REDISLOCK={"TTL": 7}):
        assert lock.ttl == 7
        with override_settings(REDISLOCK={"TTL": timedelta(minutes=1)}):
            assert lock.ttl == 60
        assert lock.ttl == 7
    assert lock.ttl == 30


def test_a_thread_that_reads_the_settings_while_they_change_does_not_bring_the_old_ones_back(
    other: Callable[[], Other],
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(dict[str, int]):
        def items(self) -> Any:
            reading.set()
            go_on.wait(GENEROUS)
            return super().items()

    with override_settings(REDISLOCK=Slow(TTL=5)):
        found = other().start(lambda: Lock("a").ttl)
        assert reading.wait(GENEROUS)
        with override_settings(REDISLOCK={"TTL": 7}):
            go_on.set()
            assert found.result(GENEROUS) == 5
            assert Lock("a").ttl == 7


def test_a_wrong_setting_is_an_error_every_time_and_none_once_it_is_right_again() -> None:
    for _ in range(2):
        assert "REDISLOCK['TTL'] must be at least 0.003" in refused({"TTL": 0})
    assert Lock("a").ttl == 30


# -- unknown and wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, [], "TTL", 30, {"TTL"}])
def test_the_settings_are_a_dict(value: Any) -> None:
    assert "REDISLOCK must be a dict, not " in refused(value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("TLL", " Did you mean 'TTL'?"),
        ("TTL_S", " Did you mean 'TTLS'?"),
        ("PREFIX", " Did you mean 'KEY_PREFIX'?"),
        ("VIEW_STATE", " Did you mean 'VIEW_STATUS'?"),
        ("ttl", " Did you mean 'TTL'?"),
        ("TIMEOUT", " Did you mean 'TTL' or 'BLOCKING_TIMEOUT'?"),  # of other libraries
        ("EXPIRE", " Did you mean 'TTL'?"),
        *((unlike, "") for unlike in ("FLAVOUR", "", 7, None, ("TTL",))),
    ],
)
def test_the_error_about_an_unknown_setting_suggests_one_and_lists_all(wrong: Any, meant: str) -> None:
    known = ", ".join(SETTINGS)
    assert f"Unknown setting REDISLOCK[{wrong!r}].{meant} The settings are: {known}." in refused({wrong: 30})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(key, value, id=f"{key}={value!a}"[:40])
        for key, (_, _, values) in SETTINGS.items()
        for value in values
    ],
)
def test_a_wrong_value_is_named_in_the_error(key: str, value: Any) -> None:
    message = refused({key: value})
    assert f"REDISLOCK['{key}']" in message
    assert " must " in message
    if not isinstance(value, dict):
        assert repr(value)[:60] in message


# -- the TTL of a name ------------------------------------------------------------------------------------------------


def test_the_first_matching_pattern_wins_and_the_locks_own_ttl_beats_them() -> None:
    ttls = {"report:daily": 1, "report:*": 600, "*:daily": 2, "mail:[ab]": 3}
    with override_settings(REDISLOCK={"TTL": 9, "TTLS": ttls}):
        names = ["report:daily", "report:weekly", "mail:daily", "mail:a", "mail:c", "REPORT:x", "xreport:x"]
        assert [Lock(name).ttl for name in names] == [1, 600, 2, 3, 9, 9, 9]
        assert Lock("report:daily", ttl=timedelta(milliseconds=1500)).ttl == 1.5
        with Lock("report:1") as lock:
            info = lock.info()
    assert info is not None
    assert 500 < info.lease_left <= 600


@pytest.mark.parametrize("pattern", ["[", "[z-a]", "(", "\\", "*" * 60 + "b"])
def test_hostile_patterns_match_nothing(pattern: str) -> None:
    with override_settings(REDISLOCK={"TTLS": {pattern: 7}}):
        assert Lock("a" * 500).ttl == 30
