"""Django's error reports, on the debug page and in mails, show the local variables of all frames, but no token."""

from __future__ import annotations

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

from django_redislock import Lock, LockUnavailable, locked, locked_atomic, locked_view
from redisserver import RedisServer
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

    breaking = {"down": own.stop, "broken": lambda: monkeypatch.setattr(Broken, "now", True), "refuses": refuse}
    return breaking[request.param]


@pytest.fixture
def shows_no_token(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], str]:
    """Django's report of the LockUnavailable that this raises. Neither a token of the site nor the id of an attempt may
    be in it."""
    ids: list[str] = []
    draw = secrets.token_urlsafe

    def noted(size: int) -> str:
        text = draw(size)
        if size == 16:  # other sizes are not ids of attempts
            ids.append(text)
        return text

    def report_of(action: Callable[[], object]) -> str:
        with pytest.raises(LockUnavailable) as caught:
            action()
        return unescape(ExceptionReporter(request, caught.type, caught.value, caught.tb).get_traceback_html())

    def shows_no_token(action: Callable[[], object]) -> str:
        html = report_of(action)  # without the frame of this function, which knows tokens
        assert NAME in html
        assert [token for token in (TOKEN, TEXT, *ids) if token in html] == []
        return html

    monkeypatch.setattr(secrets, "token_urlsafe", noted)
    return shows_no_token


@locked_view(NAME, token=TOKEN)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@locked(NAME, token=TOKEN)
def work() -> None: ...


def redis_pys() -> Any:
    return redis_py_lock(NAME, timeout=60)


ACQUIRING: dict[str, Callable[[], object]] = {
    "an id": lambda: Lock(NAME).acquire(),
    "a token": lambda: Lock(NAME).acquire(token=TOKEN),
    "async": lambda: async_to_sync(Lock(NAME).aacquire)(token=TOKEN),
    "adopting": lambda: Lock(NAME, token=TOKEN, adopt=True).acquire(),
    "polling": lambda: Lock(NAME, token=TOKEN, poll=True).acquire(),
    "with": lambda: Lock(NAME, token=TOKEN).__enter__(),
    "an async view": lambda: async_to_sync(aview)(request),
    "a function": work,
    "a transaction": lambda: locked_atomic(NAME, token=TOKEN).__enter__(),
    "redis-py's": lambda: redis_pys().acquire(token=TEXT),
}


@pytest.mark.complete
@pytest.mark.django_db
@pytest.mark.parametrize("acquire", ACQUIRING.values(), ids=ACQUIRING)
def test_the_report_of_a_lock_that_could_not_be_acquired_shows_no_token(
    acquire: Callable[[], object], fail: Callable[[], None], shows_no_token: Callable[..., str]
) -> None:
    fail()
    html = shows_no_token(acquire)
    assert "<td>command</td>" in html
    assert "EVALSHA" in html


USING: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "a token": (lambda: Lock(NAME), TOKEN, "release"),
    "the lock's token": (lambda: Lock(NAME, token=TOKEN), None, "release"),
    "redis-py's": (redis_pys, TEXT, "release"),
    "renewing redis-py's": (redis_pys, TEXT, "reacquire"),
    "detaching": (lambda: Lock(NAME), None, "detach"),
}


@pytest.mark.parametrize(("make", "token", "method"), USING.values(), ids=USING)
def test_the_report_of_a_lock_that_could_not_be_released_or_renewed_shows_no_token(
    make: Callable[[], Any], token: str | None, method: str,
    fail: Callable[[], None], shows_no_token: Callable[..., str],
) -> None:  # fmt: skip
    lock = make()
    assert lock.acquire(token=token)
    fail()
    shows_no_token(getattr(lock, method))
