"""The options of locks, which decorators, pools and commands take as well."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from inspect import signature
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.management import call_command
from redis.backoff import ConstantBackoff, DecorrelatedJitterBackoff

import django_redislock
from django_redislock import Lock, LockedCommand, LockPool, locked, locked_atomic, locked_get_or_set, locked_view
from tests.helpers.actors import Crowd, server_time
from tests.helpers.state import NAME, QUEUE, WAITERS, count, put

SOON = ConstantBackoff(0.01)
MEGA = 10_000_000
YEARS = 10 * 365 * 86400  # ten, in seconds

OF_POOLS = ["attempts", "auto_renew", "backoff", "blocking_timeout", "max_hold", "note"]
OF_POOLS += ["on_lost", "poll", "purpose", "replicas", "slow_wait", "template", "ttl"]
OF_LOCKS = [*OF_POOLS, "adopt", "blocking", "fence_timeout", "fenced", "max_waiters", "reentrant", "using"]

# what takes options, as errors call it, and which
MAKERS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "Lock()": (lambda **options: Lock("a", **options), [*OF_LOCKS, "token"]),
    "locked()": (lambda **options: locked("a", **options), [*OF_LOCKS, "at_least", "name", "token"]),
    "locked_view()": (
        lambda **options: locked_view("a", **options),
        [*OF_LOCKS, "methods", "name", "on_conflict", "token"],
    ),
    "locked_atomic()": (lambda **options: locked_atomic("a", **options), [*OF_LOCKS, "db", "name", "token"]),
    "LockPool.acquire()": (lambda **options: LockPool("a").acquire(**options), OF_POOLS),
}


@pytest.fixture(params=MAKERS)
def what(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def refused(what: str, client: redis.Redis) -> Callable[..., str]:
    """The error about these options, which comes before Redis is asked."""

    def refused(**options: Any) -> str:
        before = count(client, "evalsha") + count(client, "eval")
        with pytest.raises((TypeError, ValueError)) as caught:
            MAKERS[what][0](**options)
        assert count(client, "evalsha") + count(client, "eval") == before
        assert len(str(caught.value)) < 1000
        return str(caught.value)

    return refused


# -- which there are --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("fair", ""),
        ("timeout", " Did you mean 'ttl' or 'blocking_timeout'?"),  # redis-py's and threading's
        ("on_loss", " Did you mean 'on_lost'?"),
        ("id", " Did you mean 'token'?"),
    ],
)
def test_the_error_about_an_unknown_option_lists_the_existing_ones_and_suggests_one(
    what: str, wrong: str, hint: str, refused: Callable[..., str]
) -> None:
    known = sorted(MAKERS[what][1])
    hint = hint if "token" in known or "token" not in hint else ""  # only what there is
    assert refused(**{wrong: 5}) == f"{what} takes no option {wrong!r}.{hint} The options are: {', '.join(known)}."


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
    (lambda: asyncio.run(a.Lock("x").aacquire(1.5)), "Lock.aacquire()", "by name, not 1.5", "blocking_timeout=1.5"),
    (lambda: a.LockPool("x").acquire(5), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: asyncio.run(a.LockPool("x").aacquire(5)), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: ours().lock("x", expire=3), "cache.lock()", "expire", "'timeout'"),
    (lambda: ours().lock("x").acquire(timeout=3), "acquire() of cache.lock()", "timeout", "'blocking_timeout'"),
    (lambda: a.locked_get_or_set("x", int, expire=3), "locked_get_or_set()", "expire", "'timeout'"),
    (lambda: a.locked_get_or_set("x", int, 60), "locked_get_or_set()", "by name, not 60", "timeout=60"),
    (lambda: asyncio.run(a.alocked_get_or_set("x", int, ttl=3)), "alocked_get_or_set()", "ttl", "'timeout'"),
    (lambda: ours().locked_get_or_set("x", int, ttl=3), "locked_get_or_set()", "ttl", "'timeout'"),
    (lambda: asyncio.run(ours().alocked_get_or_set("x", int, ex=3)), "alocked_get_or_set()", "ex", "'timeout'"),
]


@pytest.mark.parametrize(("call", "what", "wrong", "meant"), HINTS)
def test_an_argument_of_other_libraries_or_by_position_is_an_error_that_names_ours(
    call: Callable[[], Any], what: str, wrong: str, meant: str, settings: Any
) -> None:
    backend = {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "ours": backend}
    trouble = f"its options {wrong}" if " " in wrong else f"no option {wrong!r}"
    hint = f" Did you mean {meant}?" if meant else ""
    with pytest.raises(TypeError, match=re.escape(f"{what} takes {trouble}.{hint} The options are: ")):
        call()


def test_the_options_of_a_command_are_those_of_a_lock() -> None:
    class Command(LockedCommand):
        lock_options = {"expire": 3}

    with pytest.raises(TypeError, match=r"^Lock\(\) takes no option 'expire'\. Did you mean 'ttl'"):
        call_command(Command())
    with pytest.raises(TypeError, match=r"^Wrong has lock_expire = 3, .* Did you mean 'lock_ttl'"):
        type("Wrong", (LockedCommand,), {"lock_expire": 3})


def test_signatures_show_only_what_can_be_given() -> None:
    functions: list[Any] = [Lock, Lock.acquire, Lock.aacquire, LockPool.acquire, LockPool.aacquire, locked_get_or_set]
    functions += [locked, locked_view, locked_atomic]
    for function in functions:
        assert {"wrong", "unknown", "caller"}.isdisjoint(signature(function).parameters)
    assert [*signature(Lock.aacquire).parameters] == ["self", "blocking", "blocking_timeout", "token"]


def test_none_leaves_the_choice_to_the_settings(settings: Any) -> None:
    settings.REDISLOCK = {"TTL": 7, "BLOCKING_TIMEOUT": 0}
    left: Any = dict.fromkeys(["ttl", "blocking_timeout", "auto_renew", "poll", "using", "on_lost"])
    with Lock("a", **left) as lock:
        assert lock.ttl == 7
        assert not Lock("a", **left).acquire()


# -- values -----------------------------------------------------------------------------------------------------------

FINITE = "seconds and finite, not "
NO_DURATIONS: list[tuple[Any, str]] = [
    *((value, FINITE) for value in (-1, math.nan, math.inf, 10**400, timedelta(seconds=-1))),
    (10**5000, "<int that is too long to be shown>|<int instance with roughly 5001 digits"),  # Python writes none
    (YEARS + 1, "at most ten years, not "),
    *((value, r"seconds \(int, float or timedelta\), not ") for value in ("30", "x" * MEGA, True, [30], Decimal(30))),
]


@pytest.mark.parametrize("option", ["ttl", "max_hold", "blocking_timeout"])
@pytest.mark.parametrize(
    ("value", "text"), NO_DURATIONS, ids=lambda value: ascii(value)[:20] if value != 10**5000 else ""
)
def test_an_invalid_duration_is_refused_and_named(
    option: str, value: Any, text: str, refused: Callable[..., str]
) -> None:
    error = refused(**{option: value})
    assert error.startswith(f"{option} must be ")
    assert re.search(text, error)
    assert value == 10**5000 or repr(value)[:40] in error


def test_a_duration_is_seconds_or_a_timedelta_within_bounds(refused: Callable[..., str]) -> None:
    for ttl in (0.003, 1.5, YEARS):
        assert Lock("a", ttl=ttl).ttl == Lock("a", ttl=timedelta(seconds=ttl)).ttl == ttl
    for option, least in (("ttl", 0.003), ("max_hold", 0.001)):
        for short in (0, 0.0001, timedelta(0)):
            assert refused(**{option: short}) == f"{option} must be at least {least} {FINITE}{short!r}."
    for value in (0, math.inf, "never", True):
        error = refused(slow_wait=value)
        assert error.startswith("slow_wait, unless it is False, must be ")
        assert error.endswith(f"not {value!r}.")


async def told(error: Exception) -> None: ...


LOST = "on_lost must be a plain function, 'cancel' or None, not "


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"note": note}, "note") for note in ("x" * 1001, "\u00e9" * 501, "x" * MEGA, "\ud800", b"x", ["x"] * 1000)),
        *(({"on_lost": on_lost}, LOST) for on_lost in ("stop", 7, told)),
        ({"purpose": None}, "purpose must be a str, not "),
        ({"auto_renew": "no"}, "auto_renew must be True, False or None, not 'no'"),
        ({"poll": 1}, "poll must be True, False or None, not 1"),
        ({"poll": True, "backoff": ConstantBackoff}, "backoff must be an instance of one of redis-py's"),
        ({"poll": True, "backoff": 0.1}, "not 0.1"),
        ({"poll": True, "attempts": 0}, "attempts must be 1 or more, not 0"),
        ({"poll": True, "attempts": 1.5}, "attempts must be an int"),
        ({"poll": True, "attempts": True}, "attempts must be an int"),
        ({"backoff": SOON}, "backoff can only be given with poll=True"),
        ({"attempts": 3}, "attempts can only be given with poll=True"),
        ({"poll": False, "attempts": 3, "backoff": SOON}, "backoff and attempts can only be given"),
        ({"ttl": "a" * MEGA + "b"}, "aaa...aaa"),
        ({"ttl": ["a"] * 1000}, "not ['a', 'a', 'a', 'a', 'a', 'a', ...]"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_does_not_fit_is_refused_and_the_choices_named(
    options: dict[str, Any], text: str, refused: Callable[..., str]
) -> None:
    assert text in refused(**options)


@pytest.mark.parametrize(("name", "value"), [("reentrant", 1), ("blocking", None), ("adopt", "yes")])
def test_flags_must_be_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be True or False, not {value!r}"):
        Lock("a", **{name: value})


# -- polling ----------------------------------------------------------------------------------------------------------


def test_the_option_poll_takes_precedence_over_the_setting(settings: Any) -> None:
    settings.REDISLOCK = {"POLL": True}
    assert Lock("a", attempts=3, backoff=SOON)
    with pytest.raises(ValueError, match=r"\(poll is False, REDISLOCK\['POLL'\] is True\.\)"):
        Lock("a", poll=False, attempts=3)


def test_a_backoff_that_keeps_a_state_may_be_shared(crowd: Crowd) -> None:
    given, me = DecorrelatedJitterBackoff(cap=0.002, base=0.001), crowd()
    for failures in (1, 2, 3):
        given.compute(failures)
    before = dict(vars(given))
    with Lock("a"):
        assert not me(Lock("a", poll=True, backoff=given, attempts=5), "acquire")
    assert vars(given) == before


@pytest.mark.parametrize(("delay", "patience"), [(None, 1), (0, 1), (1, 4), (math.inf, 60)])
async def test_a_waiter_counts_as_alive_for_four_delays_which_stay_within_what_a_queue_bears(
    delay: float | None, patience: float, client: redis.Redis, aeventually: Callable[..., Awaitable[Any]]
) -> None:
    """And for a second at least. By default, the first delays are short."""
    backoff = None if delay is None else ConstantBackoff(delay)
    put(client, NAME)
    waiting = asyncio.create_task(Lock(NAME, poll=True, backoff=backoff).aacquire())
    ((id, ticket),) = await aeventually(lambda: client.zrange(QUEUE, 0, -1, withscores=True))
    entry: Any = client.hget(WAITERS, id)
    until = int(entry.split()[2])
    assert ticket + patience * 1e6 <= until <= server_time(client) + patience * 1e6
    waiting.cancel()
    await asyncio.wait([waiting])
