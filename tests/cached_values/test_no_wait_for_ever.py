"""Nobody waits for ever for a computation: not if it needs the waiter's thread, and not if it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.cache import caches

import django_redislock
from django_redislock import LockError, alocked_get_or_set, force_release, locked_get_or_set
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.bridges import in_any_thread, in_thread, to_thread
from tests.helpers.interrupts import Interrupt, Interrupter
from tests.inside import finalize, joins_at_the_end, limit, values_under_way, waiting_for_values

from .conftest import NAME, Computing, Value

Eventually = Callable[..., Any]
Main = Callable[[], Awaitable[Any]]

PATIENCE = 2  # seconds of who would wait for ever without


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look more often than once a second."""
    limit(monkeypatch, value_look=0.05)


# -- the waiter sits in the thread that the computation needs ---------------------------------------------------------


def by_run(main: Main) -> Any:
    """Run it as a management command would."""
    return asyncio.run(asyncio.wait_for(main(), GENEROUS))


def by_async_to_sync(main: Main) -> Any:
    """Run it as WSGI runs an async view."""

    async def view() -> Any:
        return await asyncio.wait_for(main(), GENEROUS)

    return async_to_sync(view)()


def by_request(main: Main) -> Any:
    """Run it as ASGI does: with a thread for each request."""

    async def request() -> Any:
        async with ThreadSensitiveContext():
            return await asyncio.wait_for(main(), GENEROUS)

    return asyncio.run(request())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


RUNS = pytest.mark.parametrize("run", [by_run, by_async_to_sync, by_request])


@RUNS
@pytest.mark.parametrize("alias", ["ours", "locmem"])
@pytest.mark.parametrize("bridge", [in_thread, in_any_thread, to_thread])
def test_sync_code_does_not_wait_for_a_coroutine_that_needs_its_thread(
    run: Callable[[Main], Any], alias: str, bridge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The one thread for sync code, or the only one of the loop, waits for the value."""
    sync = Value("of sync code", using=alias, blocking_timeout=PATIENCE)

    async def compute() -> Any:
        await until(lambda: waiting_for_values() or sync.calls)
        await (sync_to_async(int)() if bridge is in_thread else asyncio.to_thread(int))
        return "of the coroutine"

    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using=alias))
        await until(values_under_way)
        return await asyncio.gather(leads, bridge(sync.get))

    assert run(main) == ["of sync code"] * 2
    assert "event=computed-twice key=x" in caplog.text


@RUNS
def test_a_coroutine_and_sync_code_that_begin_together_both_end(run: Callable[[Main], Any]) -> None:
    value = Value()

    async def plain() -> Any:
        return await alocked_get_or_set("x", value.compute, using="ours")

    async def main() -> Any:
        return await asyncio.gather(plain(), sync_to_async(value.get)(), plain())

    assert run(main) == ["computed"] * 3


def test_sync_code_that_begins_before_its_task_waits_for_it_does_not_wait_for_ever_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread may start at once, and the thread of the event loop continue later."""
    limit(monkeypatch, launching_within=0.05)
    sync = Value("of sync code", using="locmem", blocking_timeout=PATIENCE)

    async def compute() -> Any:
        await until(lambda: waiting_for_values() or sync.calls)
        return await sync_to_async(lambda: "of the coroutine")()

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using="locmem"))
        await until(values_under_way)
        in_executor = loop.run_in_executor

        def begin(*args: Any) -> Any:
            future = in_executor(*args)
            while not (waiting_for_values() or future.done()):
                sleep(0.001)
            return future

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "run_in_executor", begin)
            waiting = asyncio.ensure_future(sync_to_async(sync.get)())
            await asyncio.sleep(0)
        return await asyncio.gather(leads, waiting)

    assert by_run(main) == ["of sync code"] * 2


def test_sync_code_of_another_thread_waits_for_a_coroutine_however_long(
    other: Callable[[], Other], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_look=0.001)
    tasks, value, late = Crowd(tasks=True), Value("theirs", held_up=True), Value("never")
    try:
        leads = tasks().start(value, "get")
        assert value.called.wait(GENEROUS)
        turn = other().start(late.get)
        eventually(waiting_for_values)
        begun = monotonic()
        eventually(lambda: turn.done() or monotonic() > begun + 0.2)  # many looks later
        value.go.set()
        assert [leads.result(GENEROUS), turn.result(GENEROUS)] == ["theirs"] * 2
    finally:
        value.go.set()
        tasks.close()


async def test_sync_code_in_a_coroutine_waits_for_one_who_computes_where_django_allows_it(
    computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    def let_go() -> None:
        while not waiting_for_values():
            sleep(0.001)
        value.go.set()

    with computing() as value, ThreadPoolExecutor(1) as threads:
        threads.submit(let_go)
        assert Value("never").get() == "theirs"


# -- the one that computes is gone ------------------------------------------------------------------------------------


@pytest.fixture
def closed_over(settings: Any) -> Iterator[Callable[[], None]]:
    """A task computes the value; when called, close its event loop."""
    settings.REDISLOCK = {"TTL": 0.5}
    value, loop = Value("never", held_up=True), asyncio.new_event_loop()
    computes = loop.create_task(value.aget())
    loop.run_until_complete(until(value.called.is_set))

    def close() -> None:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    yield close
    computes._log_destroy_pending = False  # type: ignore[attr-defined]
    computes.get_coro().close()  # else it would end in the midst of a later test


@pytest.mark.parametrize("before", [True, False], ids=["waits already", "comes later"])
def test_if_the_loop_of_the_computing_coroutine_is_closed_the_next_caller_tries(
    before: bool, closed_over: Callable[[], None], me: Any, eventually: Eventually
) -> None:
    second = Value("second", blocking_timeout=GENEROUS / 2)
    if not before:
        closed_over()
    turn = me.start(second, "get")
    if before:
        eventually(waiting_for_values)
        closed_over()
    assert turn.result(GENEROUS) == "second"


def test_when_the_lease_of_the_one_that_computes_is_gone_the_others_ask(
    crowd: Crowd, computing: Computing, eventually: Eventually
) -> None:
    """If it hangs and somebody has force-released its lock, others may compute, in this process as in others."""
    late = Value("second", blocking_timeout=PATIENCE)
    with computing() as value:
        turns = [crowd().start(late, "get") for _ in range(3)]
        eventually(lambda: waiting_for_values() == 3)
        assert force_release(NAME)
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
        assert crowd()(late, "get") == "second"
        assert (value.calls, late.calls) == (1, 1)


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
    waits, cache = other(), caches["default"]

    def get(key: str) -> None:
        locked_get_or_set(key, lambda: 1)

    get("warm-up")
    places = Interrupter(lambda file: file.startswith(ours))
    places.run(lambda: get("counted"))
    assert places.places > 50
    for place in range(places.places):
        key = f"key-{place}"
        with suppress(Interrupt):
            Interrupter(lambda file: file.startswith(ours), place).run(partial(get, key))
        cache.delete(key)
        waits(partial(get, key))


# -- finalizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["y", "x"], ids=["another value", "the same"])
@pytest.mark.parametrize("moment", ["computes", "locks"])
def test_a_finalizer_may_want_a_value_while_its_thread_asks_for_one(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch, key: str, moment: str
) -> None:
    """The garbage collection runs wherever objects are made."""
    value, finalizers = Value(), Value("of the finalizer", key=key, blocking_timeout=PATIENCE)
    got: Future[Any] = Future()

    def collect() -> None:
        try:
            got.set_result(finalizers.get())
        except LockError as error:
            got.set_exception(error)

    finalize(monkeypatch, moment, collect)
    assert other()(value.get) == ("computed" if key == "y" else "of the finalizer")
    assert got.result(0) == "of the finalizer"
