"""Streaming responses: ``locked_view`` holds the lock until the content ends or the response is closed."""
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

import asyncio
import gc
import http.client
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import redis
from asgiref.sync import sync_to_async
from django.core.signals import request_finished
from django.db import close_old_connections
from django.http import HttpRequest, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory

from django_redislock import Lock, LockError, LockLost, aforce_release, alist_locks, list_locks, locked_view
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Other, auntil, until
from tests.helpers.databases import Account
from tests.helpers.proxy import Proxy
from tests.helpers.servers import LEFT_OPEN, Web, lock_names
from tests.helpers.state import outlives
from tests.inside import RELEASE

pytestmark = [
    LEFT_OPEN,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),
    pytest.mark.django_db,  # closing a response closes old database connections
]


async def start_async_stream(query: str = "") -> Any:
    return await site.async_stream(AsyncRequestFactory().get(f"/{query}"), pk=1)


async def read(response: Any) -> list[Any]:
    return [part async for part in response]


def test_a_stream_keeps_the_lock_until_it_ends_and_no_longer(account: Account, web: Web) -> None:
    for name in site.STREAMS:
        site.ends.clear()
        account.options["ATOMIC_REQUESTS"] = name != "async-stream"
        response = web.get(f"/{name}/1/")
        assert (name, list_locks()) == (name, [])
        assert (name, response.status, response.body) == (name, 200, b"account:1;account:1;")
        assert (name, site.ends) == (name, ["account:1"])
    account.options["ATOMIC_REQUESTS"] = False
    for path, method, start in [
        *[(f"/{name}/1/?raise", "GET", None) for name in ("stream", "async-stream")],
        *[(f"/{name}/1/", "HEAD", b"") for name in ("stream", "async-stream")],
        ("/file/1/", "GET", b'"""'),
        ("/list/1/", "GET", b"ab"),
    ]:
        with suppress(http.client.HTTPException, ZeroDivisionError) if start is None else nullcontext():
            reply = web.get(path, method=method)
            assert start is None or (reply.status == 200 and reply.body.startswith(start))
        until(lambda: not list_locks())


def again() -> bytes:
    """What the content does while it holds the lock of its view."""
    with Lock("again", reentrant=True, blocking_timeout=0) as lock:
        assert lock.owned()
    with pytest.raises(LockError, match="would wait for itself"):
        Lock("again").acquire()
    return b"x"


async def stream(content: AsyncIterator[bytes]) -> Any:
    """The response of an async view with this content, which holds the lock ``again``."""

    @locked_view("again")
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(content)

    return await view(AsyncRequestFactory().get("/"))


def test_its_content_is_under_its_lock(other: Callable[[], Other]) -> None:
    view = locked_view("again")(lambda request: StreamingHttpResponse(again() for _ in range(2)))
    content = iter(view(RequestFactory().get("/")))
    assert other()(lambda: next(content)) == b"x"  # a server may read the content in any thread
    # a thread that does something else does not hold the lock
    assert not Lock("again", reentrant=True).acquire(blocking=False)
    assert list(content) == [b"x"]
    assert list_locks() == []


async def test_its_async_content_is_under_its_lock() -> None:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(2):
            async with Lock("again", reentrant=True) as lock:
                assert await lock.aowned()
            yield await sync_to_async(again)()

    response = await stream(content())
    async for part in response:
        assert part == b"x"
        assert not await Lock("again", reentrant=True).aacquire(blocking=False)
    assert await alist_locks() == []


@pytest.mark.parametrize("end", ["the response", "the content"])
def test_its_content_cleans_up_under_its_lock_when_the_client_hangs_up(end: str) -> None:
    ends = []

    def content() -> Iterator[bytes]:
        try:
            yield b"x"
        finally:
            ends.append(again())

    response: Any = locked_view("again")(lambda request: StreamingHttpResponse(content()))(RequestFactory().get("/"))
    assert next(iter(response)) == b"x"
    (response if end == "the response" else response._iterator).close()
    assert (ends, list_locks()) == ([b"x"], [])


async def test_its_async_content_cleans_up_under_its_lock(client: redis.Redis) -> None:
    ends = []

    async def content() -> AsyncIterator[bytes]:
        try:
            yield b"x"
        finally:
            ends.append(await sync_to_async(again)())

    response = await stream(content())
    assert await anext(response._iterator) == b"x"
    await response._iterator.aclose()
    assert ends == [b"x"]
    await auntil(lambda: not lock_names(client))


async def test_async_content_that_is_left_at_a_yield_can_enter_the_lock_to_clean_up() -> None:
    before, ends = [], []

    async def content() -> AsyncIterator[bytes]:
        try:
            yield b"x"
        finally:
            before.append(await site.anames())
            async with Lock("again", reentrant=True, blocking_timeout=GENEROUS) as lock:
                ends.append(await lock.aowned())

    left: Any = content()
    response = await stream(left)
    assert await anext(response._iterator) == b"x"
    await sync_to_async(response.close)()
    await left.aclose()  # as Python does some time later
    assert (before, ends) == ([""], [True])


def test_a_stream_that_is_closed_unread_or_interrupted_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(site.gates, "here", Mock(side_effect=KeyboardInterrupt))
    file: Any = site.file(RequestFactory().get("/"), pk=1)
    assert file.file_to_stream is not None
    assert site.names() == "account:1"
    file.close()
    site.stream(RequestFactory().get("/"), pk=1).close()
    assert (list_locks(), site.ends) == ([], [])
    with pytest.raises(KeyboardInterrupt):
        b"".join(site.stream(RequestFactory().get("/?gate=here"), pk=1))
    assert (list_locks(), site.ends) == ([], ["account:1"])


@pytest.mark.complete
def test_a_stream_keeps_the_lock_while_it_is_alive_and_no_longer() -> None:
    responses = [site.short_stream(RequestFactory().get("/"), pk=1), site.stream(RequestFactory().get("/"), pk=2)]
    until(lambda: outlives(3, "account:1"))
    responses.clear()
    gc.collect()
    until(lambda: not list_locks())  # the second one was not left to its TTL


@pytest.fixture
def connections_stay_open() -> Iterator[None]:
    """The end of a request closes no database connection: one that is left open cannot be closed in an event loop."""
    request_finished.disconnect(close_old_connections)  # as Django's test client does
    yield
    request_finished.connect(close_old_connections)


@pytest.mark.usefixtures("connections_stay_open")
async def test_a_stream_closed_in_an_event_loop_does_not_block_it(network: Proxy, client: Any, caplog: Any) -> None:
    response = await sync_to_async(site.stream)(RequestFactory().get("/"), pk=1)
    held_up = network.hold_request(RELEASE)
    response.close()
    assert (lock_names(client), caplog.text) == (["account:1"], "")  # Redis was not waited for
    held_up.let_go()
    assert await Lock("account:1").aacquire(blocking_timeout=GENEROUS)


@pytest.mark.parametrize("query", ["", "?raise"])
async def test_an_async_stream_that_has_ended_has_released(query: str, heard: Any) -> None:
    response = await start_async_stream(query)
    with pytest.raises(ZeroDivisionError) if query else nullcontext():
        assert await read(response) == [b"account:1;"] * 2
    assert await site.anames() == ""
    await sync_to_async(response.close)()
    assert [which for which, _ in heard] == ["acquired", "released"]


async def test_a_stream_that_is_cancelled_at_its_end_releases(network: Proxy, client: Any) -> None:
    held_up = network.hold_request(RELEASE)
    reading = asyncio.ensure_future(read(await start_async_stream()))
    await auntil(held_up.caught.is_set)
    reading.cancel()
    held_up.let_go()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await auntil(lambda: not lock_names(client))


@pytest.mark.parametrize("on_lost", [None, "cancel"])
async def test_a_stream_that_has_lost_its_lock_goes_on_but_does_not_begin(on_lost: Any, heard: Any) -> None:
    async def lose() -> None:
        heard.clear()
        await aforce_release("account:1")
        await auntil(lambda: "lost" in [which for which, _ in heard])
        await asyncio.sleep(0)  # a cancellation would come now

    @locked_view("account:1", on_lost=on_lost)
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        if "lose" in request.GET:
            await lose()
        return StreamingHttpResponse(site.aparts(request))

    response: Any = await view(AsyncRequestFactory().get("/"))
    await lose()
    assert await read(response) == [b";"] * 2
    with pytest.raises(LockLost):
        await view(AsyncRequestFactory().get("/?lose"))


async def test_a_task_is_still_cancelled_whose_own_block_a_stream_has_entered_again() -> None:
    @locked_view("account:1", reentrant=True)
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(site.aparts(request))

    responses: list[Any] = []

    async def hold() -> None:
        async with Lock("account:1", on_lost="cancel", reentrant=True):
            responses.append(await view(AsyncRequestFactory().get("/")))
            await aforce_release("account:1")
            await asyncio.sleep(GENEROUS)  # until it is cancelled

    with pytest.raises(LockLost):
        await hold()
    assert await read(responses[0]) == [b";"] * 2


async def test_an_async_iterator_of_a_sync_view_that_cannot_be_closed_works() -> None:
    numbers = MagicMock(spec=AsyncIterator, **{"__aiter__.return_value": [b"x", b"x"]})
    view = locked_view("numbers")(lambda request: StreamingHttpResponse(numbers))
    response = await sync_to_async(view)(RequestFactory().get("/"))
    assert await site.anames() == "numbers"
    assert await read(response) == [b"x", b"x"]
    assert await alist_locks() == []
