"""A Redis that is away for a moment: what is tried again, for how long, and what a failed release leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable, locked_view
from redisserver import RedisServer

from .actors import GENEROUS, NAME, holder
from .proxy import Proxy, proxy

RetryFor = Callable[[float], None]

OPERATIONS: dict[str, tuple[bool, Callable[[Lock], object]]] = {  # whether it is held before
    "acquire": (False, lambda lock: lock.acquire()),
    "extend": (True, lambda lock: lock.extend(5)),
    "reacquire": (True, lambda lock: lock.reacquire()),
    "release": (True, lambda lock: lock.release()),
}


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Any:
    """The default alias leads through a proxy that can be cut."""
    with proxy(server.port) as running:
        default = {**settings.CACHES["default"], "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield running


def mend_when_refused(network: Proxy, times: int) -> threading.Thread:
    """Let connections pass again when so many were refused."""

    def watch() -> None:
        while network.refused < times:
            threading.Event().wait(0.001)
        network.mend()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("what", OPERATIONS)
def test_an_operation_goes_on_after_a_hiccup(what: str, network: Proxy, retry_for: RetryFor) -> None:
    retry_for(20)
    held, operation = OPERATIONS[what]
    lock = Lock(NAME)
    if held:
        lock.acquire()
    network.cut()
    watching = mend_when_refused(network, 4)
    operation(lock)
    watching.join(GENEROUS)
    assert network.refused >= 4


@pytest.mark.parametrize("what", OPERATIONS)
def test_an_operation_gives_up_after_the_time_that_is_set(what: str, network: Proxy, retry_for: RetryFor) -> None:
    held, operation = OPERATIONS[what]
    lock = Lock(NAME, auto_renew=False)
    if held:
        lock.acquire()
    network.cut()
    for bound in (0.3, 1.2):
        retry_for(bound)
        begin = monotonic()
        with pytest.raises(LockUnavailable, match="cannot be reached"):
            operation(lock)
        assert bound / 2 < monotonic() - begin < bound + 1  # no delay is longer than a quarter of a second


@pytest.mark.parametrize("what", OPERATIONS)
def test_without_retries_only_a_stale_connection_is_made_anew(what: str, network: Proxy, retry_for: RetryFor) -> None:
    retry_for(0)
    held, operation = OPERATIONS[what]
    lock = Lock(NAME, auto_renew=False)
    if held:
        lock.acquire()
    network.cut()
    network.refused = 0
    with pytest.raises(LockUnavailable):
        operation(lock)
    assert network.refused <= 2
    network.mend()
    operation(lock)
    with Lock("another"):
        network.cut()
        network.mend()  # what idles is stale now


def test_a_failed_release_says_how_long_the_lock_will_stand_and_can_be_tried_again(
    kind: type[Lock], network: Proxy, retry_for: RetryFor, client: redis.Redis
) -> None:
    retry_for(0.1)
    lock = kind(NAME, ttl=20)
    lock.acquire()
    token = lock.token
    network.cut()
    with pytest.raises(
        LockUnavailable, match=r"not released: unless tried again, it stands for 1\d\.\d s\.$"
    ) as caught:
        lock.release()
    assert caught.value.stands_for == pytest.approx(lock.remaining(), abs=0.5)
    assert 15 < caught.value.stands_for < 20
    assert caught.value.name == NAME
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert lock.token == token
    network.mend()
    lock.release()
    assert lock.token is None
    assert holder(client) == ""


async def test_a_failed_release_of_a_coroutine_can_be_tried_again(
    kind: type[Lock], network: Proxy, retry_for: RetryFor, client: redis.Redis
) -> None:
    retry_for(0.1)
    lock = kind(NAME, ttl=20)
    await lock.aacquire()
    network.cut()
    with pytest.raises(LockUnavailable, match="not released") as caught:
        await lock.arelease()
    assert 15 < caught.value.stands_for < 20
    network.mend()
    await lock.arelease()
    assert holder(client) == ""


def test_a_block_whose_release_failed_leaves_the_lock_to_be_released(
    network: Proxy, retry_for: RetryFor, client: redis.Redis
) -> None:
    retry_for(0.1)
    lock = Lock(NAME)
    with pytest.raises(LockUnavailable) as caught, lock:
        network.cut()
    assert caught.value.stands_for > 15
    network.mend()
    lock.release()
    assert holder(client) == ""


async def test_an_async_block_whose_release_failed_leaves_the_lock_to_be_released(
    network: Proxy, retry_for: RetryFor, client: redis.Redis
) -> None:
    retry_for(0.1)
    lock = Lock(NAME)
    with pytest.raises(LockUnavailable) as caught:
        async with lock:
            network.cut()
    assert caught.value.stands_for > 15
    network.mend()
    await lock.arelease()
    assert holder(client) == ""


def test_a_block_that_failed_by_itself_logs_how_long_the_lock_will_stand(
    network: Proxy, retry_for: RetryFor, caplog: pytest.LogCaptureFixture
) -> None:
    retry_for(0.1)

    def section() -> None:
        with Lock(NAME):
            network.cut()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        section()
    (line,) = [text for text in caplog.messages if text.startswith("event=not-released ")]
    left = float(line.rpartition("stands_for=")[2])
    assert 15 < left < 30


def test_a_view_whose_release_failed_logs_how_long_the_lock_will_stand(
    network: Proxy, retry_for: RetryFor, caplog: pytest.LogCaptureFixture, rf: Any
) -> None:
    retry_for(0.1)

    @locked_view(NAME)
    def view(request: Any) -> str:
        network.cut()
        return "done"

    assert view(rf.get("/")) == "done"
    (line,) = [text for text in caplog.messages if text.startswith("event=not-released ")]
    assert 15 < float(line.rpartition("stands_for=")[2]) < 30
    network.mend()


def test_an_error_that_is_not_about_a_release_knows_nothing_of_a_lease(network: Proxy, retry_for: RetryFor) -> None:
    retry_for(0)
    network.cut()
    with pytest.raises(LockUnavailable) as caught:
        Lock(NAME).acquire()
    assert caught.value.stands_for == 0.0


def test_a_lock_that_has_ended_stands_no_more(network: Proxy, retry_for: RetryFor) -> None:
    retry_for(0.5)
    lock = Lock(NAME, ttl=0.2, auto_renew=False)
    lock.acquire()
    network.cut()
    with pytest.raises(LockUnavailable, match=r"stands for 0\.0 s") as caught:
        lock.release()
    assert caught.value.stands_for == 0.0


async def test_coroutines_do_not_stand_still_while_one_tries_again(network: Proxy, retry_for: RetryFor) -> None:
    retry_for(0.5)
    network.cut()
    trying = asyncio.create_task(Lock(NAME).aacquire())
    turns = 0
    while not trying.done():
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(LockUnavailable):
        await trying
    assert turns > 20
