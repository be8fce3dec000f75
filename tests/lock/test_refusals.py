"""Callers that do not get a lock: what errors, signals and log say; copies of errors; and Django's reports of them."""

import copy
import gc
import logging
import pickle
import re
import secrets
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from html import unescape
from typing import Any, cast

import pytest
import redis
from asgiref.sync import async_to_sync
from celery import Celery  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter
from redis.backoff import ConstantBackoff

from django_redislock import (
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockSet,
    LockUnavailable,
    get_lock,
    lock_not_acquired,
    locked,
    locked_atomic,
    locked_view,
)
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, never, until
from tests.helpers.servers import Twins
from tests.helpers.state import NAME, waiters
from tests.inside import limit, redis_py_lock

from .conftest import Block, Heard, receiving

POLLS = pytest.mark.parametrize("polls", [False, True], ids=["woken", "polling"])
TOKEN = "a-token-of-the-site-itself"
TEXT = "a text that redis-py takes for a token"
request = RequestFactory().get("/")


@POLLS
def test_a_caller_is_refused_at_once_when_the_queue_is_full(
    polls: bool, crowd: Crowd, using: str, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.01)
    holder, last, held = crowd(), crowd(), Lock(NAME, using=using)
    holder(held, "acquire")
    waiting = queue(Lock(NAME, max_waiters=1, using=using), crowd())
    assert last(Lock(NAME, max_waiters=1, poll=polls, using=using), "acquire", blocking_timeout=GENEROUS) is False
    with override_settings(REDISLOCK={"MAX_WAITERS": {"view:*": 5, "order:*": 1}}):
        assert last(Lock(NAME, using=using), "acquire", blocking_timeout=GENEROUS) is False
        assert last(Lock(NAME, max_waiters=2, using=using), "acquire", blocking_timeout=0.01) is False
    assert waiters(NAME, using) == 1
    assert not waiting.done()
    holder(held, "release")
    assert waiting.result(GENEROUS) is True


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
    options: dict[str, Any], outcome: str, crowd: Crowd, using: str, heard: Heard, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first, last, held = crowd(), crowd(), Lock(NAME, using=using, note="a note")
    first(held, "suspend", 60) if outcome == "suspended" else first(held, "acquire")
    owner = getattr(get_lock(NAME, using=using), "owner", "")
    lock = Lock(NAME, using=using, template="order:{pk}", **options)
    refusals: list[dict[str, Any]] = []
    caplog.set_level(logging.DEBUG)
    with receiving(lambda **facts: refusals.append(facts), lock_not_acquired), pytest.raises(LockNotAcquired) as caught:
        (first if outcome == "own" else last)(lock, "enter")
    error = caught.value
    assert error.outcome == outcome
    assert error.holder.startswith("nobody (suspended by ") if outcome == "suspended" else error.holder == owner
    told = {
        "full": r": its queue is full \(max_waiters=0\)\.$",
        "own": r": this thread or task holds it already\. Pass reentrant=True to acquire it again\.$",
        "suspended": r": suspended by .+\.$",
    }.get(outcome, rf": held by {re.escape(owner)}\.$")
    assert re.search(told, str(error))
    (sent,) = refusals
    assert [sent[fact] for fact in ("sender", "name", "template", "outcome")] == [Lock, NAME, "order:{pk}", outcome]
    assert sent["waited"] == error.waited
    assert f"event=not-acquired name={NAME} template=order:{{pk}} outcome={outcome} waited=" in caplog.text
    assert [which for which, _ in heard] == ["acquired"] * (outcome != "suspended")  # by the holder


@POLLS
def test_a_long_wait_is_logged_once_with_the_holder_unless_it_is_on_purpose(
    polls: bool, crowd: Crowd, using: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, held, standby = crowd(), Lock(NAME, using=using), Lock("standby", using=using)
    first(held, "acquire")
    first(standby, "acquire")
    owner = get_lock(NAME, using=using).owner  # type: ignore[union-attr]
    waiting = []
    for setting, name, slow_wait in ((0.05, "standby", False), (0.05, NAME, None), (None, NAME, 0.05)):
        with override_settings(REDISLOCK={"SLOW_WAIT": setting}):
            lock, person, logged = Lock(name, using=using, poll=polls, slow_wait=slow_wait), crowd(), caplog.text
            waiting.append((person, lock, person.start(lock, "acquire")))
            until(lambda name=name: waiters(name, using))
            if name == NAME:
                until(lambda logged=logged: caplog.text.count("still-waiting") > logged.count("still-waiting"))
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


def test_lock_not_acquired_says_how_long_it_was_tried_and_how_long_the_lock_is_still_busy(me: Any, you: Any) -> None:
    me(Lock(NAME, ttl=100), "acquire")
    text = rf"^Could not acquire the lock '{NAME}' "
    with pytest.raises(LockNotAcquired, match=rf"{text}at once: held by \S+ .*\.$") as caught:
        you(Lock(NAME, blocking=False), "enter")
    assert (caught.value.name, caught.value.attempts) == (NAME, 1)
    assert 0 <= caught.value.waited < GENEROUS
    assert 100 - GENEROUS < caught.value.busy_for <= 100
    with pytest.raises(LockNotAcquired, match=rf"{text}within [\d.]+ s \(2 attempts\): held by \S+ .*\.$") as caught:
        you(Lock(NAME, poll=True, attempts=2, backoff=ConstantBackoff(0.2)), "enter")
    assert caught.value.attempts == 2
    assert caught.value.waited >= 0.2


class Upload:
    """What a view may have in a local variable."""


class Caller:
    """Tries something in vain, with an upload in a local variable, and returns a weak reference to that."""

    def __init__(self, thing: Any, method: str, **options: Any) -> None:
        self.thing, self.method, self.options = thing, method, options

    def run(self) -> "weakref.ref[Upload]":
        upload = Upload()
        with suppress(LockNotAcquired):
            getattr(self.thing, self.method)(**self.options)
        return weakref.ref(upload)

    async def arun(self) -> "weakref.ref[Upload]":
        upload = Upload()
        with suppress(LockNotAcquired):
            await getattr(self.thing, f"a{self.method}")(**self.options)
        return weakref.ref(upload)


@pytest.mark.parametrize("way", ["block", "block of a set", "function", "pool"])
def test_a_refusal_that_was_caught_keeps_nothing_of_its_caller(way: str, crowd: Crowd) -> None:
    """As a reference cycle, it would keep all local variables until the garbage collector comes."""
    me, you, pool, held = crowd(), crowd(), LockPool("accounts"), Lock(NAME)
    pool.assign(["alice"])
    callers = {
        "block": Caller(Block(Lock(NAME, blocking=False), never), "run"),
        "block of a set": Caller(Block(LockSet("a", NAME, blocking=False), never), "run"),
        "function": Caller(Twins(locked(NAME, blocking_timeout=0), never), "call"),
        "pool": Caller(pool, "acquire", blocking_timeout=0),
    }
    me(held, "acquire")
    member = me(pool, "acquire")
    gc.disable()
    try:
        assert you(callers[way], "run")() is None
        assert member.locked()
    finally:
        gc.enable()


def through_celery(error: Exception) -> Any:
    """As a result of a task, in JSON, which keeps ``args`` alone."""
    app = Celery("site", backend="cache+memory://", set_as_current=False)
    app.backend.store_result("a", error, "FAILURE")
    return app.AsyncResult("a").result


COPIES: list[Callable[[Any], Any]] = [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, through_celery]
FACTS: dict[type[LockError], dict[str, Any]] = {
    LockError: {},
    LockNotAcquired: {"outcome": "full", "attempts": 3, "waited": 1.5, "busy_for": 20.0, "holder": "web1:7:main"},
    LockNotOwned: {},
    LockLost: {"reason": "it was force-released", "fence": 7},
    LockUnavailable: {"lease_left": 4.0},
}


@pytest.mark.parametrize("again", COPIES)
@pytest.mark.parametrize("kind", FACTS)
def test_an_error_stays_whole_where_it_is_copied_or_sent(kind: type[LockError], again: Callable[[Any], Any]) -> None:
    assert issubclass(kind, LockError)
    assert issubclass(kind, redis.exceptions.LockError)
    assert issubclass(kind, redis.exceptions.LockNotOwnedError) == (kind in (LockNotOwned, LockLost))
    unknown, error = kind("a text"), again(kind("a text", NAME, **FACTS[kind]))
    assert {getattr(unknown, fact) for fact in ("name", *FACTS[kind])} == {None}
    assert type(error) is kind
    assert (str(error), repr(error)) == ("a text", f"{kind.__name__}('a text')")
    assert (error.name, error.lock_name) == (NAME, NAME)
    assert {fact: getattr(error, fact) for fact in FACTS[kind]} == FACTS[kind]


@pytest.mark.parametrize("again", [lambda lock: pickle.loads(pickle.dumps(lock)), copy.copy, copy.deepcopy])
def test_what_was_acquired_through_a_lock_is_not_acquired_through_its_copies(again: Callable[[Any], Any]) -> None:
    lock = Lock(NAME, ttl=7, reentrant=True)
    with lock:
        other = again(lock)
        assert (other.name, other.ttl, other.lost, other.remaining()) == (NAME, 7, False, 0.0)
        assert other.acquire(blocking=False)
        other.release()
    with LockSet("a", "b") as locks:
        assert (again(locks).names, again(locks).remaining()) == (("a", "b"), 0.0)
    pool = LockPool("accounts")
    pool.extend(["alice"])
    with pool.acquire() as member:
        copied: Any = again(member)
        assert (copied.key, copied.lost, copied.remaining()) == ("alice", False, 0.0)


class Threads(redis.Connection):
    broken = False  # whether sends fail

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self.broken:
            cast("socket.socket", self._sock).shutdown(socket.SHUT_WR)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class Coroutines(redis.asyncio.Connection):
    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if Threads.broken:
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # type: ignore[union-attr]
        await super().send_packed_command(command, check_health)


Threads.async_class = Coroutines  # type: ignore[attr-defined]


@locked_view(NAME, token=TOKEN)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def arelease(fail: Callable[[], None]) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    fail()
    await lock.arelease()


ACQUIRING: dict[str, Callable[[], object]] = {
    "a token": lambda: Lock(NAME).acquire(token=TOKEN),
    "async": lambda: async_to_sync(Lock(NAME).aacquire)(token=TOKEN),
    "adopting": lambda: Lock(NAME, token=TOKEN, adopt=True).acquire(),
    "polling": lambda: Lock(NAME, token=TOKEN, poll=True).acquire(),
    "an async view": lambda: async_to_sync(aview)(request),
    "a transaction": lambda: locked_atomic(NAME, token=TOKEN).__enter__(),
    "redis-py's": lambda: redis_py_lock(NAME, timeout=60).acquire(token=TEXT),
    "releasing elsewhere": lambda: Lock(NAME, token=TOKEN).release(),
}
HOLDING: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "releasing": (lambda: Lock(NAME), TOKEN, "release"),
    "releasing by the lock's token": (lambda: Lock(NAME, token=TOKEN), None, "release"),
    "releasing redis-py's": (lambda: redis_py_lock(NAME, timeout=60), TEXT, "release"),
    "renewing redis-py's": (lambda: redis_py_lock(NAME, timeout=60), TEXT, "reacquire"),
    "detaching": (lambda: Lock(NAME), None, "detach"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("how", [*ACQUIRING, *HOLDING, "releasing async"])
@pytest.mark.parametrize("trouble", ["down", "broken", pytest.param("refuses", marks=pytest.mark.complete)])
def test_the_report_of_a_call_that_failed_shows_no_token(
    how: str, trouble: str, own: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These show the local variables of all frames, but neither a token of the site nor the id of an attempt."""
    default = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": {"connection_class": Threads}}}
    settings.CACHES = {**settings.CACHES, "default": default}
    settings.REDISLOCK = {"RETRY_FOR": 0}
    ids: list[str] = []
    draw = secrets.token_urlsafe

    def noted(size: int) -> str:
        text = draw(size)
        if size == 16:  # other sizes are not ids of attempts
            ids.append(text)
        return text

    def fail() -> None:
        if trouble == "down":
            own.stop()
        elif trouble == "broken":
            monkeypatch.setattr(Threads, "broken", True)
        else:
            with own.client() as client:
                client.acl_setuser("default", enabled=True, commands=["-eval", "-evalsha"])

    def report_of(action: Callable[[], object]) -> str:
        with pytest.raises(LockUnavailable) as caught:
            action()
        return unescape(ExceptionReporter(request, caught.type, caught.value, caught.tb).get_traceback_html())

    monkeypatch.setattr(secrets, "token_urlsafe", noted)
    if how in ACQUIRING:
        fail()
        html = report_of(ACQUIRING[how])
    elif how in HOLDING:
        make, token, method = HOLDING[how]
        lock = make()
        assert lock.acquire(token=token)
        fail()
        html = report_of(getattr(lock, method))
    else:
        html = report_of(lambda: async_to_sync(arelease)(fail))
    assert "<td>command</td>" in html or how in HOLDING
    assert NAME in html
    assert [token for token in (TOKEN, TEXT, *ids) if token in html] == []
