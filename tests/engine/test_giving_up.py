"""Whichever way asyncio or Django ends a coroutine, the lock is released and the queue is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redislock import Lock, locked_view
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.cancelling import TTL, auntil, got_in_turn, nothing_left, section
from tests.helpers.state import NAME, holder, queued

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")


@pytest.fixture
def busy(other: Callable[[], Other]) -> Iterator[Callable[[], None]]:
    """A thread holds the lock, until this is called."""
    thread, held = other(), Lock(NAME, ttl=TTL)
    thread(held.acquire)

    def let_go() -> None:
        if held_still:
            held_still.pop()
            thread(held.release)

    held_still = [True]
    yield let_go
    let_go()


async def hold(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(GENEROUS)


async def test_a_waiter_that_wait_for_has_given_up_leaves_nothing(
    busy: Callable[[], None], client: redis.Redis, other: Callable[[], Other]
) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(Lock(NAME).aacquire(), 0.05)
    await auntil(lambda: not queued(client))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(section(Lock(NAME, ttl=TTL)), 0.05)
    busy()
    assert await asyncio.wrap_future(other().start(got_in_turn))
    await nothing_left(client)


async def test_the_other_calls_of_a_failed_gather_can_be_cancelled_and_leave_nothing_behind(
    client: redis.Redis,
) -> None:
    async def fail() -> None:
        await auntil(lambda: queued(client) == 2)
        raise ZeroDivisionError

    holders = [asyncio.create_task(hold(Lock(NAME, ttl=TTL))) for _ in range(3)]
    with pytest.raises(ZeroDivisionError):
        await asyncio.gather(fail(), *holders)
    for task in holders:
        task.cancel()
    await asyncio.wait(holders)
    await nothing_left(client)


async def test_a_call_cancelled_with_its_awaiting_task_leaves_its_caller_no_lock(
    busy: Callable[[], None], client: redis.Redis
) -> None:
    lock = Lock(NAME, ttl=TTL)
    waiting = asyncio.create_task(lock.aacquire())
    await auntil(lambda: queued(client))
    waiting.cancel()
    await asyncio.wait([waiting])
    busy()
    await auntil(lambda: not holder(client) and not queued(client))
    assert lock.token is None
    await nothing_left(client)


if sys.version_info >= (3, 11):

    async def test_a_waiter_under_asyncio_timeout_leaves_nothing_and_its_task_goes_on(
        busy: Callable[[], None], client: redis.Redis
    ) -> None:
        lock = Lock(NAME, ttl=TTL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lock.aacquire()
        await auntil(lambda: not queued(client))
        busy()
        async with asyncio.timeout(GENEROUS), lock:
            assert holder(client) == lock.token
        await nothing_left(client)

    async def test_a_section_that_asyncio_timeout_ends_gives_its_lock_back(client: redis.Redis) -> None:
        lock = Lock(NAME, ttl=TTL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), lock:
                await asyncio.sleep(GENEROUS)
        assert holder(client) == ""
        await nothing_left(client)

    async def test_when_one_task_of_a_group_fails_the_others_leave_their_locks_and_their_places(
        client: redis.Redis,
    ) -> None:
        async def fail() -> None:
            await auntil(lambda: queued(client) == 3)
            raise ZeroDivisionError

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                holders.extend(group.create_task(hold(Lock(NAME, ttl=TTL))) for _ in range(4))
                group.create_task(fail())

        holders: list[asyncio.Task[None]] = []
        with pytest.raises(Exception, match="TaskGroup"):
            await together()
        assert all(task.cancelled() for task in holders)
        await nothing_left(client)


# -- a request whose client goes away ----------------------------------------------------------------------------------


async def plain_view(request: HttpRequest) -> HttpResponse:
    async with Lock(NAME, ttl=TTL):
        await asyncio.sleep(GENEROUS)
        return HttpResponse()


@locked_view(NAME, ttl=TTL, blocking_timeout=GENEROUS)
async def decorated_view(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(GENEROUS)
    return HttpResponse()


urlpatterns = [path("plain", plain_view), path("decorated", decorated_view)]


async def ask(path: str, gone: asyncio.Event) -> list[Mapping[str, Any]]:
    """Serve a request whose client disconnects as soon as ``gone`` is set; return what was sent."""
    body = [{"type": "http.request"}]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await ASGIHandler()(scope, receive, send)
    return sent


views = pytest.mark.parametrize("view", ["/plain", "/decorated"])


@views
async def test_a_client_that_goes_away_while_its_request_waits_leaves_no_place_in_the_queue(
    view: str, busy: Callable[[], None], client: redis.Redis, other: Callable[[], Other], settings: Any
) -> None:
    settings.ROOT_URLCONF = __name__
    gone = asyncio.Event()
    request = asyncio.create_task(ask(view, gone))
    await auntil(lambda: queued(client))
    behind = other().start(got_in_turn)
    await auntil(lambda: queued(client) == 2)
    gone.set()
    assert await request == []
    busy()
    assert await asyncio.wrap_future(behind)
    await nothing_left(client)


@views
async def test_a_client_that_goes_away_in_the_section_frees_the_lock(
    view: str, client: redis.Redis, other: Callable[[], Other], settings: Any
) -> None:
    settings.ROOT_URLCONF = __name__
    gone = asyncio.Event()
    request = asyncio.create_task(ask(view, gone))
    await auntil(lambda: holder(client))
    behind = other().start(got_in_turn)
    await auntil(lambda: queued(client))
    gone.set()
    assert await request == []
    assert await asyncio.wrap_future(behind)
    await nothing_left(client)
