"""``locked``: one call of a function or coroutine function at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import asgiref.sync
import pytest
import redis
from celery.utils.dispatch import Signal as CelerySignal  # type: ignore[import-untyped]
from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import Signal, receiver

from django_redislock import (
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockUnavailable,
    aforce_release,
    get_lock,
    lock_digest,
    locked,
    locked_atomic,
)
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Actor, Crowd
from tests.helpers.processes import Worker
from tests.helpers.state import LOCK, NAME, queued, value
from tests.helpers.twins import Twins, abandon, lock_names

Eventually = Callable[..., Any]
AEventually = Callable[..., Any]
Body = Generator[None, None, Any]


# -- the name -------------------------------------------------------------------------------------------------------


def test_a_function_runs_under_the_lock_of_its_arguments(crowd: Crowd, client: redis.Redis) -> None:
    def report(year: int, *rest: int, kind: str = "a b", **more: int) -> list[str]:
        return lock_names(client)

    me, twins = crowd(), Twins(locked("report:{year}:{kind}"), report)
    assert me(twins, "call", 2026) == ["report:2026:a%20b"]
    assert me(twins, "call", 2026, 1, kind="x", other=2) == ["report:2026:x"]
    assert lock_names(client) == []


def test_keyword_arguments_lie_flat_in_the_template(crowd: Crowd, client: redis.Redis) -> None:
    def job(**options: str) -> list[str]:
        return lock_names(client)

    assert crowd()(Twins(locked("job:{queue}"), job), "call", queue="mail") == ["job:mail"]


def test_a_callable_makes_the_name(crowd: Crowd, client: redis.Redis) -> None:
    def report(year: int) -> list[str]:
        return lock_names(client)

    def name(year: int) -> str:
        return f"year-{year}"

    untyped: Any = locked
    positional = untyped(lambda year: name(year))
    for decorator in (locked(name=name), locked(name=lambda year: name(year)), positional):
        assert crowd()(Twins(decorator, report), "call", 7) == ["year-7"]


def test_a_function_without_a_name_is_locked_by_its_place_in_the_code(crowd: Crowd, client: redis.Redis) -> None:
    def here() -> list[str]:
        return lock_names(client)

    name = f"{__name__}.test_a_function_without_a_name_is_locked_by_its_place_in_the_code.locals.here"
    assert crowd()(Twins(locked(), here), "call") == [name]


def test_without_parentheses_the_function_itself_is_locked(crowd: Crowd, client: redis.Redis) -> None:
    def here(number: int) -> tuple[int, list[str]]:
        return number, lock_names(client)

    name = f"{__name__}.test_without_parentheses_the_function_itself_is_locked.locals.here"
    assert crowd()(Twins(locked, here), "call", 7) == (7, [name])


def test_a_function_is_no_name_beside_options() -> None:
    def name() -> str:
        raise AssertionError("not reached")

    for wrong in ({"ttl": 5}, {"token": "t" * 22}, {"name": "x"}):
        with pytest.raises(
            TypeError, match=r'^locked was given <function .*: write @locked\("order:{pk}"\), or locked\(n'
        ):
            locked(name, **wrong)
    with pytest.raises(TypeError, match=r"^locked takes one name, not both 'x' and name='y'\.$"):
        locked("x", name="y")


def test_note_and_token_are_templates_too(crowd: Crowd, client: redis.Redis) -> None:
    def job(number: int, text: str) -> tuple[str, str]:
        holder = " ".join(value(client))
        return holder.partition("\n")[2], holder

    decorator = locked(NAME, note="no. {number}: {text}", token="{number:digest}")
    note, holder = crowd()(Twins(decorator, job), "call", 7, "a:b\nc %")
    assert note == "no. 7: a:b\nc %"
    assert lock_digest(7) in holder
    note, _ = crowd()(Twins(decorator, job), "call", 7, "é" * 1000 + "\ud800")
    assert note == "no. 7: " + "é" * 496


def test_two_calls_with_the_same_token_are_still_one_after_the_other(crowd: Crowd) -> None:
    def job(number: int) -> None:
        raise AssertionError("not reached")

    me, you = crowd(), crowd()
    assert me(Lock(NAME, token=lock_digest(7)), "acquire")
    with pytest.raises(LockNotAcquired):
        you(Twins(locked(NAME, token="{number:digest}", blocking_timeout=0), job), "call", 7)


def test_a_call_adopts_what_its_token_has_detached(crowd: Crowd, client: redis.Redis) -> None:
    fences: list[Any] = []
    me, you = crowd(), crowd()
    lock = Lock(NAME)
    assert me(lock, "acquire")
    fences.append(me.read(lambda: lock.fence))
    token = me(lock, "detach")
    fences.append(you(Twins(locked(NAME, token="{token}"), lambda token: value(client)[3]), "call", token))
    assert str(fences[0]) == fences[1]


def test_a_token_that_is_none_is_an_error_that_does_not_repeat_it(crowd: Crowd) -> None:
    def job(text: str) -> None:
        raise AssertionError("not reached")

    me, late = crowd(), Twins(locked(NAME, token="{text}"), job)
    for call in (lambda: locked(NAME, token="too short"), lambda: me(late, "call", "too short")):
        with pytest.raises(ValueError, match=r"^A token must be a str of 22") as caught:
            call()
        assert "short" not in str(caught.value)


def test_a_method_runs_under_the_lock_of_its_object(crowd: Crowd, client: redis.Redis) -> None:
    class Report:
        pk = 7

        @locked("report:{self.pk}")
        def build(self) -> list[str]:
            return lock_names(client)

        @locked("report:{self.pk}")
        async def abuild(self) -> list[str]:
            return lock_names(client)

    assert crowd()(Report(), "build") == ["report:7"]


def test_an_unknown_field_is_an_error_that_lists_the_names_there_are(crowd: Crowd) -> None:
    def report(year: int, kind: str = "a") -> None:
        raise AssertionError("not reached")

    with pytest.raises(ValueError, match=r"'report:\{yaer\}'.*'yaer'. Available values: kind, year\."):
        crowd()(Twins(locked("report:{yaer}"), report), "call", 2026)


@pytest.mark.parametrize(
    ("options", "trouble"),
    [
        ({"name": "report:{yaer}"}, "lock name 'report:{yaer}'"),
        ({"name": "x", "note": "of {yaer}"}, "note 'of {yaer}'"),
        ({"name": "x", "token": "{yaer:digest}"}, "token '{yaer:digest}'"),
    ],
)
def test_a_field_that_no_call_can_fill_is_an_error_where_it_decorates(options: dict[str, Any], trouble: str) -> None:
    def report(year: int, *rest: int, kind: str = "a") -> None:
        raise AssertionError("not reached")

    expected = (
        f"Cannot fill the {trouble}: {report.__qualname__}() has no argument 'yaer'. Available values: kind, rest, "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}year"):
        locked(**options)(report)


def test_a_call_with_wrong_arguments_is_the_error_that_it_always_is(crowd: Crowd, client: redis.Redis) -> None:
    def report(year: int) -> None:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match=r"\breport\(\) missing a required argument: 'year'$"):
        crowd()(Twins(locked("report:{year}"), report), "call")


@pytest.mark.parametrize("template", ["x:{}", "x:{0}", "x:{y", "x:y}", ""])
def test_a_template_that_can_never_be_filled_is_an_error_at_once(template: str) -> None:
    with pytest.raises(ValueError, match=r"lock name|lock's name"):
        locked(template)(lambda: None)


def test_wrong_options_are_errors_at_once() -> None:
    with pytest.raises(ValueError, match="ttl must be at least"):
        locked("x", ttl=0)
    with pytest.raises(
        TypeError, match=r"^locked\(\) takes no option 'fair'\. The options are: adopt, at_least, .*, using\.$"
    ):
        locked("x", fair=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="lock's name must be a str or a callable"):
        locked(7)  # type: ignore[call-overload]


def test_what_runs_after_its_call_has_returned_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, agenerator):
        with pytest.raises(TypeError, match=r"locked cannot decorate .* is free again"):
            locked("x")(function)


@pytest.mark.django_db(transaction=True)
def test_also_where_that_is_hidden_until_it_is_called(client: redis.Redis) -> None:
    def plain(function: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(function)
        def wrapper() -> Any:
            return function()

        return wrapper

    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    async def coroutine() -> None: ...

    class Called:
        def __call__(self) -> Iterator[int]:
            yield 1

    for function in (plain(generator), plain(agenerator), plain(coroutine), Called()):
        for hidden in (locked("x")(function), locked_atomic("x")(function)):
            with pytest.raises(TypeError, match=r"cannot decorate .* is free again"):
                hidden()
        assert lock_names(client) == []
    others = generator()  # which are not the function's own body
    assert locked("x")(lambda: others)() is others


def test_what_has_no_name_or_no_signature_is_told_so() -> None:
    with pytest.raises(TypeError, match=r'make a name of functools.partial.*, which has none: write locked\("..."\)'):
        locked()(functools.partial(str.upper, "x"))
    for decorator in (locked("x"), locked_atomic("x")):
        with pytest.raises(TypeError, match="cannot decorate <built-in function max>: no signature found"):
            decorator(max)


QUEUEING = ["delay", "apply_async", "send_with_options", "enqueue", "call_local", "defer", "kiq"]


@pytest.mark.parametrize("decorator", [locked, locked("x"), locked_atomic("x")], ids=["bare", "named", "atomic"])
@pytest.mark.parametrize("attribute", QUEUEING)
def test_a_task_is_refused_since_workers_would_run_it_unlocked(decorator: Any, attribute: str) -> None:
    def export() -> None:
        pass

    task = functools.partial(export)  # an object, or the function itself (RQ), that can be called and queued
    for made in (task, export, SimpleNamespace()):  # Django's cannot be called
        setattr(made, attribute, print)
        with pytest.raises(TypeError, match=r"^(locked\w*) cannot decorate the task .* Put @\1 below the task's decor"):
            decorator(made)


@pytest.mark.parametrize("decorator", [locked, locked("x"), locked_atomic("x")], ids=["bare", "named", "atomic"])
@pytest.mark.parametrize("connect", [receiver(Signal()), CelerySignal().connect, CelerySignal().connect(sender="x")])
def test_a_receiver_is_refused_since_the_signal_would_call_it_unlocked(decorator: Any, connect: Any) -> None:
    def plain(**facts: Any) -> None: ...
    async def coroutine(**facts: Any) -> None: ...

    for function in (plain, coroutine):
        connect(function)
        with pytest.raises(TypeError, match=r"^(locked\w*) cannot decorate the receiver .* Put @\1 below the dec"):
            decorator(function)


def test_a_receiver_below_the_decorator_of_a_signal_is_locked(client: redis.Redis) -> None:
    signal = Signal()

    @receiver(signal)
    @locked("x")
    def told(**facts: Any) -> list[str]:
        return lock_names(client)

    sent: Any = signal.send(None)
    assert sent == [(told, ["x"])]


def test_a_function_below_the_decorator_of_a_task_is_locked(client: redis.Redis) -> None:
    def task(function: Callable[[], Any]) -> Any:
        return SimpleNamespace(run=function, delay=print)

    @task
    @locked("x")
    def export() -> list[str]:
        return lock_names(client)

    assert export.run() == ["x"]


def test_a_class_is_refused() -> None:
    class Whole:
        pass

    with pytest.raises(TypeError, match=r"locked cannot decorate the class .*Whole: decorate its methods"):
        locked("x")(Whole)


# -- busy -----------------------------------------------------------------------------------------------------------


def test_a_function_whose_lock_is_busy_is_not_called(crowd: Crowd) -> None:
    def never() -> None:
        raise AssertionError("not reached")

    me, you, lock = crowd(), crowd(), Lock(NAME)
    assert you(lock, "acquire")
    with pytest.raises(LockNotAcquired, match=r"^Could not acquire the lock 'order:42' at once: held by ") as caught:
        me(Twins(locked(NAME, blocking_timeout=0), never), "call")
    assert caught.value.name == NAME


def test_calls_at_the_same_time_run_one_after_the_other(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    inside: list[int] = []
    go_on = threading.Event()

    def section(number: int) -> Body:
        inside.append(number)
        while not go_on.is_set():
            yield
        assert inside == [number]
        inside.clear()
        return number

    twins = Twins(locked(NAME), section)
    calls = [crowd().start(twins, "call", number) for number in range(10)]
    eventually(lambda: inside and queued(client) == 9)
    go_on.set()
    assert [call.result(GENEROUS) for call in calls] == list(range(10))
    assert lock_names(client) == []


def test_a_function_is_not_called_while_redis_is_away(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)

    def never() -> None:
        raise AssertionError("not reached")

    own.stop()
    with pytest.raises(LockUnavailable) as caught:
        crowd()(Twins(locked(NAME), never), "call")
    assert caught.value.name == NAME


# -- inside ---------------------------------------------------------------------------------------------------------


def test_the_lock_is_as_its_options_say(crowd: Crowd, client: redis.Redis) -> None:
    def look() -> tuple[Any, Any]:
        return client.pttl(LOCK), client.get(LOCK)

    left, text = crowd()(Twins(locked(NAME, ttl=500, note="the books", purpose="nightly run"), look), "call")
    assert 300_000 < left <= 500_000
    assert text.endswith(b" nightly run\nthe books")


class Recursive:
    """Calls itself as often as it is told, and returns whether the lock is held here, as others see it too."""

    def __init__(self, **options: Any) -> None:
        @locked(NAME, **options)
        def call(again: int) -> bool:
            return call(again - 1) if again else Lock(NAME).owned()

        @locked(NAME, **options)
        async def acall(again: int) -> bool:
            return await acall(again - 1) if again else await Lock(NAME).aowned()

        self.call, self.acall = call, acall


def test_the_lock_is_owned_by_the_caller(crowd: Crowd) -> None:
    assert crowd()(Recursive(), "call", 0) is True


def test_a_reentrant_function_may_call_itself(crowd: Crowd, client: redis.Redis) -> None:
    assert crowd()(Recursive(reentrant=True), "call", 3) is True
    assert lock_names(client) == []


def test_another_function_that_calls_itself_does_not_wait_for_itself(crowd: Crowd, client: redis.Redis) -> None:
    with pytest.raises(LockError, match=r"^Cannot wait for the lock 'order:42': .* would wait for itself without end"):
        crowd()(Recursive(), "call", 1)
    assert lock_names(client) == []


def test_it_says_so_of_a_call_within_itself_that_does_not_wait_without_end(crowd: Crowd) -> None:
    for options in ({"blocking": False}, {"blocking_timeout": 0.01}):
        with pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\. Pass reentr") as caught:
            crowd()(Recursive(**options), "call", 1)
        assert caught.value.outcome == "own"


# -- the end of the call --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), RuntimeError("mine")])
def test_an_error_of_the_function_propagates_and_the_lock_is_free(
    error: Exception, crowd: Crowd, client: redis.Redis
) -> None:
    def fail() -> None:
        assert lock_names(client) == [NAME]
        raise error

    with pytest.raises(type(error), match="mine"):
        crowd()(Twins(locked(NAME), fail), "call")
    assert lock_names(client) == []


def test_a_stop_iteration_of_the_function_propagates(client: redis.Redis) -> None:
    @locked(NAME)
    def function() -> None:
        next(iter(()))

    with pytest.raises(StopIteration):
        function()
    assert lock_names(client) == []


def test_a_lock_that_was_lost_is_told_but_not_over_an_error_of_the_function(crowd: Crowd, client: redis.Redis) -> None:
    def lose(error: Exception | None) -> None:
        client.flushall()
        if error:
            raise error

    me, twins = crowd(), Twins(locked(NAME), lose)
    with pytest.raises(LockLost, match=f"'{NAME}' was lost"):
        me(twins, "call", None)
    with pytest.raises(ZeroDivisionError):
        me(twins, "call", ZeroDivisionError())


def test_a_function_whose_release_fails_tells_so_and_the_lock_is_free_once_redis_is_back(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me = crowd()
    with pytest.raises(LockUnavailable, match="The lock was not released"):
        me(Twins(locked(NAME), own.stop), "call")
    own.start()
    assert me(Lock(NAME), "acquire", blocking_timeout=GENEROUS)


# -- at_least -------------------------------------------------------------------------------------------------------

JOB = """
from asgiref.sync import async_to_sync

def job():
    say("ran")

async def ajob():
    say("ran")

decorate = locked("report", at_least=600, blocking_timeout=0)
run = async_to_sync(decorate(ajob)) if awaits else decorate(job)
try:
    run()
except LockNotAcquired as busy:
    say("busy", busy.busy_for)
say("end")
hear()
"""


@pytest.mark.parametrize("awaits", [False, True])
def test_of_three_processes_with_other_clocks_one_runs_a_short_job(awaits: bool, start: Callable[..., Worker]) -> None:
    for first in (True, False, False):
        worker = start(JOB, awaits=awaits)  # comes when the one before has done its job
        left = worker.expect("ran" if first else "busy")
        assert first or 500 < float(left[0]) <= 600
        worker.expect("end")


def test_the_lock_stays_for_what_is_left_whatever_its_ttl(crowd: Crowd) -> None:
    twins = Twins(locked(NAME, at_least=500, ttl=5), lambda: "done")
    assert crowd()(twins, "call") == "done"
    info = get_lock(NAME)
    assert info is not None
    assert 400 < info.lease_left <= 500


def test_the_next_caller_gets_it_when_that_is_over(crowd: Crowd) -> None:
    begun = time.monotonic()
    twins = Twins(locked(NAME, at_least=0.3), lambda: time.monotonic() - begun)
    me, you = crowd(), crowd()
    assert me(twins, "call") >= 0
    assert you(twins, "call") >= 0.29  # by another clock


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_call_that_fails_releases_at_once(error: type[BaseException], client: redis.Redis) -> None:
    def fail() -> None:
        assert lock_names(client) == [NAME]
        raise error

    with pytest.raises(error):
        locked(NAME, at_least=500)(fail)()
    assert lock_names(client) == []


def test_a_call_that_took_longer_releases_at_the_end(crowd: Crowd, client: redis.Redis) -> None:
    def late() -> Body:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.1:
            yield

    crowd()(Twins(locked(NAME, at_least=0.1), late), "call")
    assert lock_names(client) == []


def test_inside_another_section_the_outer_one_decides(crowd: Crowd, client: redis.Redis) -> None:
    me, outer = crowd(), Lock(NAME, reentrant=True)
    me(outer, "acquire")
    me(Twins(locked(NAME, at_least=500, reentrant=True), lambda: None), "call")
    assert me(outer, "owned")
    me(outer, "release")
    assert lock_names(client) == []


def test_a_lock_that_was_lost_is_told_there_too(crowd: Crowd, client: redis.Redis) -> None:
    with pytest.raises(LockLost):
        crowd()(Twins(locked(NAME, at_least=500), client.flushall), "call")


def test_without_redis_at_the_end_the_lock_is_released_once_it_is_back(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me = crowd()
    with pytest.raises(LockUnavailable):
        me(Twins(locked(NAME, at_least=500), own.stop), "call")
    own.start()
    assert me(Lock(NAME), "acquire", blocking_timeout=GENEROUS)


def test_wrong_seconds_are_an_error_at_once() -> None:
    with pytest.raises(ValueError, match=r"^at_least must be 0 or more seconds and finite, not -1\.$"):
        locked(NAME, at_least=-1)
    with pytest.raises(TypeError, match=r"^at_least must be seconds \(int, float or timedelta\), not 'long'\.$"):
        locked(NAME, at_least="long")  # type: ignore[call-overload]


# -- interrupted ----------------------------------------------------------------------------------------------------


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_function_releases(client: redis.Redis) -> None:
    with pytest.raises(KeyboardInterrupt):
        Twins(locked(NAME), interrupt).call()
    assert lock_names(client) == []


def test_an_interrupted_coroutine_function_releases(client: redis.Redis, eventually: Eventually) -> None:
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Twins(locked(NAME), interrupt).acall())
    eventually(lambda: not lock_names(client))


async def test_a_coroutine_that_is_cancelled_releases(
    actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    inside = asyncio.Event()

    @locked(NAME)
    async def section() -> None:
        inside.set()
        await asyncio.sleep(GENEROUS)

    task = actor()
    task.start(section)
    await asyncio.wait_for(inside.wait(), GENEROUS)
    assert lock_names(client) == [NAME]
    await task.end()
    await aeventually(lambda: not lock_names(client))


async def test_a_coroutine_that_is_closed_releases(client: redis.Redis, aeventually: AEventually) -> None:
    inside = asyncio.Event()

    @locked(NAME)
    async def section() -> None:
        inside.set()
        await asyncio.sleep(GENEROUS)

    await abandon(section(), inside.is_set)
    await aeventually(lambda: not lock_names(client))


async def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_queue(
    actor: Callable[[], Actor], client: redis.Redis, aeventually: AEventually
) -> None:
    @locked(NAME)
    async def section() -> None:
        raise AssertionError("not reached")

    you, lock = actor(), Lock(NAME)
    assert await you(lock.aacquire)
    await abandon(section(), lambda: queued(client) == 1)
    await aeventually(lambda: not queued(client))
    await you(lock.arelease)
    assert lock_names(client) == []


# -- coroutine functions and others ---------------------------------------------------------------------------------


def test_a_decorated_coroutine_function_is_one() -> None:
    @locked()
    async def report() -> None: ...

    assert inspect.iscoroutinefunction(report)
    assert asgiref.sync.iscoroutinefunction(report)
    assert report.__name__ == "report"


async def test_a_sync_function_called_in_a_coroutine_is_told_what_to_do(client: redis.Redis) -> None:
    @locked(NAME)
    def section() -> list[str]:
        return lock_names(client)

    with pytest.raises(
        SynchronousOnlyOperation,
        match=r"would block the event loop .*\. Decorate a coroutine function, or call it through sync_to_async\.$",
    ):
        section()
    assert lock_names(client) == []
    assert await asgiref.sync.sync_to_async(section)() == [NAME]


async def test_a_coroutine_function_may_be_cancelled_when_its_lock_is_lost(client: redis.Redis) -> None:
    @locked(NAME, on_lost="cancel")
    async def section() -> None:
        await aforce_release(NAME)
        await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        await section()


def test_a_sync_function_cannot_be_cancelled_and_is_not_called(client: redis.Redis) -> None:
    @locked(NAME, on_lost="cancel")
    def section() -> None:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match="on_lost='cancel' cancels the task"):
        section()
    assert lock_names(client) == []


def test_a_function_may_hear_that_its_lock_is_lost(crowd: Crowd, client: redis.Redis) -> None:
    lost = threading.Event()

    def section() -> Body:
        client.flushall()
        while not lost.is_set():
            yield

    with pytest.raises(LockLost):
        crowd()(Twins(locked(NAME, ttl=1, on_lost=lambda error: lost.set()), section), "call")
