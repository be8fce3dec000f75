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
from django_redislock.conf import Conf, conf, read
from tests.helpers.actors import GENEROUS, Other

SETTINGS = [
    "CACHE",
    "CLUSTER",
    "MAX_CONNECTIONS",
    "REQUIRE_REDIS",
    "TTL",
    "TTLS",
    "BLOCKING_TIMEOUT",
    "POLL",
    "AUTO_RENEW",
    "MAX_HOLD",
    "MAX_WAITERS",
    "REPLICAS",
    "SLOW_WAIT",
    "RETRY_FOR",
    "KEY_PREFIX",
    "VIEW_STATUS",
    "VIEW_ON_CONFLICT",
    "VIEW_OWNER",
    "VIEW_MAX_RETRY_AFTER",
    "VIEW_UNAVAILABLE_STATUS",
    "RELEASE_IN_TRANSACTION",
    "FENCED",
    "FENCE_TIMEOUT",
    "MAX_VALUE_BYTES",
]
NO_TIME = [0, -0.5, 0.0001, math.nan, math.inf, timedelta(0), timedelta(seconds=-1), 10**10]
NO_NUMBER = [True, "30", b"30", [30]]


# -- what there is --------------------------------------------------------------------------------------------------


def test_without_the_setting_there_are_defaults() -> None:
    assert conf() == Conf()
    assert (conf().CACHE, conf().TTL, conf().AUTO_RENEW, conf().POLL) == ("default", 30.0, True, False)
    assert (conf().VIEW_STATUS, conf().RETRY_FOR, conf().RELEASE_IN_TRANSACTION) == (423, 1.0, "warn")
    assert (conf().BLOCKING_TIMEOUT, conf().MAX_HOLD, conf().VIEW_ON_CONFLICT) == (None, None, None)
    assert (conf().MAX_WAITERS, conf().SLOW_WAIT) == ({}, 10.0)
    assert (conf().CLUSTER, conf().MAX_CONNECTIONS, conf().REPLICAS) == (False, 16, 0)
    assert (conf().FENCED, conf().FENCE_TIMEOUT, conf().MAX_VALUE_BYTES) == ((), 10.0, 1_000_000)


def test_every_setting_can_be_set() -> None:
    values = {
        "CACHE": "locks",
        "CLUSTER": ("locks",),
        "MAX_CONNECTIONS": 2,
        "REQUIRE_REDIS": True,
        "TTL": 5,
        "TTLS": {"report:*": 600},
        "BLOCKING_TIMEOUT": 0,
        "POLL": True,
        "AUTO_RENEW": False,
        "MAX_HOLD": timedelta(hours=1),
        "MAX_WAITERS": {"view:*": 20},
        "REPLICAS": 1,
        "SLOW_WAIT": 3,
        "RETRY_FOR": 2.5,
        "KEY_PREFIX": "site:locks",
        "VIEW_STATUS": 409,
        "VIEW_ON_CONFLICT": "shop.views.busy",
        "VIEW_OWNER": None,
        "VIEW_MAX_RETRY_AFTER": 5,
        "VIEW_UNAVAILABLE_STATUS": 503,
        "RELEASE_IN_TRANSACTION": "error",
        "FENCED": ("account:*",),
        "FENCE_TIMEOUT": 2,
        "MAX_VALUE_BYTES": 32,
    }
    assert list(values) == SETTINGS
    found = read(values)
    assert {key: getattr(found, key) for key in SETTINGS} == {**values, "MAX_HOLD": 3600.0}


def test_none_stands_for_the_default_where_the_default_is_none() -> None:
    nothing = ("BLOCKING_TIMEOUT", "MAX_HOLD", "VIEW_ON_CONFLICT", "VIEW_UNAVAILABLE_STATUS")
    assert read(dict.fromkeys(nothing)) == Conf()


def test_with_none_no_wait_counts_as_slow() -> None:
    assert read({"SLOW_WAIT": None}).SLOW_WAIT is None


# -- when they are read ---------------------------------------------------------------------------------------------


def test_override_settings_works() -> None:
    lock = Lock("a")
    with override_settings(REDISLOCK={"TTL": 7}):
        assert conf().TTL == lock.ttl == 7
        with override_settings(REDISLOCK={"TTL": timedelta(minutes=1)}):
            assert conf().TTL == lock.ttl == 60
        assert conf().TTL == lock.ttl == 7
    assert conf().TTL == lock.ttl == 30


def test_the_settings_are_checked_once_as_long_as_they_stay() -> None:
    with override_settings(REDISLOCK={"TTL": 7}):
        first = conf()
        with override_settings(USE_TZ=False):
            assert conf() is first


def test_a_thread_that_reads_the_settings_while_they_change_does_not_bring_the_old_ones_back(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slowly(raw: object) -> Conf:
        found = read(raw)
        reading.set()
        go_on.wait(GENEROUS)
        return found

    with override_settings(REDISLOCK={"TTL": 5}):
        monkeypatch.setattr("django_redislock.conf.read", slowly)
        found = other().start(conf)
        assert reading.wait(GENEROUS)
        with override_settings(REDISLOCK={"TTL": 7}):
            go_on.set()
            assert found.result(GENEROUS).TTL == 5
            assert conf().TTL == 7


def test_a_wrong_setting_is_an_error_every_time_and_none_once_it_is_right_again() -> None:
    with override_settings(REDISLOCK={"TTL": 0}):
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match=r"REDISLOCK\['TTL'\] must be at least 0.003"):
                Lock("a").acquire()
    assert Lock("a").ttl == 30


# -- unknown and wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, [], "TTL", 30, {"TTL"}])
def test_the_settings_are_a_dict(value: Any) -> None:
    with (
        override_settings(REDISLOCK=value),
        pytest.raises(ImproperlyConfigured, match="REDISLOCK must be a dict, not "),
    ):
        conf()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("TLL", "TTL"), ("TTL_S", "TTLS"), ("PREFIX", "KEY_PREFIX"), ("VIEW_STATE", "VIEW_STATUS"), ("ttl", "TTL")],
)
def test_the_error_about_an_unknown_setting_suggests_one_and_lists_all(wrong: str, meant: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read({wrong: 30})
    assert f"Unknown setting REDISLOCK[{wrong!r}]. Did you mean {meant!r}?" in str(caught.value)
    assert f"The settings are: {', '.join(SETTINGS)}." in str(caught.value)


@pytest.mark.parametrize(("wrong", "meant"), [("TIMEOUT", "'TTL' or 'BLOCKING_TIMEOUT'"), ("EXPIRE", "'TTL'")])
def test_the_error_maps_settings_of_other_libraries_to_ours(wrong: str, meant: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read({wrong: 30})
    assert f"Unknown setting REDISLOCK[{wrong!r}]. Did you mean {meant}? The settings are: " in str(caught.value)


@pytest.mark.parametrize("wrong", ["FLAVOUR", "", 7, None, ("TTL",)])
def test_an_unknown_setting_unlike_all_others_gets_no_hint(wrong: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="Unknown setting") as caught:
        read({wrong: 30})
    assert "Did you mean" not in str(caught.value)
    assert ", ".join(SETTINGS) in str(caught.value)


def wrong_values() -> list[Any]:
    wrong: dict[str, list[Any]] = {
        "CACHE": [None, "", 7, b"default"],
        "CLUSTER": [None, 1, "", "locks", [7], {"locks": True}],
        "MAX_CONNECTIONS": [None, 1, 0, -1, 2.0, True, "16"],
        "REQUIRE_REDIS": [None, 0, 1, "yes", ""],
        "TTL": [None, *NO_TIME, *NO_NUMBER],
        "TTLS": [None, 7, [("a", 7)], "a", {"": 7}, {7: 7}, {"a": None}, {"a": True}, {"a": 0}, {"a": "7"}],
        "BLOCKING_TIMEOUT": [-1, math.nan, math.inf, timedelta(seconds=-1), *NO_NUMBER],
        "POLL": [None, 0, 1, "poll", ""],
        "AUTO_RENEW": [None, 0, 1, "yes", ""],
        "MAX_HOLD": [*NO_TIME, *NO_NUMBER],
        "MAX_WAITERS": [None, 7, [("a", 7)], {"": 7}, {7: 7}, {"a": None}, {"a": True}, {"a": -1}, {"a": 1.5}],
        "REPLICAS": [None, -1, 1.5, True, "1"],
        "SLOW_WAIT": [*NO_TIME, *NO_NUMBER],
        "RETRY_FOR": [None, -1, 31, math.nan, math.inf, *NO_NUMBER],
        "KEY_PREFIX": [None, "", 7, "a{b}", "a}", "a b", "a\n", "a\x00", "\ud800"],
        "VIEW_STATUS": [None, 200, 399, 600, "423", 423.0, True],
        "VIEW_ON_CONFLICT": ["", 7, print],
        "VIEW_OWNER": ["", 7, print],
        "VIEW_MAX_RETRY_AFTER": [None, 0, -1, 2.5, "5", True],
        "VIEW_UNAVAILABLE_STATUS": [200, "503", True],
        "RELEASE_IN_TRANSACTION": [None, "", "raise", True, b"warn", ["warn"]],
        "FENCED": [None, True, "account:*", {"account:*": True}],
        "FENCE_TIMEOUT": [*NO_TIME, *NO_NUMBER],
        "MAX_VALUE_BYTES": [None, 31, 1e6, True, "1000000"],
    }
    assert list(wrong) == SETTINGS
    return [pytest.param(key, value, id=f"{key}={value!a}"[:40]) for key, values in wrong.items() for value in values]


@pytest.mark.parametrize(("key", "value"), wrong_values())
def test_a_wrong_value_is_named_in_the_error(key: str, value: Any) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read({key: value})
    message = str(caught.value)
    assert f"REDISLOCK['{key}']" in message
    assert " must " in message
    if not isinstance(value, dict):
        assert repr(value)[:60] in message


# -- the TTL of a name ----------------------------------------------------------------------------------------------


def test_the_first_matching_pattern_wins() -> None:
    ttls = {"report:daily": 1, "report:*": 600, "*:daily": 2, "mail:[ab]": 3}
    with override_settings(REDISLOCK={"TTL": 9, "TTLS": ttls}):
        names = ["report:daily", "report:weekly", "mail:daily", "mail:a", "mail:c", "REPORT:x", "xreport:x"]
        assert [Lock(name).ttl for name in names] == [1, 600, 2, 3, 9, 9, 9]


def test_the_locks_own_ttl_beats_the_patterns() -> None:
    with override_settings(REDISLOCK={"TTLS": {"*": 600}}):
        assert Lock("a", ttl=5).ttl == 5
        assert Lock("a", ttl=timedelta(milliseconds=1500)).ttl == 1.5
        assert Lock("a").ttl == 600


def test_the_ttl_reaches_redis() -> None:
    with override_settings(REDISLOCK={"TTLS": {"report:*": 600}}), Lock("report:1") as lock:
        info = lock.info()
    assert info is not None
    assert 500 < info.lease_left <= 600


@pytest.mark.parametrize("pattern", ["[", "[z-a]", "(", "\\", "*" * 60 + "b"])
def test_hostile_patterns_match_nothing(pattern: str) -> None:
    assert read({"TTLS": {pattern: 7}}).ttl_of("a" * 500) == 30


def test_the_setting_bounds_how_long_a_lock_is_waited_for() -> None:
    with override_settings(REDISLOCK={"BLOCKING_TIMEOUT": 0}), Lock("a"):
        assert Lock("a").acquire() is False
