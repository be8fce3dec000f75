"""The options of locks, which decorators and pools take as well, and ``settings.REDISLOCK``."""

import asyncio
import math
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis.backoff import ConstantBackoff, DecorrelatedJitterBackoff

import django_redislock
from django_redislock import Lock, LockPool, locked, locked_atomic, locked_view
from tests import inside
from tests.helpers.state import count

SOON = ConstantBackoff(0.01)
MEGA = 10_000_000
YEARS = 10 * 365 * 86400  # ten, in seconds

MAKERS: dict[str, Callable[..., Any]] = {
    "Lock": lambda **options: Lock("a", **options),
    "locked": lambda **options: locked(name="a", **options),
    "locked_view": lambda **options: locked_view("a", **options),
    "locked_atomic": lambda **options: locked_atomic("a", **options),
    "LockPool.acquire": lambda **options: LockPool("a").acquire(**options),
}
NO_DURATIONS: list[tuple[Any, str]] = [
    *((value, "seconds and finite, not ") for value in (-1, math.nan, math.inf, 10**400, timedelta(seconds=-1))),
    (10**5000, "<int that is too long to be shown>|<int instance with roughly 5001 digits"),  # Python writes none
    (YEARS + 1, "at most ten years, not "),
    *((value, r"seconds \(int, float or timedelta\), not ") for value in ("30", "x" * MEGA, True, [30], Decimal(30))),
]
LOST = "on_lost must be a plain function, 'cancel' or None, not "


@pytest.fixture(params=MAKERS)
def refused(request: pytest.FixtureRequest, client: redis.Redis) -> Callable[..., str]:
    """The error about these options, which comes before Redis is asked."""

    def refused(**options: Any) -> str:
        before = count(client, "evalsha") + count(client, "eval")
        with pytest.raises((TypeError, ValueError)) as caught:
            MAKERS[request.param](**options)
        assert count(client, "evalsha") + count(client, "eval") == before
        assert len(str(caught.value)) < 1000
        return str(caught.value)

    return refused


def ours() -> Any:
    return caches["ours"]


a: Any = django_redislock  # whose types are not checked here
# a call with an option that there is not, and what the error says: of whom, of which option, and what it suggests
HINTS: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: a.Lock("x", timeout=1), "Lock()", "timeout", "'ttl' or 'blocking_timeout'"),
    (lambda: a.locked("x", on_loss=10), "locked()", "on_loss", "'on_lost'"),
    (lambda: a.locked_view("x", id=10), "locked_view()", "id", "'token'"),
    (lambda: asyncio.run(a.LockPool("x").aacquire(id=5)), "LockPool.acquire()", "id", ""),
]


@pytest.mark.parametrize(("call", "what", "wrong", "meant"), HINTS)
def test_an_option_of_other_libraries_is_an_error_that_names_ours(
    call: Callable[[], Any], what: str, wrong: str, meant: str
) -> None:
    hint = f" Did you mean {meant}?" if meant else ""
    with pytest.raises(TypeError, match=re.escape(f"{what} takes no option {wrong!r}.{hint} The options are: ")):
        call()


def test_a_duration_is_seconds_or_a_timedelta_and_none_leaves_the_choice_to_the_settings(settings: Any) -> None:
    for ttl in (0.003, 1.5, YEARS):
        assert Lock("a", ttl=ttl).ttl == Lock("a", ttl=timedelta(seconds=ttl)).ttl == ttl
    settings.REDISLOCK = {"TTL": 7, "BLOCKING_TIMEOUT": 0}
    left: Any = dict.fromkeys(["ttl", "blocking_timeout", "auto_renew", "poll", "using", "on_lost"])
    with Lock("a", **left) as lock:
        assert lock.ttl == 7
        assert not Lock("a", **left).acquire()


@pytest.mark.parametrize("option", ["ttl", "max_hold", "blocking_timeout", "slow_wait"])
@pytest.mark.parametrize(("value", "text"), NO_DURATIONS, ids=range(len(NO_DURATIONS)))
def test_an_invalid_duration_is_refused_and_named(option: str, value: Any, text: str, refused: Any) -> None:
    error = refused(**{option: value})
    assert re.match(rf"{option}(, unless it is False,)? must be ", error)
    assert re.search(text, error)
    assert value == 10**5000 or repr(value)[:40] in error


async def told(error: Exception) -> None: ...


class Told:
    async def __call__(self, error: Exception) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"note": note}, "note") for note in ("x" * 1001, "\u00e9" * 501, "x" * MEGA, "\ud800", b"x", ["x"] * 1000)),
        *(({"on_lost": on_lost}, LOST) for on_lost in ("stop", 7, told, Told(), partial(Told()))),
        *(({option: 7}, f"{option} must be a str, not 7") for option in ("purpose", "template")),
        ({"ttl": 0.002}, "ttl must be at least 0.003 seconds and finite, not 0.002"),
        ({"ttl": timedelta(milliseconds=2)}, "ttl must be at least 0.003 seconds and finite, not "),
        ({"auto_renew": "no"}, "auto_renew must be True, False or None, not 'no'"),
        ({"poll": 1}, "poll must be True, False or None, not 1"),
        ({"poll": True, "backoff": ConstantBackoff}, "backoff must be an instance of one of redis-py's"),
        ({"poll": True, "attempts": 0}, "attempts must be 1 or more, not 0"),
        ({"backoff": SOON}, "backoff can only be given with poll=True"),
        ({"poll": False, "attempts": 3, "backoff": SOON}, "backoff and attempts can only be given"),
    ],
    ids=lambda value: ascii(value)[:26],  # no address of a function
)
def test_what_does_not_fit_is_refused_and_the_choices_named(options: dict[str, Any], text: str, refused: Any) -> None:
    assert text in refused(**options)


@pytest.mark.parametrize(("name", "value"), [("reentrant", 1), ("blocking", None), ("adopt", "yes")])
def test_flags_must_be_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be True or False, not {value!r}"):
        Lock("a", **{name: value})


def test_the_option_poll_takes_precedence_over_the_setting_and_a_backoff_may_be_shared(settings: Any) -> None:
    settings.REDISLOCK = {"POLL": True}
    backoff = DecorrelatedJitterBackoff(cap=0.002, base=0.001)  # which keeps a state
    before = dict(vars(backoff))
    with Lock("a"):
        assert not Lock("a", attempts=3, backoff=backoff).acquire(blocking_timeout=9)
    assert vars(backoff) == before
    with pytest.raises(ValueError, match=r"\(poll is False, REDISLOCK\['POLL'\] is True\.\)"):
        Lock("a", poll=False, attempts=3)
    assert Lock("a", poll=False).acquire(blocking=False)  # which needs no pace


# -- settings.REDISLOCK -----------------------------------------------------------------------------------------------


NO_TIME = [0, -0.5, math.nan, timedelta(0), 10**10, True, "30"]
NO_FLAG = [None, 0, 1, "yes"]

# default, another value, and what is refused
SETTINGS: dict[str, tuple[Any, Any, list[Any]]] = {
    "CACHE": ("default", "locks", [None, "", 7, b"default"]),
    "CLUSTER": (False, ("locks",), [None, 1, "locks", [7], {"locks": True}]),
    "MAX_CONNECTIONS": (16, 2, [None, 0, 2.0, True, "16"]),
    "REQUIRE_REDIS": (False, True, NO_FLAG),
    "TTL": (30.0, 5, [None, 0.002, *NO_TIME]),
    "TTLS": ({}, {"report:*": 600}, [None, [("a", 7)], {"": 7}, {7: 7}, {"a": None}, {"a": 0.002}, {"a": "7"}]),
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
    "ALSO_LOCK": (None, "redis-py", [True, 7, "redis", ["redis-py"], {"name": "a.b"}, {"kind": "redis"}]),
    "MAX_VALUE_BYTES": (1_000_000, 32, [None, 31, 1e6, True, "1000000"]),
}
WRONG = [(key, value) for key, (_, _, values) in SETTINGS.items() for value in values]


def refused_setting(raw: Any) -> str:
    """How any use of a lock is refused with these settings."""
    with override_settings(REDISLOCK=raw), pytest.raises(ImproperlyConfigured) as caught:
        Lock("a").acquire()
    return str(caught.value)


def test_every_setting_has_a_default_and_can_be_set() -> None:
    assert inside.settings() == {name: default for name, (default, _, _) in SETTINGS.items()}
    values = {name: value for name, (_, value, _) in SETTINGS.items()}
    assert inside.settings(REDISLOCK=values) == {**values, "ALSO_LOCK": ("redis-py", None, None)}
    assert inside.settings(REDISLOCK={"MAX_HOLD": timedelta(hours=1)})["MAX_HOLD"] == 3600
    none = ["BLOCKING_TIMEOUT", "MAX_HOLD", "SLOW_WAIT", "VIEW_ON_CONFLICT", "VIEW_OWNER", "VIEW_UNAVAILABLE_STATUS"]
    none += ["ALSO_LOCK"]
    assert {name: inside.settings(REDISLOCK={name: None})[name] for name in none} == dict.fromkeys(none)


def test_override_settings_works_and_a_wrong_setting_is_an_error_until_it_is_right_again() -> None:
    lock = Lock("a")
    with override_settings(REDISLOCK={"TTL": 7}):
        assert lock.ttl == 7
        with override_settings(REDISLOCK={"TTL": timedelta(minutes=1)}):
            assert lock.ttl == 60
        assert "REDISLOCK must be a dict, not " in refused_setting([])
        for _ in range(2):
            assert "REDISLOCK['TTL'] must be at least 0.003" in refused_setting({"TTL": 0})
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
    assert f"Unknown setting REDISLOCK[{wrong!r}].{meant} The settings are: {known}." in refused_setting({wrong: 30})


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: f"{value!a}"[:40])
def test_a_wrong_value_is_named_in_the_error(key: str, value: Any) -> None:
    message = refused_setting({key: value})
    assert f"REDISLOCK['{key}']" in message
    assert " must " in message
    assert isinstance(value, dict) or repr(value)[:60] in message


def test_the_first_matching_pattern_wins_and_the_locks_own_ttl_beats_them() -> None:
    ttls = {"report:daily": 1, "report:*": 600, "*:daily": 2, "mail:[ab]": 3, "[z-a]": 4, "*" * 60 + "b": 5}
    with override_settings(REDISLOCK={"TTL": 9, "TTLS": ttls}):
        names = ["report:daily", "report:weekly", "mail:daily", "mail:a", "mail:c", "REPORT:x", "xreport:x", "a" * 500]
        assert [Lock(name).ttl for name in names] == [1, 600, 2, 3, 9, 9, 9, 9]
        assert Lock("report:daily", ttl=timedelta(milliseconds=1500)).ttl == 1.5
