"""``locked``: one call of a function or coroutine function at a time."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.utils.dispatch import Signal as CelerySignal  # type: ignore[import-untyped]
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
from tests.helpers.state import LOCK, NAME, queued, value
from tests.helpers.twins import Twins, abandon, lock_names

Eventually = Callable[..., Any]
Body = Generator[None, None, Any]


def never(*args: Any, **options: Any) -> None:
    raise AssertionError("not reached")


# -- the name and the token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorator", [locked, locked()])
def test_without_a_name_a_function_is_locked_by_its_place_in_the_code(
    decorator: Any, crowd: Crowd, client: redis.Redis
) -> None:
    def here(number: int) -> tuple[int, list[str]]:
        return number, lock_names(client)

    name = f"{__name__}.test_without_a_name_a_function_is_locked_by_its_place_in_the_code.locals.here"
    assert crowd()(Twins(decorator, here), "call", 7) == (7, [name])
    with pytest.raises(TypeError, match=r'make a name of functools.partial.*, which has none: write locked\("..."\)'):
        locked()(functools.partial(str.upper, "x"))


def test_a_function_is_no_name_beside_options() -> None:
    for wrong in ({"token": "t" * 22}, {"name": "x"}, {"at_least": 5}):
        with pytest.raises(
            TypeError, match=r'^locked was given <function .*: write @locked\("order:{pk}"\), or locked'
        ):
            locked(never, **wrong)
    with pytest.raises(TypeError, match=r"^locked takes one name, not both 'x' and name='y'\.$"):
        locked("x", name="y")


@pytest.mark.parametrize("bears_token", [False, True])
def test_a_function_whose_lock_is_busy_is_not_called(bears_token: bool, crowd: Crowd) -> None:
    """Nor is one that bears the same token: two such calls run one after the other."""
    me, you = crowd(), crowd()
    assert you(Lock(NAME, token=lock_digest(7)), "acquire")
    options: dict[str, Any] = {"token": "{number:digest}"} if bears_token else {}
    twins = Twins(locked(NAME, blocking_timeout=0, **options), lambda number: never())
    with pytest.raises(LockNotAcquired, match=r"^Could not acquire the lock 'order:42' at once: held by ") as caught:
        me(twins, "call", 7)
    assert caught.value.name == NAME


def test_a_call_adopts_what_its_token_has_detached(crowd: Crowd, client: redis.Redis) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    assert me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    assert you(Twins(locked(NAME, token="{token}"), lambda token: value(client)[3]), "call", token) == str(fence)


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


def test_a_call_with_wrong_arguments_is_the_error_that_it_always_is(crowd: Crowd, client: redis.Redis) -> None:
    def report(year: int) -> None:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match=r"\breport\(\) missing a required argument: 'year'$"):
        crowd()(Twins(locked("report:{year}"), report), "call")


@pytest.mark.parametrize("decorator", [locked, locked("x"), locked_atomic("x")], ids=["bare", "named", "atomic"])
def test_a_task_or_receiver_is_refused_since_others_would_call_it_unlocked(decorator: Any) -> None:
    for attribute in ("delay", "apply_async", "send_with_options", "enqueue", "call_local", "defer", "kiq"):

        def export() -> None: ...

        # an object, or the function itself (RQ), that can be called and queued; Django's cannot be called
        for task in (functools.partial(export), export, SimpleNamespace()):
            setattr(task, attribute, print)
            with pytest.raises(TypeError, match=r"^(locked\w*) cannot decorate the task .* Put @\1 below the task's d"):
                decorator(task)
    for connect in (receiver(Signal()), CelerySignal().connect, CelerySignal().connect(sender="x")):

        def plain(**facts: Any) -> None: ...
        async def coroutine(**facts: Any) -> None: ...

        for function in (plain, coroutine):
            connect(function)
            with pytest.raises(TypeError, match=r"^(locked\w*) cannot decorate the receiver .* Put @\1 below the dec"):
                decorator(function)


def test_below_the_decorator_of_a_task_or_signal_a_function_is_locked(client: redis.Redis) -> None:
    signal = Signal()

    @receiver(signal)
    @locked("x")
    def told(**facts: Any) -> list[str]:
        return lock_names(client)

    sent: Any = signal.send(None)
    assert sent == [(told, ["x"])]

    @locked("x")
    def export() -> list[str]:
        return lock_names(client)

    assert SimpleNamespace(run=export, delay=print).run() == ["x"]


# -- inside ---------------------------------------------------------------------------------------------------------


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


def test_a_reentrant_function_may_call_itself(crowd: Crowd, client: redis.Redis) -> None:
    assert crowd()(Recursive(reentrant=True), "call", 3) is True
    assert lock_names(client) == []


def test_another_one_that_calls_itself_is_told_that_it_holds_the_lock(crowd: Crowd, client: redis.Redis) -> None:
    me = crowd()
    assert me(Recursive(), "call", 0) is True
    with pytest.raises(LockError, match=r"^Cannot wait for the lock 'order:42': .* would wait for itself without end"):
        me(Recursive(), "call", 1)
    for options in ({"blocking": False}, {"blocking_timeout": 0.01}):
        with pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\. Pass reentr") as caught:
            me(Recursive(**options), "call", 1)
        assert caught.value.outcome == "own"
    assert lock_names(client) == []


# -- Redis away -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_least", [0, 500])
def test_a_function_whose_release_fails_tells_so_and_the_lock_is_free_once_redis_is_back(
    at_least: float, crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me = crowd()
    with pytest.raises(LockUnavailable, match=None if at_least else "The lock was not released"):
        me(Twins(locked(NAME, at_least=at_least), own.stop), "call")
    with pytest.raises(LockUnavailable) as caught:
        me(Twins(locked("another"), never), "call")
    assert caught.value.name == "another"
    own.start()
    assert me(Lock(NAME), "acquire", blocking_timeout=GENEROUS)


# -- at_least -------------------------------------------------------------------------------------------------------


def test_the_lock_stays_for_what_is_left_whatever_its_ttl(crowd: Crowd) -> None:
    twins = Twins(locked(NAME, at_least=500, ttl=5, blocking_timeout=0), lambda: "done")
    me, you = crowd(), crowd()
    assert me(twins, "call") == "done"
    info = get_lock(NAME)
    assert info is not None
    assert 400 < info.lease_left <= 500
    for person in (me, you):
        with pytest.raises(LockNotAcquired) as caught:
            person(twins, "call")
        assert 400 < (caught.value.busy_for or 0) <= 500


def test_the_next_caller_gets_it_when_that_is_over(crowd: Crowd) -> None:
    begun = time.monotonic()
    twins = Twins(locked(NAME, at_least=0.3), lambda: time.monotonic() - begun)
    me, you = crowd(), crowd()
    assert me(twins, "call") >= 0
    assert you(twins, "call") >= 0.29  # by another clock


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


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_call_that_fails_releases_at_once(error: type[BaseException], client: redis.Redis) -> None:
    def fail() -> None:
        assert lock_names(client) == [NAME]
        raise error

    with pytest.raises(error):
        locked(NAME, at_least=500)(fail)()
    assert lock_names(client) == []


def test_a_lock_that_was_lost_is_told_there_too(crowd: Crowd, client: redis.Redis) -> None:
    with pytest.raises(LockLost):
        crowd()(Twins(locked(NAME, at_least=500), client.flushall), "call")


def test_wrong_seconds_are_an_error_at_once() -> None:
    with pytest.raises(ValueError, match=r"^at_least must be 0 or more seconds and finite, not -1\.$"):
        locked(NAME, at_least=-1)
    with pytest.raises(TypeError, match=r"^at_least must be seconds \(int, float or timedelta\), not 'long'\.$"):
        locked(NAME, at_least="long")  # type: ignore[call-overload]


# -- interrupted ----------------------------------------------------------------------------------------------------


async def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_queue(
    actor: Callable[[], Actor], client: redis.Redis, aeventually: Eventually
) -> None:
    you, lock = actor(), Lock(NAME)
    assert await you(lock.aacquire)
    await abandon(Twins(locked(NAME), never).acall(), lambda: queued(client) == 1)
    await aeventually(lambda: not queued(client))
    await you(lock.arelease)
    assert lock_names(client) == []


# -- lost -----------------------------------------------------------------------------------------------------------


async def test_a_coroutine_function_may_be_cancelled_when_its_lock_is_lost(client: redis.Redis) -> None:
    @locked(NAME, on_lost="cancel")
    async def section() -> None:
        await aforce_release(NAME)
        await asyncio.sleep(GENEROUS)

    with pytest.raises(LockLost):
        await section()


def test_a_sync_function_cannot_be_cancelled_and_is_not_called(client: redis.Redis) -> None:
    with pytest.raises(TypeError, match="on_lost='cancel' cancels the task"):
        locked(NAME, on_lost="cancel")(never)()
    assert lock_names(client) == []


def test_a_function_may_hear_that_its_lock_is_lost(crowd: Crowd, client: redis.Redis) -> None:
    lost = threading.Event()

    def section() -> Body:
        client.flushall()
        while not lost.is_set():
            yield

    with pytest.raises(LockLost):
        crowd()(Twins(locked(NAME, ttl=1, on_lost=lambda error: lost.set()), section), "call")
