"""The options of locks, which decorators, pools and commands take as well."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.management import call_command
from redis.backoff import ConstantBackoff

import django_redislock
from django_redislock import Lock, LockedCommand, LockPool, locked, locked_atomic, locked_get_or_set, locked_view
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


def ours() -> Any:
    """Our cache backend."""
    return caches["ours"]


a: Any = django_redislock  # whose types are not checked here
# a call with an argument that there is not, and what the error says: of whom, of which argument, and what it suggests
HINTS: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: a.Lock("x", 10), "Lock()", "by name, not 10", "ttl=10"),
    (lambda: a.Lock("x", True), "Lock()", "by name, not True", "blocking=True"),
    (lambda: a.Lock("x", "a-token-that-is-secret"), "Lock()", "by name, not a str", ""),
    (lambda: a.locked("x", 10), "locked()", "by name, not 10", "ttl=10"),
    (lambda: a.locked_view("x", 10), "locked_view()", "by name, not 10", "ttl=10"),
    (lambda: a.locked_atomic("x", 10), "locked_atomic()", "by name, not 10", "ttl=10"),
    (lambda: a.Lock("x").acquire(timeout=1), "Lock.acquire()", "timeout", "'blocking_timeout'"),
    (lambda: a.Lock("x").acquire(False), "Lock.acquire()", "by name, not False", "blocking=False"),
    (lambda: asyncio.run(a.Lock("x").aacquire(timeout=1)), "Lock.aacquire()", "timeout", "'blocking_timeout'"),
    (lambda: asyncio.run(a.Lock("x").aacquire(1.5)), "Lock.aacquire()", "by name, not 1.5", "blocking_timeout=1.5"),
    (lambda: a.LockPool("x").acquire(5), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: asyncio.run(a.LockPool("x").aacquire(5)), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: ours().lock("x", expire=3), "cache.lock()", "expire", "'timeout'"),
    (lambda: ours().lock("x", ttl=3), "cache.lock()", "ttl", "'timeout'"),
    (lambda: ours().lock("x").acquire(timeout=3), "acquire() of cache.lock()", "timeout", "'blocking_timeout'"),
    (lambda: a.locked_get_or_set("x", int, expire=3), "locked_get_or_set()", "expire", "'timeout'"),
    (lambda: a.locked_get_or_set("x", int, 60), "locked_get_or_set()", "by name, not 60", "timeout=60"),
    (lambda: asyncio.run(a.alocked_get_or_set("x", int, ttl=3)), "alocked_get_or_set()", "ttl", "'timeout'"),
    (lambda: ours().locked_get_or_set("x", int, ttl=3), "locked_get_or_set()", "ttl", "'timeout'"),
    (lambda: asyncio.run(ours().alocked_get_or_set("x", int, ex=3)), "alocked_get_or_set()", "ex", "'timeout'"),
]


@pytest.mark.parametrize(("call", "what", "wrong", "meant"), HINTS)
def test_an_argument_of_other_libraries_is_an_error_that_names_ours(
    call: Callable[[], Any], what: str, wrong: str, meant: str, silent: Callable[[], bool], settings: Any
) -> None:
    backend = {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "ours": backend}
    trouble = f"its options {wrong}" if " " in wrong else f"no option {wrong!r}"
    hint = f" Did you mean {meant}?" if meant else ""
    with pytest.raises(TypeError, match=re.escape(f"{what} takes {trouble}.{hint} The options are: ")):
        call()
    assert silent()


@pytest.mark.parametrize("wrong", ["expire", "timeout"])
def test_the_options_of_a_command_are_those_of_a_lock(wrong: str) -> None:
    class Command(LockedCommand):
        lock_options = {wrong: 3}

    with pytest.raises(TypeError, match=rf"^Lock\(\) takes no option '{wrong}'\. Did you mean 'ttl'"):
        call_command(Command())
    with pytest.raises(TypeError, match=rf"^Wrong has lock_{wrong} = 3, .* Did you mean 'lock_ttl'"):
        type("Wrong", (LockedCommand,), {f"lock_{wrong}": 3})


def test_signatures_show_only_what_can_be_given() -> None:
    functions: list[Any] = [Lock, Lock.acquire, Lock.aacquire, LockPool.acquire, LockPool.aacquire, locked_get_or_set]
    functions += [locked, locked_view, locked_atomic]
    for function in functions:
        assert {"wrong", "unknown", "caller"}.isdisjoint(signature(function).parameters)
    assert [*signature(Lock.aacquire).parameters] == ["self", "blocking", "blocking_timeout", "token"]


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
