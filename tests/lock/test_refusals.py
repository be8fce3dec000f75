"""Callers that do not get a lock: how many may wait, what the errors and signals say, and whom they name."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockNotAcquired, LockPool, get_lock, lock_not_acquired, locked
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.state import NAME, QUEUE, WAITERS, count, leftovers, queued
from tests.helpers.ways import stopped
from tests.inside import all_look, limit

from .blocks import Block

Eventually = Callable[..., Any]
Heard = list[tuple[str, dict[str, Any]]]
POLLS = pytest.mark.parametrize("polls", [False, True], ids=["woken", "polling"])


@pytest.fixture
def refusals() -> Iterator[list[dict[str, Any]]]:
    """What the signal ``lock_not_acquired`` says."""
    heard: list[dict[str, Any]] = []

    def receive(*, sender: object, signal: object, **facts: Any) -> None:
        assert sender is Lock
        heard.append(facts)

    lock_not_acquired.connect(receive)
    yield heard
    lock_not_acquired.disconnect(receive)


def refused(person: Any, lock: Any) -> LockNotAcquired:
    with pytest.raises(LockNotAcquired) as caught:
        person(lock, "enter")
    return caught.value


def waiters(using: str, name: str = NAME) -> int:
    info = get_lock(name, using=using)
    return 0 if info is None else info.waiters


# -- max_waiters ------------------------------------------------------------------------------------------------------


@POLLS
def test_a_caller_is_refused_at_once_when_the_queue_is_full(
    polls: bool, crowd: Crowd, using: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits already keeps waiting, even though it sends its request again and again."""
    limit(monkeypatch, look_every=0.01)
    holder, last, held = crowd(), crowd(), Lock(NAME, using=using)
    holder(held, "acquire")
    waiting = crowd().start(Lock(NAME, max_waiters=1, using=using), "acquire")
    eventually(lambda: waiters(using) == 1)
    assert last(Lock(NAME, max_waiters=1, poll=polls, using=using), "acquire", blocking_timeout=GENEROUS) is False
    with override_settings(REDISLOCK={"MAX_WAITERS": {"view:*": 5, "order:*": 1}}):
        assert last(Lock(NAME, using=using), "acquire", blocking_timeout=GENEROUS) is False
        assert last(Lock(NAME, max_waiters=2, using=using), "acquire", blocking_timeout=0.01) is False
    assert waiters(using) == 1
    assert not waiting.done()
    holder(held, "release")
    assert waiting.result(GENEROUS) is True


@pytest.mark.parametrize("options", [{"max_waiters": 0}, {"blocking_timeout": 0}], ids=str)
def test_a_caller_is_refused_in_one_round_trip_that_names_the_holder_and_leaves_nothing_behind(
    options: dict[str, Any], crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    holder, last, held = crowd(), crowd(), Lock(NAME)
    holder(held, "acquire")
    last(Block(Lock("warm-up")), "run")
    before = count(client, "evalsha")
    assert refused(last, Lock(NAME, **options)).holder
    assert count(client, "evalsha") == before + 1
    holder(held, "release")
    eventually(lambda: leftovers(client) == [])


@pytest.mark.complete
def test_a_waiter_that_comes_back_with_a_ticket_may_queue_even_if_the_queue_is_full(
    crowd: Crowd, eventually: Eventually, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    holder, held = crowd(), Lock(NAME)
    holder(held, "acquire")
    waiting = crowd().start(Lock(NAME, max_waiters=1), "acquire")
    eventually(lambda: queued(client))
    client.delete(QUEUE, WAITERS)  # as a restarted Redis does
    ghost().queue("a-newcomer", name=NAME)
    all_look()
    eventually(lambda: queued(client) == 2)
    holder(held, "release")
    assert waiting.result(GENEROUS) is True  # it came first


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"blocking_timeout": 0}, "busy"),
        ({"blocking_timeout": 0.05}, "timeout"),
        ({"poll": True, "attempts": 2}, "timeout"),
        ({"max_waiters": 0}, "full"),
        ({"blocking": False}, "own"),
        ({"blocking_timeout": 0.05, "poll": True}, "own"),
        ({"blocking_timeout": 0}, "suspended"),
    ],
    ids=str,
)
def test_error_signal_and_log_say_why_and_who_holds_the_lock(
    options: dict[str, Any], outcome: str, crowd: Crowd, using: str, refusals: list[Any], heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first, last, held = crowd(), crowd(), Lock(NAME, using=using, note="a note")
    first(held, "suspend", 60) if outcome == "suspended" else first(held, "acquire")
    owner = getattr(get_lock(NAME, using=using), "owner", "")
    lock = Lock(NAME, using=using, template="order:{pk}", **options)
    with caplog.at_level(logging.DEBUG):
        error = refused(first if outcome == "own" else last, lock)
    assert error.outcome == outcome
    assert error.holder.startswith("nobody (suspended by ") if outcome == "suspended" else error.holder == owner
    told = {
        "full": r": its queue is full \(max_waiters=0\)\.$",
        "own": r": this thread or task holds it already\. Pass reentrant=True to acquire it again\.$",
        "suspended": r": suspended by .+\.$",
    }.get(outcome, rf": held by {re.escape(owner)}\.$")
    assert re.search(told, str(error))
    ((sent),) = refusals
    assert (sent["name"], sent["template"], sent["outcome"]) == (NAME, "order:{pk}", outcome)
    assert sent["waited"] == error.waited
    assert f"event=not-acquired name={NAME} template=order:{{pk}} outcome={outcome} waited=" in caplog.text
    assert [which for which, _ in heard] == ["acquired"] * (outcome != "suspended")  # by the holder


@pytest.mark.complete
def test_error_and_log_name_the_holder_at_the_end_of_the_wait(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another one than at the beginning of the wait."""
    first, second, last = crowd(), crowd(), crowd()
    held = Lock(NAME, ttl=600)
    first(held, "acquire")
    next_one = second.start(Lock(NAME, ttl=40), "acquire")
    eventually(lambda: queued(client) == 1)
    with override_settings(REDISLOCK={"SLOW_WAIT": 1}):
        waiting = last.start(Lock(NAME, blocking_timeout=2), "enter")
        eventually(lambda: queued(client) == 2)
        first(held, "release")
        assert next_one.result(GENEROUS)
        fence = get_lock(NAME).fence  # type: ignore[union-attr]
        with pytest.raises(LockNotAcquired) as caught:
            waiting.result(GENEROUS)
    assert 0 < caught.value.busy_for < 50
    assert f"event=still-waiting name={NAME} " in caplog.text
    assert f" fence={fence} waited=" in caplog.text


def test_the_error_of_cache_lock_says_the_same(crowd: Crowd, cache_lock: Callable[..., Any]) -> None:
    lock = cache_lock(NAME, blocking_timeout=0.05)
    crowd()(Lock(lock.name, using="ours"), "acquire")
    with pytest.raises(LockNotAcquired) as caught:
        lock.__enter__()
    error = caught.value
    assert (error.outcome, error.attempts > 0, error.waited > 0, error.busy_for > 0) == ("timeout", True, True, True)
    assert error.holder
    told = r"within the time specified: this thread or task holds it already\.$"
    with cache_lock("mine"), pytest.raises(LockNotAcquired, match=told):
        cache_lock("mine", blocking_timeout=0.01).__enter__()


def test_a_pool_without_a_free_member_sends_and_logs_its_name(
    crowd: Crowd, refusals: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(LockNotAcquired):
        crowd()(LockPool("workers"), "acquire", blocking_timeout=0)
    ((sent),) = refusals
    assert (sent["outcome"], sent["name"]) == ("busy", sent["template"])
    assert "event=not-acquired pool=workers template=" in caplog.text


def test_every_signal_has_the_template(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    @locked("order:{pk}")
    def pay(pk: int) -> None: ...

    @locked(name=lambda pk: f"order:{pk}")
    def made(pk: int) -> None: ...

    @locked()
    def plain() -> None: ...

    with caplog.at_level(logging.DEBUG):
        pay(42)
        made(42)
        plain()
        with Lock("a"):
            pass
    here = f"{__name__}.test_every_signal_has_the_template"
    templates = ["order:{pk}", f"{here}.<locals>.<lambda>", f"{here}.locals.plain", "a"]
    for event in ("acquired", "released"):
        assert [facts["template"] for which, facts in heard if which == event] == templates
        assert f"event={event} name=order:42 template=order:{{pk}}" in caplog.text
    for option in ("template", "purpose"):
        with pytest.raises(TypeError, match=f"{option} must be a str, not 7"):
            Lock(NAME, **{option: 7})  # type: ignore[arg-type]


# -- long waits -------------------------------------------------------------------------------------------------------


@POLLS
def test_a_long_wait_is_logged_once_with_the_holder_unless_it_is_on_purpose(
    polls: bool, crowd: Crowd, using: str, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that is in a hurry logs it whatever the setting says."""
    first, held, standby = crowd(), Lock(NAME, using=using), Lock("standby", using=using)
    first(held, "acquire")
    first(standby, "acquire")
    owner = get_lock(NAME, using=using).owner  # type: ignore[union-attr]
    waiting = []
    for setting, name, slow_wait in ((0.05, "standby", False), (0.05, NAME, None), (None, NAME, 0.05)):
        with override_settings(REDISLOCK={"SLOW_WAIT": setting}):
            lock, person, logged = Lock(name, using=using, poll=polls, slow_wait=slow_wait), crowd(), caplog.text
            waiting.append((person, lock, person.start(lock, "acquire")))
            eventually(lambda name=name: waiters(using, name))
            if name == NAME:
                eventually(lambda logged=logged: caplog.text.count("still-waiting") > logged.count("still-waiting"))
    lines = [record.getMessage() for record in caplog.records if "still-waiting" in record.msg]
    assert len(lines) == 2
    for line in lines:
        assert line.replace('"', "").startswith(f"event=still-waiting name={NAME} owner={owner} fence=")
    for lock in (held, standby):
        first(lock, "release")
    for person, lock, got in waiting:
        assert got.result(GENEROUS)
        person(lock, "release")
    assert caplog.text.count("still-waiting") == 2


def test_one_waiter_of_a_process_asks_who_the_holder_is_for_all_of_them(
    crowd: Crowd, own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    crowd()(Lock(NAME, ttl=600), "acquire")
    with override_settings(REDISLOCK={"SLOW_WAIT": 1}), own.client() as client:
        for _ in range(30):
            crowd().start(Lock(NAME), "acquire")
        eventually(lambda: queued(client) == 30)
        asked = count(client, "evalsha")
        eventually(lambda: caplog.text.count(f"event=still-waiting name={NAME} owner=") == 30)
        # they do not all reach that point at the same moment, and look for the lock meanwhile
        assert count(client, "evalsha") - asked < 30


@pytest.mark.complete
def test_a_timeout_is_kept_even_if_redis_hangs_when_asked_for_the_holder(
    crowd: Crowd, own: RedisServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    crowd()(Lock(NAME, ttl=600), "acquire")
    with override_settings(REDISLOCK={"SLOW_WAIT": 0.5}), own.client() as client:
        waiting = crowd().start(Lock(NAME, blocking_timeout=1), "acquire")
        eventually(lambda: queued(client) == 1)
        begun = monotonic()
        with stopped(own):
            assert waiting.result(GENEROUS) is False
        assert monotonic() - begun < 5  # which is the timeout of the alias
    assert "event=still-waiting" in caplog.text


def test_a_long_wait_for_a_member_of_a_pool_is_logged(
    crowd: Crowd, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, pool = crowd(), LockPool("workers")
    me(pool, "extend", ["alice"])
    member = me(pool, "acquire")
    with override_settings(REDISLOCK={"SLOW_WAIT": 0.05}):
        waiting = crowd().start(pool, "acquire")
        eventually(lambda: "event=still-waiting pool=workers waited=" in caplog.text)
        me(member, "release")
        waiting.result(GENEROUS)
