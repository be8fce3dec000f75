"""Whichever way asyncio or Django ends a coroutine, the lock is released and the queue is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redislock import Lock, locked_view
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.cancelling import TTL, auntil, auntil_done_or, got_in_turn, nothing_left, section
from tests.helpers.state import NAME, holder, queued

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


async def hold() -> None:
    async with Lock(NAME, ttl=TTL):
        await asyncio.sleep(GENEROUS)


# -- ways to end it, once ``gone`` is set ------------------------------------------------------------------------------


async def by_wait_for(gone: asyncio.Event) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(hold(), 0.5)


async def by_cancelling_the_task_that_awaits_it(gone: asyncio.Event) -> None:
    async def awaits() -> None:
        await hold()

    task = asyncio.create_task(awaits())
    await gone.wait()
    task.cancel()
    await asyncio.wait([task])


async def by_cancelling_what_a_failed_gather_has_left(gone: asyncio.Event) -> None:
    async def fail() -> None:
        await gone.wait()
        raise ZeroDivisionError

    task = asyncio.create_task(hold())
    with suppress(ZeroDivisionError):
        await asyncio.gather(fail(), task)
    task.cancel()
    await asyncio.wait([task])


WAYS: list[Callable[[asyncio.Event], Awaitable[None]]] = [
    by_wait_for,
    by_cancelling_the_task_that_awaits_it,
    by_cancelling_what_a_failed_gather_has_left,
]
if sys.version_info >= (3, 11):

    async def by_timeout(gone: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await hold()

    async def by_a_failure_in_its_group(gone: asyncio.Event) -> None:
        async def fail() -> None:
            await gone.wait()
            raise ZeroDivisionError

        with suppress(Exception):  # an ExceptionGroup
            async with asyncio.TaskGroup() as group:
                group.create_task(hold())
                group.create_task(fail())

    WAYS += [by_timeout, by_a_failure_in_its_group]


# -- a request whose client goes away ----------------------------------------------------------------------------------


async def plain_view(request: HttpRequest) -> HttpResponse:
    await hold()
    return HttpResponse()


@locked_view(NAME, ttl=TTL, blocking_timeout=GENEROUS)
async def decorated_view(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(GENEROUS)
    return HttpResponse()


urlpatterns = [path("plain", plain_view), path("decorated", decorated_view)]


def by_client_of(path: str) -> Callable[[asyncio.Event], Awaitable[None]]:
    async def by_client(gone: asyncio.Event) -> None:
        body = [{"type": "http.request"}]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        await ASGIHandler()(scope, receive, send)
        assert sent == []

    by_client.__name__ = f"by_client_of_{path[1:]}"
    return by_client


WAYS += [by_client_of("/plain"), by_client_of("/decorated")]


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "holds"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_whoever_is_made_to_give_up_leaves_neither_lock_nor_place(
    way: Callable[[asyncio.Event], Awaitable[None]],
    waits: bool,
    client: redis.Redis,
    other: Callable[[], Other],
    settings: Any,
) -> None:
    settings.ROOT_URLCONF = __name__
    thread, held, behind, gone = other(), Lock(NAME, ttl=TTL), other(), asyncio.Event()
    if waits:
        thread(held.acquire)
    ending = asyncio.ensure_future(way(gone))
    await auntil_done_or(ending, lambda: queued(client) if waits else holder(client))
    bystander = behind.start(got_in_turn)
    await auntil(lambda: bystander.done() or queued(client))
    gone.set()
    await ending
    if waits:
        assert not bystander.done()
        thread(held.release)
    assert await asyncio.wrap_future(bystander)
    await section(Lock(NAME, ttl=TTL))  # and the task goes on
    await nothing_left(client)
