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
from redisserver import RedisServer
from tests.helpers.actors import Other
from tests.helpers.state import NAME
from tests.inside import redis_py_lock

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


def report_of(action: Callable[[], object]) -> str:
    """Without frames of the test, which know tokens."""
    with pytest.raises(LockUnavailable) as caught:
        action()
    return unescape(ExceptionReporter(request, caught.type, caught.value, caught.tb).get_traceback_html())


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], str]:
    """Django's report of the LockUnavailable that this raises. Neither a token of the site nor the id of an attempt may
    be in it."""
    ids: list[str] = []
    draw = secrets.token_urlsafe

    def noted(size: int) -> str:
        text = draw(size)
        if size == 16:  # other sizes are not ids of attempts
            ids.append(text)
        return text

    def report(action: Callable[[], object]) -> str:
        html = report_of(action)
        assert NAME in html
        assert [token for token in (TOKEN, TEXT, *ids) if token in html] == []
        return html

    monkeypatch.setattr(secrets, "token_urlsafe", noted)
    return report


@locked_view(NAME, token=TOKEN)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@locked_view(NAME, token=TOKEN)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@locked(NAME, token=TOKEN)
def work() -> None: ...


async def ablock() -> None:
    async with Lock(NAME, token=TOKEN):
        pass


def redis_pys() -> Any:
    return redis_py_lock(NAME, timeout=60)


ACQUIRING: dict[str, Callable[[], object]] = {
    "an id": lambda: Lock(NAME).acquire(),
    "the lock's token": lambda: Lock(NAME, token=TOKEN).acquire(),
    "a token": lambda: Lock(NAME).acquire(token=TOKEN),
    "async": lambda: async_to_sync(Lock(NAME).aacquire)(token=TOKEN),
    "adopting": lambda: Lock(NAME, token=TOKEN, adopt=True).acquire(),
    "polling": lambda: Lock(NAME, token=TOKEN, poll=True).acquire(),
    "seizing": lambda: Lock(NAME).seize(),
    "with": lambda: Lock(NAME, token=TOKEN).__enter__(),
    "async with": lambda: async_to_sync(ablock)(),
    "a view": lambda: view(request),
    "an async view": lambda: async_to_sync(aview)(request),
    "a function": work,
    "a transaction": lambda: locked_atomic(NAME, token=TOKEN).__enter__(),
    "redis-py's": lambda: redis_pys().acquire(token=TEXT),
}


@pytest.mark.complete
@pytest.mark.django_db
@pytest.mark.parametrize("acquire", ACQUIRING.values(), ids=ACQUIRING)
def test_the_report_of_a_lock_that_could_not_be_acquired_shows_no_token(
    acquire: Callable[[], object], fail: Callable[[], None], report: Callable[..., str]
) -> None:
    fail()
    html = report(acquire)
    assert "<td>command</td>" in html
    assert "EVALSHA" in html


RELEASING: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "an id": (lambda: Lock(NAME), None, "release"),
    "a token": (lambda: Lock(NAME), TOKEN, "release"),
    "the lock's token": (lambda: Lock(NAME, token=TOKEN), None, "release"),
    "redis-py's": (redis_pys, TEXT, "release"),
    "redis-py's own": (redis_pys, None, "release"),
    "renewing": (lambda: Lock(NAME), TOKEN, "reacquire"),
    "renewing redis-py's": (redis_pys, TEXT, "reacquire"),
    "detaching": (lambda: Lock(NAME), None, "detach"),
}


@pytest.mark.parametrize(("make", "token", "method"), RELEASING.values(), ids=RELEASING)
def test_the_report_of_a_lock_that_could_not_be_released_or_renewed_shows_no_token(
    make: Callable[[], Any], token: str | None, method: str, fail: Callable[[], None], report: Callable[..., str]
) -> None:
    lock = make()
    assert lock.acquire(token=token)
    fail()
    report(getattr(lock, method))


@pytest.mark.parametrize("kind", ["Lock", "redis-py's"])
def test_the_report_shows_no_token_where_another_process_has_acquired_the_lock(
    kind: str, fail: Callable[[], None], report: Callable[..., str]
) -> None:
    here: Any = Lock(NAME, token=TOKEN) if kind == "Lock" else redis_pys()
    if kind != "Lock":
        here.local.token = TEXT
    fail()
    report(here.release)


def test_the_report_shows_no_token_where_a_coroutine_could_not_release_the_lock(
    fail: Callable[[], None], report: Callable[..., str]
) -> None:
    async def release_in_vain() -> None:
        lock = Lock(NAME)
        assert await lock.aacquire(token=token.pop())
        fail()
        await lock.arelease()

    token = [TOKEN]  # which this frame does not know for long
    report(lambda: asyncio.run(release_in_vain()))


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


def test_the_report_of_a_waiter_does_not_show_the_token_of_the_holder(
    fail: Callable[[], None], report: Callable[..., str], other: Callable[[], Other]
) -> None:
    assert other()(Lock(NAME, token=TOKEN).acquire)
    lock = Lock(NAME, poll=True, backoff=Second(fail), blocking_timeout=1)
    assert "<td>reply</td>" in report(lock.acquire)


async def test_the_attribute_token_is_plain_text() -> None:
    """It can be pickled, compared and shown like any other string."""
    lock = Lock(NAME)
    assert await lock.aacquire()
    assert type(lock.token) is str
    assert type(await lock.adetach()) is str
    assert lock.token is None
    assert type(Lock(NAME, token=TOKEN).token) is str

    def of_sync_code() -> None:
        other, ours = Lock("another"), redis_py_lock("another", timeout=60)
        assert other.acquire()
        assert type(other.detach()) is str
        assert ours.acquire()
        assert type(ours.local.token) is bytes

    await asyncio.to_thread(of_sync_code)
