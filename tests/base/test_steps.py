"""The drivers run the same steps in a thread and in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import Lock, LockPool
from django_redislock.base.steps import Call, CallOut, Evaluate, Pause, Steps, arun, run, run_blocking
from tests.helpers.actors import Crowd

Drive = Callable[[Callable[[], Steps[Any]]], Any]


class Echo:
    """Returns what it is given, or raises it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def run(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    async def arun(self) -> Any:
        await asyncio.sleep(0)
        return self.run()


class Driver:
    """``run`` and ``arun`` by names that a person knows."""

    def drive(self, steps: Callable[[], Steps[Any]]) -> Any:
        return run(steps())

    async def adrive(self, steps: Callable[[], Steps[Any]]) -> Any:
        return await arun(steps())

    def attempt(self, steps: Callable[[], Steps[Any]]) -> None:
        with contextlib.suppress(ZeroDivisionError):
            run(steps())

    async def aattempt(self, steps: Callable[[], Steps[Any]]) -> None:
        with contextlib.suppress(ZeroDivisionError):
            await arun(steps())


@pytest.fixture
def drive(crowd: Crowd) -> Drive:
    """Runs steps to their end, in a thread or in a task."""
    me = crowd()
    return lambda steps: me(Driver(), "drive", steps)


# -- the drivers -------------------------------------------------------------------------------------------------------


def test_each_request_sends_back_its_result_and_steps_return_theirs(drive: Drive) -> None:
    def steps() -> Steps[list[Any]]:
        first = yield Echo(1)
        second = yield from inner()
        return [first, second]

    def inner() -> Steps[int]:
        return (yield Echo(2)) + 40  # type: ignore[no-any-return]

    assert drive(steps) == [1, 42]


def test_steps_that_wait_for_nothing_return_at_once(drive: Drive) -> None:
    def steps() -> Steps[str]:
        return "done"
        yield

    assert drive(steps) == "done"


class Interrupt(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("error", [ZeroDivisionError("one"), Interrupt("one")], ids=repr)
def test_what_a_request_raises_is_raised_in_the_steps_which_may_go_on(error: BaseException, drive: Drive) -> None:
    def steps() -> Steps[Any]:
        try:
            yield Echo(error)
        except type(error) as caught:
            return caught, (yield Echo("goes on"))

    caught, after = drive(steps)
    assert caught is error
    assert after == "goes on"


@pytest.mark.parametrize("error", [ZeroDivisionError("two"), asyncio.CancelledError("two")], ids=repr)
def test_what_steps_raise_is_raised_to_the_caller_and_they_have_cleaned_up(error: BaseException, drive: Drive) -> None:
    def steps() -> Steps[None]:
        try:
            yield Echo(error)
        finally:
            cleaned.append((yield Echo("cleaned")))

    cleaned: list[str] = []
    with pytest.raises(BaseException) as caught:
        drive(steps)
    assert type(caught.value).__name__ == type(error).__name__
    assert cleaned == ["cleaned"]


def test_a_stop_iteration_of_the_users_function_reaches_the_caller() -> None:
    """A generator cannot let it pass: Python turns it into a RuntimeError."""

    def steps() -> Steps[None]:
        yield Call(next, (iter([]),), {})

    with pytest.raises(StopIteration):
        run(steps())


def test_a_runtime_error_stays_one(drive: Drive) -> None:
    def steps() -> Steps[None]:
        yield Echo(RuntimeError("of its own"))

    with pytest.raises(RuntimeError, match="of its own"):
        drive(steps)


async def test_steps_whose_task_is_cancelled_clean_up_before_it_ends() -> None:
    def steps() -> Steps[None]:
        try:
            yield Pause(60)
        finally:
            cleaned.append((yield Echo("cleaned")))

    cleaned: list[str] = []
    task = asyncio.create_task(arun(steps()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned == ["cleaned"]


async def test_steps_whose_coroutine_is_closed_end_without_another_request() -> None:
    def steps() -> Steps[None]:
        try:
            yield Pause(60)
        except GeneratorExit:
            closed.append(True)
            raise

    closed: list[bool] = []
    coroutine = arun(steps())
    coroutine.send(None)
    coroutine.close()
    assert closed == [True]


def test_an_error_does_not_outlive_its_handling(crowd: Crowd) -> None:
    """It would keep alive everything that its frames refer to, such as locks whose collection must be noticed."""

    class Thing:
        pass

    def steps() -> Steps[None]:
        thing = Thing()
        alive.append(weakref.ref(thing))
        yield Echo(None)
        raise ZeroDivisionError

    alive: list[weakref.ref[Thing]] = []
    me = crowd()
    gc.disable()
    try:
        me(Driver(), "attempt", steps)
        assert alive[0]() is None
    finally:
        gc.enable()


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_pause_lets_its_seconds_go_by(drive: Drive) -> None:
    def steps() -> Steps[None]:
        yield Pause(0.05)

    began = monotonic()
    drive(steps)
    assert monotonic() - began >= 0.045


async def test_a_pause_of_a_coroutine_lets_others_run() -> None:
    def steps() -> Steps[None]:
        yield Pause(0.05)

    pausing, turns = asyncio.create_task(arun(steps())), 0
    while not pausing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5


def test_a_call_passes_everything_on(crowd: Crowd) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs, threading.get_ident()

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def steps() -> Steps[Any]:
        return (yield Call(coroutine if crowd.awaits else function, (1, 2), {"three": 3}))

    me = crowd()
    assert me(Driver(), "drive", steps) == ((1, 2), {"three": 3}, me.read(threading.get_ident))


def in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def lazily() -> str:
    """As a lazily loaded user of Django's does, which asks the database."""
    if in_event_loop():
        raise SynchronousOnlyOperation
    return "loaded"


async def asked() -> str:
    await asyncio.sleep(0)
    return "awaited"


@pytest.mark.parametrize("request_class", [Evaluate, CallOut])
def test_a_function_of_the_sites_may_do_what_an_event_loop_forbids(request_class: Any, drive: Drive) -> None:
    def steps() -> Steps[str]:
        return (yield request_class(lazily))  # type: ignore[no-any-return]

    assert drive(steps) == "loaded"


def test_a_function_of_the_sites_may_return_something_to_be_awaited(drive: Drive) -> None:
    def steps() -> Steps[str]:
        return (yield CallOut(lambda: asked()))  # type: ignore[no-any-return]

    assert drive(steps) == "awaited"


async def test_what_is_evaluated_in_a_coroutine_may_be_awaitable_and_needs_no_thread_then() -> None:
    def function() -> Any:
        threads.append(threading.current_thread())
        return asked()

    def steps() -> Steps[str]:
        return (yield Evaluate(function))  # type: ignore[no-any-return]

    threads: list[threading.Thread] = []
    assert await arun(steps()) == "awaited"
    assert threads == [threading.current_thread()]


async def test_a_plain_function_is_called_out_in_a_thread_once() -> None:
    def function() -> None:
        calls.append(in_event_loop())

    def steps() -> Steps[None]:
        yield CallOut(function)

    calls: list[bool] = []
    await arun(steps())
    assert calls == [False]


# -- in a running event loop -------------------------------------------------------------------------------------------


def steps_of_a_call() -> Steps[str]:
    return (yield Echo("done"))  # type: ignore[no-any-return]


async def test_a_blocking_call_in_a_running_event_loop_is_refused_and_says_what_to_do() -> None:
    begun: list[bool] = []

    def steps() -> Steps[None]:
        begun.append(True)
        yield Echo(None)

    text = r"would block the event loop .*\. Await aacquire\(\), or call it through sync_to_async\.$"
    with pytest.raises(SynchronousOnlyOperation, match=text):
        run_blocking(steps(), "Await aacquire()")
    assert begun == []


async def test_what_is_no_call_is_not_told_to_be_made_through_sync_to_async() -> None:
    for statement, text in (
        (lambda: Lock("a").__enter__(), "Use async with instead"),
        (lambda: list(LockPool("a")), "Use async for instead"),
    ):
        with pytest.raises(SynchronousOnlyOperation, match=rf"would block the event loop .* thread\. {text}\.$"):
            statement()


async def test_it_is_made_through_sync_to_async_or_where_django_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await sync_to_async(run_blocking)(steps_of_a_call(), "Await it") == "done"
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    assert run_blocking(steps_of_a_call(), "Await it") == "done"


def test_it_is_made_where_no_event_loop_runs_and_below_a_coroutine_of_sync_code() -> None:
    async def below() -> str:
        return await sync_to_async(run_blocking)(steps_of_a_call(), "Await it")

    assert run_blocking(steps_of_a_call(), "Await it") == "done"
    assert async_to_sync(below)() == "done"
