"""Nobody waits for ever for a computation: not if it needs the waiter's thread, and not if it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.cache import caches

import django_redislock
from django_redislock import alocked_get_or_set, locked_get_or_set
from tests.helpers.actors import GENEROUS, Crowd, Other, in_any_thread, in_thread, to_thread
from tests.helpers.cancelling import Interrupt, Interrupter
from tests.inside import joins_at_the_end, limit, values_under_way, waiting_for_values

from .conftest import Value

Eventually = Callable[..., Any]
Main = Callable[[], Awaitable[Any]]

PATIENCE = 2  # seconds of who would wait for ever without


def by_wsgi(main: Main) -> Any:
    """As an async view is run there."""

    async def view() -> Any:
        return await asyncio.wait_for(main(), GENEROUS)

    return async_to_sync(view)()


def by_asgi(main: Main) -> Any:
    """With a thread for each request."""

    async def request() -> Any:
        async with ThreadSensitiveContext():
            return await asyncio.wait_for(main(), GENEROUS)

    return asyncio.run(request())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("run", [by_wsgi, by_asgi])
@pytest.mark.parametrize("bridge", [in_thread, in_any_thread, to_thread])
def test_sync_code_does_not_wait_for_a_coroutine_that_needs_its_thread(
    run: Callable[[Main], Any], bridge: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thread for sync code, or the only one of the loop, waits for the value."""
    limit(monkeypatch, value_look=0.05)
    sync = Value("of sync code", blocking_timeout=PATIENCE)

    async def compute() -> Any:
        await until(lambda: waiting_for_values() or sync.calls)
        await (sync_to_async(int)() if bridge is in_thread else asyncio.to_thread(int))
        return "of the coroutine"

    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using="ours"))
        await until(values_under_way)
        return await asyncio.gather(leads, bridge(sync.get))

    assert run(main) == ["of sync code"] * 2
    assert "event=computed-twice key=x" in caplog.text


def test_if_the_loop_of_the_computing_coroutine_is_closed_the_next_caller_tries(
    crowd: Crowd, eventually: Eventually, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_look=0.05)
    settings.REDISLOCK = {"TTL": 0.5}
    value, second = Value("never", held_up=True), Value("second", blocking_timeout=GENEROUS / 2)
    loop = asyncio.new_event_loop()
    computes = loop.create_task(value.aget())
    loop.run_until_complete(until(value.called.is_set))
    turns = [crowd().start(second, "get")]
    eventually(waiting_for_values)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    turns.append(crowd().start(second, "get"))
    assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 2
    computes._log_destroy_pending = False  # type: ignore[attr-defined]
    computes.get_coro().close()  # else it would end in the midst of a later test


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_caller_that_joins_at_the_moment_of_the_end_does_not_wait(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_look=GENEROUS)
    begun = monotonic()
    assert joins_at_the_end(asynchronous)
    assert monotonic() < begun + GENEROUS / 2


@pytest.mark.complete
def test_a_waiter_for_a_computation_that_is_interrupted_anywhere_computes(other: Callable[[], Other]) -> None:
    """R18: whether before it computes, or when it is about to tell the others that it has ended."""
    ours = str(Path(django_redislock.__file__).parent)
    waits, places = other(), Interrupter(lambda file: file.startswith(ours))
    locked_get_or_set("warm-up", int)
    places.run(lambda: locked_get_or_set("counted", int))
    assert places.places > 50
    for place in range(places.places):
        get = partial(locked_get_or_set, f"key-{place}", int)
        with suppress(Interrupt):
            Interrupter(lambda file: file.startswith(ours), place).run(get)
        caches["default"].delete(f"key-{place}")
        waits(get)
