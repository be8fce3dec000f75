"""The options of locks, which decorators, pools and commands take as well."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis
from redis.backoff import AbstractBackoff, ConstantBackoff, DecorrelatedJitterBackoff

from django_redislock import Lock, LockPool, locked, locked_atomic, locked_view
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


def brief(value: object) -> str:
    return ascii(value)[:20] if value != 10**5000 else "10**5000"


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
        ("expire", " Did you mean 'ttl'?"),
        ("auto_renewal", " Did you mean 'auto_renew'?"),
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


def test_none_leaves_the_choice_to_the_settings(settings: Any) -> None:
    settings.REDISLOCK = {"TTL": 7, "BLOCKING_TIMEOUT": 0}
    left: Any = dict.fromkeys(["ttl", "blocking_timeout", "auto_renew", "poll", "using", "on_lost"])
    with Lock("a", **left) as lock:
        assert lock.ttl == 7
        assert not Lock("a", **left).acquire()


# -- durations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.003, 1.5, 7, YEARS])
def test_durations_are_seconds_or_timedeltas(ttl: float) -> None:
    assert Lock("a", ttl=ttl).ttl == Lock("a", ttl=timedelta(seconds=ttl)).ttl == ttl


NO_NUMBERS: list[Any] = ["30", "", "x" * MEGA, b"30", True, [30], {}, ..., 30j, Decimal(30)]
FINITE = "seconds and finite, not "
WRONG: list[tuple[Any, str]] = [
    *((value, FINITE) for value in (-1, -0.5, math.nan, math.inf, -math.inf, 10**400)),
    (timedelta(seconds=-1), FINITE),
    (10**5000, "<int that is too long to be shown>|<int instance with roughly 5001 digits"),  # Python writes none
    (YEARS + 1, "at most ten years, not "),
    *((value, r"seconds \(int, float or timedelta\), not ") for value in NO_NUMBERS),
]


@pytest.mark.parametrize("option", ["ttl", "max_hold", "blocking_timeout"])
@pytest.mark.parametrize(("value", "text"), WRONG, ids=brief)
def test_an_invalid_duration_is_refused_and_named(
    option: str, value: Any, text: str, refused: Callable[..., str]
) -> None:
    error = refused(**{option: value})
    assert error.startswith(f"{option} must be ")
    assert re.search(text, error)
    assert value == 10**5000 or repr(value)[:40] in error


@pytest.mark.parametrize("option", ["ttl", "max_hold"])
@pytest.mark.parametrize("value", [0, 0.0001, timedelta(0)], ids=repr)
def test_a_lease_lasts_a_few_milliseconds_at_least(option: str, value: Any, refused: Callable[..., str]) -> None:
    least = 0.003 if option == "ttl" else 0.001
    assert refused(**{option: value}) == f"{option} must be at least {least} {FINITE}{value!r}."


@pytest.mark.parametrize("value", [0, -1, math.inf, "never", True])
def test_a_slow_wait_is_seconds_or_false(value: Any, refused: Callable[..., str]) -> None:
    error = refused(slow_wait=value)
    assert error.startswith("slow_wait, unless it is False, must be ")
    assert error.endswith(f"not {value!r}.")


def test_a_long_value_in_an_error_is_cut_in_the_middle(refused: Callable[..., str]) -> None:
    assert re.search(r"not '(a+)\.\.\.(a+)b'", refused(ttl="a" * MEGA + "b"))
    assert "not ['a', 'a', 'a', 'a', 'a', 'a', ...]" in refused(ttl=["a"] * 1000)


# -- texts, functions, flags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note", ["x" * 1001, "\u00e9" * 501, "x" * MEGA, "\ud800", b"x", 7, None, ["x"] * 1000], ids=brief
)
def test_an_invalid_note_is_refused_with_a_short_error(note: Any, refused: Callable[..., str]) -> None:
    error = refused(note=note)
    assert "note" in error
    assert len(error) < 400


@pytest.mark.parametrize("note", ["", "x" * 1000, "\u00e9" * 500, "two\nlines"], ids=brief)
def test_a_note_has_up_to_a_thousand_bytes(note: str) -> None:
    with Lock("a", note=note) as lock:
        info = lock.info()
    assert info is not None
    assert info.note == note


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"purpose": purpose}, "purpose must be a str, not ") for purpose in (None, 7, b"/orders/")),
        ({"auto_renew": "no"}, "auto_renew must be True, False or None, not 'no'"),
        ({"poll": "polling"}, "poll must be True, False or None, not 'polling'"),
        ({"poll": 1}, "poll must be True, False or None, not 1"),
        ({"poll": True, "backoff": ConstantBackoff}, "backoff must be an instance of one of redis-py's"),
        ({"poll": True, "backoff": 0.1}, "not 0.1"),
        ({"poll": True, "attempts": 0}, "attempts must be 1 or more, not 0"),
        ({"poll": True, "attempts": 1.5}, "attempts must be an int"),
        ({"poll": True, "attempts": True}, "attempts must be an int"),
        ({"backoff": SOON}, "backoff can only be given with poll=True"),
        ({"attempts": 3}, "attempts can only be given with poll=True"),
        ({"poll": False, "attempts": 3, "backoff": SOON}, "backoff and attempts can only be given"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_choices_named(
    options: dict[str, Any], text: str, refused: Callable[..., str]
) -> None:
    assert text in refused(**options)


async def told(error: Exception) -> None: ...


@pytest.mark.parametrize("on_lost", ["stop", 7, told], ids=["word", "number", "coroutine"])
def test_an_on_lost_that_cannot_be_called_is_refused(on_lost: Any, refused: Callable[..., str]) -> None:
    assert refused(on_lost=on_lost).startswith("on_lost must be a plain function, 'cancel' or None, not ")


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("reentrant", 1, "True or False, not 1"),
        ("blocking", None, "True or False, not None"),
        ("adopt", "yes", "True or False, not 'yes'"),
    ],
)
def test_flags_must_be_true_or_false(name: str, value: Any, choices: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be {choices}"):
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


class Noted(AbstractBackoff):
    """Notes how many failures it is asked about."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def compute(self, failures: int) -> float:
        self.asked.append(failures)
        return 0.001


def test_a_long_wait_is_no_large_number() -> None:
    """redis-py computes two to the power of the failures."""
    noted = Noted()
    with Lock("a"):
        assert not Lock("a", poll=True, backoff=noted, attempts=100).acquire(blocking_timeout=60)
    assert noted.asked[:60] == [*range(1, 61)]
    assert max(noted.asked) == 64


@pytest.mark.parametrize(
    ("delay", "patience"), [(None, 1), (0, 1), (-math.inf, 1), (0.2, 1), (1, 4), (3600, 60), (math.inf, 60)]
)
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
