"""The options of locks, which decorators, pools and commands take as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockPool, locked, locked_atomic, locked_view
from django_redislock.base.display import shown
from django_redislock.options import MAX_NOTE_BYTES, AcquireOptions, LockOptions, Options, check_timeout, read_options

SOON = ConstantBackoff(0.01)
MEGA = 10_000_000
EVERY = sorted(LockOptions.__annotations__)  # those of AcquireOptions too

# what takes them, and what errors call it
MAKERS: dict[str, Callable[..., Any]] = {
    "Lock()": lambda **options: Lock("a", **options),
    "locked()": lambda **options: locked("a", **options),
    "locked_view()": lambda **options: locked_view("a", **options),
    "locked_atomic()": lambda **options: locked_atomic("a", **options),
    "LockPool.acquire()": lambda **options: LockPool("a").acquire(**options),
}
each_maker = pytest.mark.parametrize("what", MAKERS)


@pytest.fixture
def silent(client: redis.Redis) -> Callable[[], bool]:
    """Whether no script has been called meanwhile."""

    def count() -> int:
        stats: Any = client.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{command}", {}).get("calls", 0)) for command in ("evalsha", "eval"))

    before = count()
    return lambda: count() == before


# -- which there are ------------------------------------------------------------------------------------------------


# what they take beside the options of a lock
OWN = {
    "Lock()": ["token"],
    "locked()": ["at_least", "name", "token"],
    "locked_view()": ["methods", "name", "on_conflict", "token"],
    "locked_atomic()": ["db", "name", "token"],
}


@each_maker
def test_the_error_about_an_unknown_option_lists_the_existing_ones(what: str, silent: Callable[[], bool]) -> None:
    with pytest.raises(TypeError) as caught:
        MAKERS[what](fair=True, timeout=3)
    known = sorted(AcquireOptions.__annotations__) if what.startswith("LockPool") else sorted([*EVERY, *OWN[what]])
    assert str(caught.value) == f"{what} takes no option 'fair'. The options are: {', '.join(known)}."
    assert silent()


@each_maker
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("timeout", "'ttl' or 'blocking_timeout'"),  # redis-py's and threading's
        ("expire", "'ttl'"),
        ("auto_renewal", "'auto_renew'"),
        ("on_loss", "'on_lost'"),
    ],
)
def test_the_error_maps_misspelt_options_and_those_of_other_libraries_to_ours(
    what: str, wrong: str, meant: str
) -> None:
    with pytest.raises(TypeError) as caught:
        MAKERS[what](**{wrong: 5})
    assert str(caught.value).startswith(f"{what} takes no option {wrong!r}. Did you mean {meant}? The options are: ")


def test_only_existing_options_are_suggested() -> None:
    with pytest.raises(TypeError, match=r"takes no option 'id'\. Did you mean 'token'\? The options are"):
        Lock("a", id="7")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"takes no option 'id'\. The options are"):
        LockPool("a").acquire(id="7")  # type: ignore[call-arg]


def test_a_lock_takes_what_an_acquisition_takes_and_more() -> None:
    more = {"adopt", "blocking", "fence_timeout", "fenced", "max_waiters", "reentrant", "using"}
    assert set(LockOptions.__annotations__) - set(AcquireOptions.__annotations__) == more
    assert set(Options.__slots__) == set(EVERY)


def test_none_leaves_the_choice_to_the_settings() -> None:
    options = read_options(dict.fromkeys(["ttl", "blocking_timeout", "auto_renew", "poll", "using", "on_lost"]), "x")
    assert (options.ttl, options.blocking_timeout, options.poll) == (None, None, None)


# -- durations ------------------------------------------------------------------------------------------------------


def test_durations_become_seconds() -> None:
    options = read_options({"ttl": timedelta(minutes=2), "blocking_timeout": timedelta(milliseconds=500)}, "x")
    assert (options.ttl, options.blocking_timeout) == (120.0, 0.5)
    assert (check_timeout(0), check_timeout(None)) == (0.0, None)


@each_maker
@pytest.mark.parametrize("option", ["ttl", "blocking_timeout"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 10**400, "10", "x" * MEGA, True], ids=lambda v: shown(v)[:9])
def test_invalid_durations_are_refused_before_redis_is_asked(
    what: str, option: str, value: Any, silent: Callable[[], bool]
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{option} must be ") as caught:
        MAKERS[what](**{option: value})
    assert shown(value) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert silent()


@each_maker
@pytest.mark.parametrize("value", [0, -1, math.inf, "never", True])
def test_a_slow_wait_is_seconds_or_false(what: str, value: Any, silent: Callable[[], bool]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^slow_wait, unless it is False, must be ") as caught:
        MAKERS[what](slow_wait=value)
    assert str(caught.value).endswith(f"not {shown(value)}.")
    assert silent()


# -- notes and purposes ---------------------------------------------------------------------------------------------


@each_maker
@pytest.mark.parametrize(
    "note",
    ["x" * 1001, "\u00e9" * 501, "x" * MEGA, "\ud800", b"x", 7, None, ["x"] * 1000],
    ids=lambda note: ascii(shown(note))[:20],
)
def test_an_invalid_note_is_refused_with_a_short_error(what: str, note: Any, silent: Callable[[], bool]) -> None:
    with pytest.raises((TypeError, ValueError), match="note") as caught:
        MAKERS[what](note=note)
    assert len(str(caught.value)) < 400
    assert silent()


@pytest.mark.parametrize("note", ["", "x" * MAX_NOTE_BYTES, "\u00e9" * (MAX_NOTE_BYTES // 2), "two\nlines"])
def test_a_note_has_up_to_a_thousand_bytes(note: str) -> None:
    assert read_options({"note": note}, "x").note == note


@each_maker
@pytest.mark.parametrize("purpose", [None, 7, b"/orders/"])
def test_a_purpose_is_a_text(what: str, purpose: Any, silent: Callable[[], bool]) -> None:
    with pytest.raises(TypeError, match=r"^purpose must be a str, not "):
        MAKERS[what](purpose=purpose)
    assert silent()


def test_a_purpose_is_kept() -> None:
    assert read_options({"purpose": "/orders/42/"}, "x").purpose == "/orders/42/"


# -- on_lost --------------------------------------------------------------------------------------------------------


async def told(error: Exception) -> None: ...


@each_maker
@pytest.mark.parametrize("on_lost", ["stop", 7, told], ids=["word", "number", "coroutine"])
def test_an_on_lost_that_is_not_callable_is_refused(what: str, on_lost: Any) -> None:
    with pytest.raises(TypeError, match=r"^on_lost must be a plain function, 'cancel' or None, not "):
        MAKERS[what](on_lost=on_lost)


@pytest.mark.parametrize("on_lost", [None, "cancel", print])
def test_a_function_cancel_or_nothing_may_be_given(on_lost: Any) -> None:
    assert read_options({"on_lost": on_lost}, "x").on_lost is on_lost


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("auto_renew", "no", "True, False or None, not 'no'"),
        ("reentrant", 1, "True or False, not 1"),
        ("blocking", None, "True or False, not None"),
        ("adopt", "yes", "True or False, not 'yes'"),
    ],
)
def test_flags_must_be_true_or_false(name: str, value: Any, choices: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be {choices}"):
        Lock("a", **{name: value})


# -- polling --------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"poll": "polling"}, TypeError, "poll must be True, False or None, not 'polling'"),
    ({"poll": 1}, TypeError, "poll must be True, False or None, not 1"),
    ({"poll": True, "backoff": ConstantBackoff}, TypeError, "backoff must be an instance of one of redis-py's"),
    ({"poll": True, "backoff": 0.1}, TypeError, r"not 0\.1"),
    ({"poll": True, "attempts": 0}, ValueError, "attempts must be 1 or more, not 0"),
    ({"poll": True, "attempts": 1.5}, TypeError, "attempts must be an int"),
    ({"poll": True, "attempts": True}, TypeError, "attempts must be an int"),
    ({"backoff": SOON}, ValueError, "backoff can only be given with poll=True"),
    ({"attempts": 3}, ValueError, "attempts can only be given with poll=True"),
    ({"poll": False, "attempts": 3, "backoff": SOON}, ValueError, "backoff and attempts can only be given"),
]


@each_maker
@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_invalid_options_of_polling_are_refused_before_redis_is_asked(
    what: str, options: dict[str, Any], error: type[Exception], text: str, silent: Callable[[], bool]
) -> None:
    with pytest.raises(error, match=text):
        MAKERS[what](**options)
    assert silent()


def test_the_option_poll_takes_precedence_over_the_setting(settings: Any) -> None:
    settings.REDISLOCK = {"POLL": True}
    assert Lock("a", attempts=3, backoff=SOON)
    with pytest.raises(ValueError, match=r"\(poll is False, REDISLOCK\['POLL'\] is True\.\)"):
        Lock("a", poll=False, attempts=3)
