"""``settings.REDISLOCK``: what can be set, what is refused, and which TTL a name gets."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import Lock
from tests import inside

NO_TIME = [0, -0.5, math.nan, timedelta(0), 10**10, True, "30"]
NO_FLAG = [None, 0, 1, "yes"]

# default, another value, and what is refused
SETTINGS: dict[str, tuple[Any, Any, list[Any]]] = {
    "CACHE": ("default", "locks", [None, "", 7, b"default"]),
    "CLUSTER": (False, ("locks",), [None, 1, "locks", [7], {"locks": True}]),
    "MAX_CONNECTIONS": (16, 2, [None, 0, 2.0, True, "16"]),
    "REQUIRE_REDIS": (False, True, NO_FLAG),
    "TTL": (30.0, 5, [None, *NO_TIME]),
    "TTLS": ({}, {"report:*": 600}, [None, [("a", 7)], {"": 7}, {7: 7}, {"a": None}, {"a": 0}, {"a": "7"}]),
    "BLOCKING_TIMEOUT": (None, 0, [-1, math.nan, math.inf, True, "30"]),
    "POLL": (False, True, NO_FLAG),
    "AUTO_RENEW": (True, False, NO_FLAG),
    "MAX_HOLD": (None, 3600.0, NO_TIME),
    "MAX_WAITERS": ({}, {"view:*": 20}, [None, [("a", 7)], {"": 7}, {"a": None}, {"a": True}, {"a": -1}, {"a": 1.5}]),
    "REPLICAS": (0, 1, [None, -1, 1.5, True, "1"]),
    "SLOW_WAIT": (10.0, 3, NO_TIME),
    "RETRY_FOR": (1.0, 2.5, [None, -1, 31, math.nan, True, "30"]),
    "KEY_PREFIX": ("redislock", "site:locks", [None, "", 7, "a{b}", "a b", "a\n", "\ud800"]),
    "VIEW_STATUS": (423, 409, [None, 200, 399, 600, "423", True]),
    "VIEW_ON_CONFLICT": (None, "shop.views.busy", ["", 7, print]),
    "VIEW_OWNER": ("django_redislock.web.request_owner", None, ["", 7, print]),
    "VIEW_MAX_RETRY_AFTER": (30, 5, [None, 0, 2.5, "5", True]),
    "VIEW_UNAVAILABLE_STATUS": (None, 503, [200, "503", True]),
    "RELEASE_IN_TRANSACTION": ("warn", "error", [None, "raise", True, ["warn"]]),
    "FENCED": ((), ("account:*",), [None, True, "account:*", {"account:*": True}]),
    "FENCE_TIMEOUT": (10.0, 2, NO_TIME),
    "MAX_VALUE_BYTES": (1_000_000, 32, [None, 31, 1e6, True, "1000000"]),
}
WRONG = [(key, value) for key, (_, _, values) in SETTINGS.items() for value in values]


def read(raw: Any) -> dict[str, Any]:
    with override_settings(REDISLOCK=raw):
        return inside.settings()


def refused(raw: Any) -> str:
    """How any use of a lock is refused with these settings."""
    with override_settings(REDISLOCK=raw), pytest.raises(ImproperlyConfigured) as caught:
        Lock("a").acquire()
    return str(caught.value)


def test_every_setting_has_a_default_and_can_be_set() -> None:
    assert inside.settings() == {name: default for name, (default, _, _) in SETTINGS.items()}
    values = {name: value for name, (_, value, _) in SETTINGS.items()}
    assert read(values) == values
    assert read({"MAX_HOLD": timedelta(hours=1)})["MAX_HOLD"] == 3600
    none = ["BLOCKING_TIMEOUT", "MAX_HOLD", "SLOW_WAIT", "VIEW_ON_CONFLICT", "VIEW_OWNER", "VIEW_UNAVAILABLE_STATUS"]
    assert {name: read({name: None})[name] for name in none} == dict.fromkeys(none)


def test_override_settings_works_and_a_wrong_setting_is_an_error_until_it_is_right_again() -> None:
    lock = Lock("a")
    with override_settings(REDISLOCK={"TTL": 7}):
        assert lock.ttl == 7
        with override_settings(REDISLOCK={"TTL": timedelta(minutes=1)}):
            assert lock.ttl == 60
        assert "REDISLOCK must be a dict, not " in refused([])
        for _ in range(2):
            assert "REDISLOCK['TTL'] must be at least 0.003" in refused({"TTL": 0})
        assert lock.ttl == 7
    assert lock.ttl == 30


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("TTL_S", " Did you mean 'TTLS'?"),
        ("PREFIX", " Did you mean 'KEY_PREFIX'?"),
        ("ttl", " Did you mean 'TTL'?"),
        ("TIMEOUT", " Did you mean 'TTL' or 'BLOCKING_TIMEOUT'?"),  # of other libraries
        *((unlike, "") for unlike in ("FLAVOUR", "", 7, None, ("TTL",))),
    ],
)
def test_the_error_about_an_unknown_setting_suggests_one_and_lists_all(wrong: Any, meant: str) -> None:
    known = ", ".join(SETTINGS)
    assert f"Unknown setting REDISLOCK[{wrong!r}].{meant} The settings are: {known}." in refused({wrong: 30})


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: f"{value!a}"[:40])
def test_a_wrong_value_is_named_in_the_error(key: str, value: Any) -> None:
    message = refused({key: value})
    assert f"REDISLOCK['{key}']" in message
    assert " must " in message
    assert isinstance(value, dict) or repr(value)[:60] in message


def test_the_first_matching_pattern_wins_and_the_locks_own_ttl_beats_them() -> None:
    ttls = {"report:daily": 1, "report:*": 600, "*:daily": 2, "mail:[ab]": 3, "[z-a]": 4, "*" * 60 + "b": 5}
    with override_settings(REDISLOCK={"TTL": 9, "TTLS": ttls}):
        names = ["report:daily", "report:weekly", "mail:daily", "mail:a", "mail:c", "REPORT:x", "xreport:x", "a" * 500]
        assert [Lock(name).ttl for name in names] == [1, 600, 2, 3, 9, 9, 9, 9]
        assert Lock("report:daily", ttl=timedelta(milliseconds=1500)).ttl == 1.5
