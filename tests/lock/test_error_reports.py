"""Django's error reports, on the debug page and in mails, show the local variables of all frames, but no token."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from html import unescape
from typing import Any, cast

import pytest
import redis
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.views.debug import ExceptionReporter
from redis.backoff import AbstractBackoff

from django_redislock import Lock, LockUnavailable, locked, locked_atomic, locked_view
from django_redislock.cache_lock import CacheLock
from redisserver import RedisServer
from tests.helpers.actors import Other
from tests.helpers.state import NAME

TOKEN = "a-token-of-the-site-itself"
TEXT = "a text that redis-py takes for a token"
request = RequestFactory().get("/")


class Broken:
    """Connections whose sends fail once ``now`` is set."""

    now = False


class Threads(redis.Connection):
    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if Broken.now:
            cast("socket.socket", self._sock).shutdown(socket.SHUT_WR)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class Coroutines(redis.asyncio.Connection):
    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if Broken.now:
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # type: ignore[union-attr]
        await super().send_packed_command(command, check_health)


Threads.async_class = Coroutines  # type: ignore[attr-defined]


class Second(AbstractBackoff):
    """Does something before the second look at a lock."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.looks = 0

    def compute(self, failures: int) -> float:
        self.looks += 1
        if self.looks == 2:
            self.act()
        return 0.01

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of all attempts that were drawn."""
    found: list[str] = []
    draw = secrets.token_urlsafe

    def noted(size: int) -> str:
        text = draw(size)
        if size == 16:  # other sizes are not ids of attempts
            found.append(text)
        return text

    monkeypatch.setattr(secrets, "token_urlsafe", noted)
    return found


@pytest.fixture(params=["down", "broken", "refuses"])
def fail(
    request: pytest.FixtureRequest, own: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """From now on, Redis is down, or connections break while sending, or Redis refuses the command."""
    keywords = {"connection_class": Threads}
    default = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": keywords}}
    settings.CACHES = {**settings.CACHES, "default": default}
    settings.REDISLOCK = {"RETRY_FOR": 0}

    def refuse() -> None:
        with own.client() as client:
            client.acl_setuser("default", enabled=True, commands=["-eval", "-evalsha"])

    return {
        "down": own.stop,
        "broken": lambda: monkeypatch.setattr(Broken, "now", True),
        "refuses": refuse,
    }[request.param]


def report(action: Callable[[], object]) -> str:
    """Django's report of the LockUnavailable that this raises, without frames of the test, which know tokens."""
    with pytest.raises(LockUnavailable) as caught:
        action()
    reporter = ExceptionReporter(request, caught.type, caught.value, caught.tb)
    html = unescape(reporter.get_traceback_html())
    assert "<td>command</td>" in html
    assert "EVALSHA" in html
    assert NAME in html
    return html


@locked_view(NAME, token=TOKEN)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@locked_view(NAME, token=TOKEN)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@locked(NAME, token=TOKEN)
def work() -> None: ...


def atomic_block() -> None:
    with locked_atomic(NAME, token=TOKEN):
        pass


def block() -> None:
    with Lock(NAME, token=TOKEN):
        pass


async def ablock() -> None:
    async with Lock(NAME, token=TOKEN):
        pass


ACQUIRING: dict[str, Callable[[], object]] = {
    "an id": lambda: Lock(NAME).acquire(),
    "the lock's token": lambda: Lock(NAME, token=TOKEN).acquire(),
    "a token": lambda: Lock(NAME).acquire(token=TOKEN),
    "async": lambda: async_to_sync(Lock(NAME).aacquire)(token=TOKEN),
    "adopting": lambda: Lock(NAME, token=TOKEN, adopt=True).acquire(),
    "polling": lambda: Lock(NAME, token=TOKEN, poll=True).acquire(),
    "seizing": lambda: Lock(NAME).seize(),
    "with": block,
    "async with": lambda: async_to_sync(ablock)(),
    "a view": lambda: view(request),
    "an async view": lambda: async_to_sync(aview)(request),
    "a function": work,
    "a transaction": atomic_block,
    "redis-py's": lambda: CacheLock(NAME, timeout=60).acquire(token=TEXT),
}


@pytest.mark.complete
@pytest.mark.django_db
@pytest.mark.parametrize("acquire", ACQUIRING.values(), ids=ACQUIRING.keys())
def test_the_report_of_a_lock_that_could_not_be_acquired_shows_no_token(
    acquire: Callable[[], object], fail: Callable[[], None], drawn: list[str]
) -> None:
    fail()
    html = report(acquire)
    assert drawn
    assert not [token for token in (TOKEN, TEXT, *drawn) if token in html]


RELEASING: dict[str, tuple[Callable[[], Any], str, str]] = {
    "an id": (lambda: Lock(NAME), "", "release"),
    "a token": (lambda: Lock(NAME), TOKEN, "release"),
    "the lock's token": (lambda: Lock(NAME, token=TOKEN), "", "release"),
    "redis-py's": (lambda: CacheLock(NAME, timeout=60), TEXT, "release"),
    "redis-py's own": (lambda: CacheLock(NAME, timeout=60), "", "release"),
    "renewing": (lambda: Lock(NAME), TOKEN, "reacquire"),
    "renewing redis-py's": (lambda: CacheLock(NAME, timeout=60), TEXT, "reacquire"),
    "detaching": (lambda: Lock(NAME), "", "detach"),
}


@pytest.mark.parametrize(("make", "token", "method"), RELEASING.values(), ids=RELEASING.keys())
def test_the_report_of_a_lock_that_could_not_be_released_or_renewed_shows_no_token(
    make: Callable[[], Any], token: str, method: str, fail: Callable[[], None], drawn: list[str]
) -> None:
    lock = make()
    assert lock.acquire(token=token or None)
    fail()
    html = report(getattr(lock, method))
    assert not [each for each in (TOKEN, TEXT, *drawn) if each in html]


@pytest.mark.parametrize("kind", [Lock, CacheLock])
def test_the_report_shows_no_token_where_another_process_has_acquired_the_lock(
    kind: Any, fail: Callable[[], None], drawn: list[str]
) -> None:
    here: Any = Lock(NAME, token=TOKEN) if kind is Lock else CacheLock(NAME, timeout=60)
    if kind is CacheLock:
        here.local.token = TEXT
    fail()
    html = report(here.release)
    assert not [each for each in (TOKEN, TEXT, *drawn) if each in html]


def test_the_report_shows_no_token_where_a_coroutine_could_not_release_the_lock(
    fail: Callable[[], None], drawn: list[str]
) -> None:
    html = report(lambda: asyncio.run(release_in_vain(fail)))
    assert not [each for each in (TOKEN, *drawn) if each in html]


async def release_in_vain(fail: Callable[[], None]) -> None:
    lock = Lock(NAME)
    assert await lock.aacquire(token=TOKEN)
    fail()
    await lock.arelease()


def test_the_report_of_a_waiter_does_not_show_the_token_of_the_holder(
    fail: Callable[[], None], drawn: list[str], other: Callable[[], Other]
) -> None:
    assert other()(Lock(NAME, token=TOKEN).acquire)
    lock = Lock(NAME, poll=True, backoff=Second(fail), blocking_timeout=1)
    html = report(lock.acquire)
    assert "<td>reply</td>" in html
    assert not [each for each in (TOKEN, *drawn) if each in html]


def test_the_attribute_token_is_plain_text() -> None:
    """It can be pickled, compared and shown like any other string."""
    lock = Lock(NAME)
    assert lock.acquire()
    assert type(lock.token) is str
    assert type(lock.detach()) is str
    assert lock.token is None
    assert type(Lock(NAME, token=TOKEN).token) is str
    assert asyncio.run(detached()) is str
    cache_lock_here = CacheLock("another", timeout=60)
    assert cache_lock_here.acquire()
    assert type(cache_lock_here.local.token) is bytes


async def detached() -> type:
    lock = Lock("yet another")
    assert await lock.aacquire()
    return type(await lock.adetach())
