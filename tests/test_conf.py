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
from django_redislock.conf import Conf, conf, read, seconds

from .actors import GENEROUS, Other, stands_at

SETTINGS = [
    "CACHE",
    "TTL",
    "TTLS",
    "BLOCKING_TIMEOUT",
    "WAIT",
    "AUTO_RENEW",
    "MAX_HOLD",
    "RETRY_FOR",
    "KEY_PREFIX",
    "VIEW_STATUS",
    "VIEW_ON_CONFLICT",
    "VIEW_UNAVAILABLE_STATUS",
    "RELEASE_IN_TRANSACTION",
]
NO_TIME = [
    0,
    -1,
    0.0,
    -0.5,
    0.0001,
    math.nan,
    math.inf,
    -math.inf,
    timedelta(0),
    timedelta(seconds=-1),
    10**10,
    10**400,
]
NO_NUMBER = [True, False, "30", "", b"30", [30], {}, ..., 30j]


# -- what there is --------------------------------------------------------------------------------------------------


def test_without_the_setting_there_are_defaults() -> None:
    assert conf() == Conf()
    assert (conf().CACHE, conf().TTL, conf().AUTO_RENEW, conf().VIEW_STATUS) == ("default", 30.0, True, 423)
    assert (conf().BLOCKING_TIMEOUT, conf().MAX_HOLD, conf().VIEW_ON_CONFLICT) == (None, None, None)


def test_every_setting_can_be_set() -> None:
    values = {
        "CACHE": "locks",
        "TTL": 5,
        "TTLS": {"report:*": 600},
        "BLOCKING_TIMEOUT": 0,
        "WAIT": "poll",
        "AUTO_RENEW": False,
        "MAX_HOLD": timedelta(hours=1),
        "RETRY_FOR": 2.5,
        "KEY_PREFIX": "site:locks",
        "VIEW_STATUS": 409,
        "VIEW_ON_CONFLICT": "shop.views.busy",
        "VIEW_UNAVAILABLE_STATUS": 503,
        "RELEASE_IN_TRANSACTION": "error",
    }
    assert list(values) == SETTINGS
    got = read(values)
    assert {key: getattr(got, key) for key in SETTINGS} == {**values, "MAX_HOLD": 3600.0}


def test_none_stands_for_the_default_where_the_default_is_none() -> None:
    assert read({"BLOCKING_TIMEOUT": None, "MAX_HOLD": None, "VIEW_ON_CONFLICT": None}) == Conf()


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
        assert conf() is conf()


def test_a_thread_that_reads_the_settings_while_they_change_does_not_bring_the_old_ones_back(
    other: Callable[[], Other], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slowly(raw: object) -> Conf:
        reading.set()
        go_on.wait(GENEROUS)
        return read(raw)

    monkeypatch.setattr("django_redislock.conf._conf", None)
    monkeypatch.setattr("django_redislock.conf.read", slowly)
    reader, changer = other(), other()
    found = reader.start(conf)
    assert reading.wait(GENEROUS)
    change = override_settings(REDISLOCK={"TTL": 7})
    changed = changer.start(change.enable)
    try:
        eventually(lambda: changed.done() or stands_at(changer._thread, "_on_setting_changed", "with _mutex"))
        go_on.set()
        assert found.result(GENEROUS).TTL == 30
        changed.result(GENEROUS)
        assert conf().TTL == 7
    finally:
        change.disable()


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
def test_an_unknown_setting_says_what_may_be_meant_and_what_there_is(wrong: str, meant: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read({wrong: 30})
    assert f"Unknown setting REDISLOCK[{wrong!r}]. Did you mean {meant!r}?" in str(caught.value)
    assert f"There are: {', '.join(SETTINGS)}." in str(caught.value)


@pytest.mark.parametrize("wrong", ["COLOUR", "", 7, None, ("TTL",)])
def test_an_unknown_setting_like_none_that_there_is_gets_no_hint(wrong: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="Unknown setting") as caught:
        read({wrong: 30})
    assert "Did you mean" not in str(caught.value)
    assert ", ".join(SETTINGS) in str(caught.value)


def wrong_values() -> list[Any]:
    wrong: dict[str, list[Any]] = {
        "CACHE": [None, "", 7, b"default"],
        "TTL": [None, *NO_TIME, *NO_NUMBER],
        "TTLS": [None, 7, [("a", 7)], "a", {"": 7}, {7: 7}, {"a": None}, {"a": True}, {"a": 0}, {"a": "7"}],
        "BLOCKING_TIMEOUT": [-1, math.nan, math.inf, timedelta(seconds=-1), *NO_NUMBER],
        "WAIT": [None, "", "polling", True, ["poll"]],
        "AUTO_RENEW": [None, 0, 1, "yes", ""],
        "MAX_HOLD": [*NO_TIME, *NO_NUMBER],
        "RETRY_FOR": [None, -1, 31, math.nan, math.inf, *NO_NUMBER],
        "KEY_PREFIX": [None, "", 7, "a{b}", "a}", "a b", "a\n", "a\x00"],
        "VIEW_STATUS": [None, 200, 399, 600, "423", 423.0, True],
        "VIEW_ON_CONFLICT": ["", 7, print],
        "VIEW_UNAVAILABLE_STATUS": [200, "503", True],
        "RELEASE_IN_TRANSACTION": [None, "", "raise", True, b"warn", ["warn"]],
    }
    assert list(wrong) == SETTINGS
    return [pytest.param(key, value, id=f"{key}={value!r}"[:40]) for key, values in wrong.items() for value in values]


@pytest.mark.parametrize(("key", "value"), wrong_values())
def test_a_wrong_value_is_named_in_the_error(key: str, value: Any) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read({key: value})
    message = str(caught.value)
    assert f"REDISLOCK['{key}']" in message
    assert " must " in message
    if not isinstance(value, dict):
        assert repr(value)[:60] in message


def test_a_wrong_setting_is_an_error_every_time_and_none_once_it_is_right_again() -> None:
    with override_settings(REDISLOCK={"TTL": 0}):
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match=r"REDISLOCK\['TTL'\] must be at least 0.001"):
                Lock("a").acquire()
    assert Lock("a").ttl == 30


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
    assert 590 < info.lease_left <= 600


@pytest.mark.parametrize("pattern", ["[", "[z-a]", "(", "\\", "*" * 60 + "b"])
def test_hostile_patterns_match_nothing(pattern: str) -> None:
    assert read({"TTLS": {pattern: 7}}).ttl_of("a" * 500) == 30


# -- seconds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.5, timedelta(seconds=1.5)])
def test_seconds_come_in_several_types(value: Any) -> None:
    assert seconds(value, "ttl") == 1.5


@pytest.mark.parametrize("value", NO_TIME, ids=lambda value: repr(value)[:20])
def test_a_ttl_that_is_no_time_is_refused_by_the_lock(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^ttl must be "):
        Lock("a", ttl=value)


@pytest.mark.parametrize("value", NO_NUMBER, ids=repr)
def test_a_ttl_that_is_no_number_is_refused_by_the_lock(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^ttl must be seconds \(int, float or timedelta\), not "):
        Lock("a", ttl=value)
    with pytest.raises(TypeError, match=r"^blocking_timeout must be seconds"):
        Lock("a", blocking_timeout=value)


def test_the_setting_bounds_how_long_is_waited() -> None:
    with override_settings(REDISLOCK={"BLOCKING_TIMEOUT": 0}), Lock("a"):
        assert Lock("a").acquire() is False
