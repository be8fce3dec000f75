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
from django_redislock import LockError, alocked_get_or_set, cached_values, force_release, locked_get_or_set
from django_redislock.base.steps import Steps, arun, run
from django_redislock.base.times import NEVER
from django_redislock.cached_values import _Lookup
from django_redislock.computations import Computation
from django_redislock.engine import Acquisition, Frame, current_owner
from django_redislock.engine.messages.waiters import Park
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.bridges import in_any_thread, in_thread, to_thread
from tests.helpers.interrupts import Interrupt, Interrupter

from .conftest import NAME, Computing, Value, under_way

Eventually = Callable[..., Any]
Joined = list[Computation]
Main = Callable[[], Awaitable[Any]]

PATIENCE = 2  # seconds of who would wait for ever without


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look more often than once a second."""
    monkeypatch.setattr(cached_values, "LOOK_EVERY", 0.05)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of sync code for a computation, from one look to the next."""
    waits: list[float] = []
    run = Park.run

    def noted(self: Park) -> None:
        if is_for_one_who_computes(self):
            waits.append(self.seconds or 0.0)
        run(self)

    monkeypatch.setattr(Park, "run", noted)
    return waits


def is_for_one_who_computes(park: Park) -> bool:
    return park.waiter.id == ""  # no attempt to get a lock


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
def test_sync_code_does_not_wait_for_a_coroutine_that_needs_its_thread(
    run: Callable[[Main], Any], alias: str, joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    """The function is called in the one thread for sync code, and that waits for the value."""
    coroutine, sync = Value("of the coroutine", using=alias), Value("of sync code", using=alias)

    async def compute() -> Any:
        await until(lambda: joined)
        return await sync_to_async(coroutine.compute)()

    async def main() -> Any:
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using=alias))
        await until(under_way)
        return await asyncio.gather(leads, in_thread(sync.get))

    assert run(main) == ["of sync code"] * 2
    assert "event=computed-twice key=x" in caplog.text


@RUNS
def test_a_coroutine_and_sync_code_that_begin_together_both_end(run: Callable[[Main], Any]) -> None:
    value = Value()

    async def main() -> Any:
        plain = alocked_get_or_set("x", value.compute, using="ours")
        return await asyncio.gather(plain, sync_to_async(value.get)(), plain_again())

    async def plain_again() -> Any:
        return await alocked_get_or_set("x", value.compute, using="ours")

    assert run(main) == ["computed"] * 3


@pytest.mark.parametrize("bridge", [in_any_thread, to_thread])
def test_sync_code_in_all_threads_of_a_loop_does_not_wait_for_a_coroutine_that_needs_one(
    bridge: Callable[..., Awaitable[Any]], joined: Joined
) -> None:
    one = ThreadPoolExecutor(1)
    sync = Value("of sync code", blocking_timeout=PATIENCE)

    async def compute() -> Any:
        await until(lambda: joined)
        return await asyncio.to_thread(lambda: "of the coroutine")

    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(one)
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using="ours"))
        await until(under_way)
        return await asyncio.gather(leads, bridge(sync.get))

    assert by_run(main) == ["of sync code"] * 2


def test_sync_code_that_begins_before_its_task_waits_for_it_does_not_wait_for_ever_either(
    waits: list[float], joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may start at once, and the thread of the event loop continue later."""
    monkeypatch.setattr(
        "django_redislock.engine.owners.bridges.LAUNCHING_WITHIN", 0.05
    )  # it does so when this one waits
    sync = Value("of sync code", using="locmem", blocking_timeout=PATIENCE)

    async def compute() -> Any:
        await until(lambda: waits)
        return await sync_to_async(lambda: "of the coroutine")()

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        leads = asyncio.create_task(alocked_get_or_set("x", compute, using="locmem"))
        await until(under_way)
        in_executor = loop.run_in_executor

        def begin(*args: Any) -> Any:
            future = in_executor(*args)
            while not (waits or future.done()):
                sleep(0.001)
            return future

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "run_in_executor", begin)
            waiting = asyncio.ensure_future(sync_to_async(sync.get)())
            await asyncio.sleep(0)
        return await asyncio.gather(leads, waiting)

    assert by_run(main) == ["of sync code"] * 2


def test_sync_code_of_another_thread_waits_for_a_coroutine_however_long(
    other: Callable[[], Other], waits: list[float], eventually: Eventually
) -> None:
    tasks, value, late = Crowd(tasks=True), Value("theirs", held_up=True), Value("never")
    try:
        leads = tasks().start(value, "get")
        assert value.called.wait(GENEROUS)
        turn = other().start(late.get)
        eventually(lambda: len(waits) > 5)
        value.go.set()
        assert [leads.result(GENEROUS), turn.result(GENEROUS)] == ["theirs"] * 2
    finally:
        value.go.set()
        tasks.close()


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


def test_if_the_loop_of_the_computing_coroutine_is_closed_the_next_caller_tries(
    closed_over: Callable[[], None], me: Any, joined: Joined, eventually: Eventually
) -> None:
    turn = me.start(Value("second", blocking_timeout=GENEROUS / 2), "get")
    eventually(lambda: joined)
    closed_over()
    assert turn.result(GENEROUS) == "second"


def test_nobody_joins_a_computation_whose_loop_was_closed(closed_over: Callable[[], None], me: Any) -> None:
    closed_over()
    assert me(Value("second", blocking_timeout=GENEROUS / 2), "get") == "second"


def test_when_the_lease_of_the_one_that_computes_is_gone_the_others_ask(
    crowd: Crowd, computing: Computing, joined: Joined, eventually: Eventually
) -> None:
    """If it hangs and somebody has force-released its lock, others may compute, in this process as in others."""
    late = Value("second", blocking_timeout=PATIENCE)
    with computing() as value:
        turns = [crowd().start(late, "get") for _ in range(3)]
        eventually(lambda: len(joined) == 3)
        assert force_release(NAME)
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
        assert crowd()(late, "get") == "second"
        assert (value.calls, late.calls) == (1, 1)


async def test_a_coroutine_that_waits_long_leaves_nothing_behind_at_what_it_waits_for(
    computing: Computing, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float | None] = []
    arun = Park.arun

    async def noted(self: Park) -> None:
        if is_for_one_who_computes(self):
            looks.append(self.seconds)
        await arun(self)

    monkeypatch.setattr(Park, "arun", noted)
    monkeypatch.setattr(cached_values, "LOOK_EVERY", 0.001)
    with computing() as value:
        waits = asyncio.create_task(Value("never").aget())
        await until(lambda: len(looks) > 20)
        (computation,) = joined
        assert len(computation.waiters) == 1
        value.go.set()
        assert await waits == "theirs"
    assert not computation.waiters


@pytest.mark.parametrize("drive", [run, lambda steps: asyncio.run(arun(steps))], ids=["sync", "async"])
def test_a_caller_that_joins_at_the_moment_of_the_end_does_not_wait(
    drive: Callable[[Steps[bool]], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_values, "LOOK_EVERY", GENEROUS)
    frame = Frame()
    computation = Computation(current_owner(), frame)
    computation.end(None)
    lookup = _Lookup(None, "ours", "x", 1, timeout=None, version=None, blocking_timeout=None)
    begun = monotonic()
    assert drive(lookup._wait_for(computation, NEVER))
    assert monotonic() < begun + GENEROUS / 2
    assert not computation.waiters


async def test_sync_code_in_a_coroutine_waits_for_one_who_computes_where_django_allows_it(
    computing: Computing, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    def let_go() -> None:
        while not joined:
            sleep(0.001)
        value.go.set()

    with computing() as value, ThreadPoolExecutor(1) as threads:
        threads.submit(let_go)
        assert Value("never").get() == "theirs"


# -- one who computes is interrupted ----------------------------------------------------------------------------------


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


class Finalized:
    """Calls a function when it is collected."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


@pytest.mark.parametrize(
    ("key", "moment"),
    [("y", Computation), ("x", Computation), ("y", Acquisition), ("x", Acquisition)],
    ids=[
        "another, under the mutex",
        "the same, under the mutex",
        "another, before the lock",
        "the same, before the lock",
    ],
)
def test_a_finalizer_may_want_a_value_while_its_thread_asks_for_one(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch, key: str, moment: type
) -> None:
    """The garbage collection runs wherever objects are made."""
    value, finalizers = Value(), Value("of the finalizer", key=key, blocking_timeout=PATIENCE)
    got: Future[Any] = Future()

    def collect() -> None:
        try:
            got.set_result(finalizers.get())
        except LockError as error:
            got.set_exception(error)

    garbage = [Finalized(collect)]
    make = moment.__init__  # type: ignore[misc]

    def collecting(self: Any, *args: Any, **kwargs: Any) -> None:
        garbage.clear()
        make(self, *args, **kwargs)

    monkeypatch.setattr(moment, "__init__", collecting)
    assert other()(value.get) == ("computed" if key == "y" else "of the finalizer")
    assert got.result(0) == "of the finalizer"
