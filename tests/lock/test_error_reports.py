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

from django_redislock import Lock, LockUnavailable, locked_atomic, locked_view
from redisserver import RedisServer
from tests.helpers.state import NAME
from tests.inside import redis_py_lock

TOKEN = "a-token-of-the-site-itself"
TEXT = "a text that redis-py takes for a token"
request = RequestFactory().get("/")


class Broken:
    now = False  # whether sends fail


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


@locked_view(NAME, token=TOKEN)
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def arelease(fail: Callable[[], None]) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    fail()
    await lock.arelease()


def redis_pys() -> Any:
    return redis_py_lock(NAME, timeout=60)


ACQUIRING: dict[str, Callable[[], object]] = {
    "a token": lambda: Lock(NAME).acquire(token=TOKEN),
    "async": lambda: async_to_sync(Lock(NAME).aacquire)(token=TOKEN),
    "adopting": lambda: Lock(NAME, token=TOKEN, adopt=True).acquire(),
    "polling": lambda: Lock(NAME, token=TOKEN, poll=True).acquire(),
    "an async view": lambda: async_to_sync(aview)(request),
    "a transaction": lambda: locked_atomic(NAME, token=TOKEN).__enter__(),
    "redis-py's": lambda: redis_pys().acquire(token=TEXT),
    "releasing elsewhere": lambda: Lock(NAME, token=TOKEN).release(),
}
HOLDING: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "releasing": (lambda: Lock(NAME), TOKEN, "release"),
    "releasing by the lock's token": (lambda: Lock(NAME, token=TOKEN), None, "release"),
    "releasing redis-py's": (redis_pys, TEXT, "release"),
    "renewing redis-py's": (redis_pys, TEXT, "reacquire"),
    "detaching": (lambda: Lock(NAME), None, "detach"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("how", [*ACQUIRING, *HOLDING, "releasing async"])
@pytest.mark.parametrize("trouble", ["down", "broken", pytest.param("refuses", marks=pytest.mark.complete)])
def test_the_report_of_a_call_that_failed_shows_no_token(
    how: str, trouble: str, own: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a token of the site nor the id of an attempt."""
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
            monkeypatch.setattr(Broken, "now", True)
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
