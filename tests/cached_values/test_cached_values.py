"""Values in caches of several kinds, and threads and tasks that ask for them."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCacheClient
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation

import django_redislock
from django_redislock import (
    Lock,
    LockError,
    LockNotAcquired,
    LockUnavailable,
    alist_locks,
    alocked_get_or_set,
    force_release,
    get_lock,
    list_locks,
    lock_not_acquired,
    locked_get_or_set,
)
from django_redislock.testing import own_locks
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Other, auntil, until
from tests.helpers.cancelling import Interrupt, interrupters
from tests.inside import joins_at_the_end, limit, lose_patience, values_under_way, waiting_for_values
from tests.lock.conftest import receiving

BACKENDS = {
    "ours": "django_redislock.cache.RedisCache",
    "django-redis": "django_redis.cache.RedisCache",
    "django": "django.core.cache.backends.redis.RedisCache",
    "locmem": "django.core.cache.backends.locmem.LocMemCache",
    "dummy": "django.core.cache.backends.dummy.DummyCache",
    "json": "django_redis.cache.RedisCache",
}
NAME = "get_or_set:ours::1:x"  # of the lock on the value x


class Value:
    """``person(value, "get")`` asks for the value, with a default that counts its calls and waits for ``go``."""

    def __init__(self, value: Any = "computed", *, key: str = "x", held_up: bool = False, **options: Any):
        self.value, self.key, self.options = value, key, {"using": "ours", **options}
        self.calls, self.turn = 0, Future[Any]()
        self.called, self.go = threading.Event(), threading.Event()
        if not held_up:
            self.go.set()

    def get(self) -> Any:
        return locked_get_or_set(self.key, self.compute, **self.options)

    async def aget(self) -> Any:
        return await alocked_get_or_set(self.key, self.acompute, **self.options)

    def compute(self) -> Any:
        self.calls += 1
        self.called.set()
        assert self.go.wait(GENEROUS)
        return self._end()

    async def acompute(self) -> Any:
        self.calls += 1
        self.called.set()
        await auntil(self.go.is_set)
        return self._end()

    def _end(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


Computing = Callable[..., AbstractContextManager[Value]]


@pytest.fixture(autouse=True)
def _aliases(settings: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kind: Any = RedisCacheClient
    get_pool, pools = kind._get_connection_pool, list[Any]()

    def get_pool_and_note(client: Any, write: bool) -> Any:
        pools.append(get_pool(client, write))
        return pools[-1]

    monkeypatch.setattr(kind, "_get_connection_pool", get_pool_and_note)
    for alias, backend in BACKENDS.items():
        cache: Any = {"BACKEND": backend, "LOCATION": server.url if "edis" in backend else ""}
        if alias == "json":
            cache["OPTIONS"] = {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"}
        settings.CACHES = {**settings.CACHES, alias: cache}
    caches["locmem"].clear()
    yield
    for pool in pools:  # Django leaves those of threads that have ended to the garbage collector
        pool.disconnect()
    assert not values_under_way()


@pytest.fixture
def computing(crowd: Crowd) -> Computing:
    """Another user computes the value ``x`` until the end of the block."""

    @contextmanager
    def computing(value: Any = "theirs", **options: Any) -> Iterator[Value]:
        wanted = Value(value, held_up=True, **options)
        wanted.turn = crowd().start(wanted, "get")
        assert wanted.called.wait(GENEROUS)
        try:
            yield wanted
        finally:
            wanted.go.set()
            wanted.turn.exception(GENEROUS)

    return computing


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django", "locmem"])
@pytest.mark.parametrize("wanted", [[1, 2], None])
def test_a_missing_value_is_computed_under_a_lock_and_kept(me: Any, computing: Any, alias: str, wanted: Any) -> None:
    with computing(wanted, using=alias) as value:
        assert [lock.name for lock in list_locks()] == [f"get_or_set:{alias}::1:x"]
    assert list_locks() == []
    assert caches[alias].get("x", "missing") == wanted
    assert me(value, "get") == wanted
    assert caches[alias].get_or_set("x", value.compute) == wanted
    assert value.calls == 1


def test_a_computation_that_another_test_has_left_behind_is_not_waited_for(crowd: Crowd, computing: Computing) -> None:
    with computing(), own_locks():
        assert crowd()(Value("mine", blocking_timeout=0), "get") == "mine"


def test_whoever_computes_it_gets_what_all_others_get(me: Any) -> None:
    value = Value({1: (2, 3)}, using="json")
    assert [me(value, "get"), me(value, "get")] == [{"1": [2, 3]}] * 2
    assert locked_get_or_set("y", (1,), using="json") == [1]  # type: ignore[comparison-overlap]


def test_however_few_may_wait_for_locks_all_wait_for_a_value(crowd: Crowd, settings: Any) -> None:
    settings.REDISLOCK = {"MAX_WAITERS": {"*": 0}}
    with Lock(NAME, using="ours"):  # as another process that computes it has
        waiting = crowd().start(Value(using="ours"), "get")
        until(lambda: get_lock(NAME).waiters == 1)  # type: ignore[union-attr]
    assert waiting.result(GENEROUS) == "computed"


async def compute() -> list[str]:
    return [lock.name for lock in await alist_locks()]


class Computer:
    async def __call__(self) -> list[str]:
        return await compute()


def test_a_plain_function_may_return_an_awaitable_and_is_called_in_a_thread_for_a_coroutine() -> None:
    default: Any = lambda: compute()  # noqa: E731
    assert locked_get_or_set("x", default) == ["get_or_set:default::1:x"]
    assert asyncio.run(alocked_get_or_set("y", default)) == ["get_or_set:default::1:y"]
    assert asyncio.run(alocked_get_or_set("z", asyncio._get_running_loop)) is None
    assert asyncio.run(alocked_get_or_set("o", Computer())) == ["get_or_set:default::1:o"]
    with pytest.raises(TypeError, match="await alocked_get_or_set"):
        locked_get_or_set("p", Computer())  # type: ignore[unused-coroutine]
    with pytest.raises(RuntimeError, match="raised StopIteration"):  # which no future takes
        asyncio.run(alocked_get_or_set("p", partial(next, iter(()))))
    assert list_locks() == []


def test_our_backend_has_it_as_methods() -> None:
    cache: Any = caches["ours"]
    assert cache.locked_get_or_set("x", lambda: 1, timeout=60, version=2, blocking_timeout=5) == 1
    assert asyncio.run(cache.alocked_get_or_set("x", lambda: 2, timeout=None, version=3)) == 2
    assert [cache.get("x", version=version) for version in (1, 2, 3)] == [None, 1, 2]
    for method in (cache.locked_get_or_set, cache.alocked_get_or_set):
        for option in ("using", "ttl"):
            with pytest.raises(TypeError, match=f"argument '{option}'"):
                asyncio.run(method("x", int, **{option: "x"}))


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django"])
def test_a_value_that_is_there_costs_one_get_and_one_that_is_no_callable_no_lock(
    me: Any, alias: str, client: redis.Redis
) -> None:
    client.config_resetstat()
    assert locked_get_or_set("x", 1, using=alias) == 1
    assert asyncio.run(alocked_get_or_set("y", 2, using=alias)) == 2
    assert me(Value(using=alias), "get") == 1
    counts: Any = client.info("commandstats")
    assert counts["cmdstat_get"]["calls"] == 5  # x and y were missing
    assert {"cmdstat_evalsha", "cmdstat_script|load"}.isdisjoint(counts)


def test_the_timeout_and_version_are_those_of_the_cache(me: Any, client: redis.Redis) -> None:
    minute = timedelta(minutes=1)
    for value in (Value(key="x", timeout=minute, version=2), Value(key="y", timeout=None), Value(key="z")):
        me(value, "get")
    assert 30 < int(client.ttl(":2:x")) <= 60
    assert client.ttl(":1:y") == -1
    assert 270 < int(client.ttl(":1:z")) <= 300


@pytest.mark.parametrize("options", [{"using": "dummy"}, {"timeout": 0, "key": "ü" * 400 + "\n"}])
def test_a_value_that_the_cache_does_not_keep_is_computed_each_time(me: Any, options: dict[str, Any]) -> None:
    value = Value(**options)
    assert [me(value, "get"), me(value, "get")] == ["computed"] * 2
    assert value.calls == 2


@pytest.mark.parametrize(
    ("error", "awaits"),
    [(ValueError("a"), True), (ValueError("s"), False), (StopIteration(7), False), (KeyboardInterrupt(), False)],
)
def test_an_exception_of_the_default_propagates_and_leaves_no_lock(error: BaseException, awaits: bool) -> None:
    value = Value(error)
    with pytest.raises(type(error)) as raised:
        asyncio.run(value.aget()) if awaits else value.get()
    assert raised.value is error
    assert list_locks() == []
    assert Value().get() == "computed"


UNKNOWN = r"^Unknown cache alias .* \(given as using\)\. The aliases in CACHES are: default, "


async def in_the_event_loop() -> None:
    locked_get_or_set("y", int)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (Value(blocking_timeout=-1).get, ValueError, "blocking_timeout must be"),
        (Value(lock_timeout=1).get, TypeError, "lock_timeout"),
        *((Value(using=using).get, ImproperlyConfigured, UNKNOWN) for using in ("nowhere", None, ["ours"])),
        (lambda: asyncio.run(Value(using="nowhere").aget()), ImproperlyConfigured, UNKNOWN),
        *((Value(timeout=wrong).get, TypeError, r"^timeout must be .* or None, not ") for wrong in ("60", [60], True)),
        *(
            (Value(timeout=wrong).get, ValueError, r"^timeout must be finite, .* not ")
            for wrong in (math.nan, -math.inf)
        ),
        (lambda: asyncio.run(Value(timeout="60").aget()), TypeError, "^timeout must be seconds"),
        (lambda: locked_get_or_set("x", Value().acompute), TypeError, "await alocked_get_or_set"),
        (lambda: asyncio.run(Value(lock_timeout=1).aget()), TypeError, "lock_timeout"),
        (async_to_sync(in_the_event_loop), SynchronousOnlyOperation, "alocked_get_or_set"),
    ],
)
def test_a_wrong_call_is_an_error_even_where_the_value_is_there(call: Callable[[], Any], error: Any, text: str) -> None:
    caches["ours"].set("x", 1)
    with pytest.raises(error, match=text):
        call()


class Itself(Value):
    compute, acompute = Value.get, Value.aget


@pytest.mark.parametrize("patience", [None, 0.05])
def test_a_default_that_asks_for_its_own_value_gets_an_error(patience: float | None, me: Any) -> None:
    text = r"^Could not compute the value of the cache key 'x': what computes it asks for that very value\.$"
    with pytest.raises(LockError, match=text) as raised:
        me(Itself(blocking_timeout=patience), "get")
    assert (raised.type, list_locks()) == (LockError, [])
    assert locked_get_or_set("x", lambda: locked_get_or_set("y", lambda: 20) + 1) == 21  # another value


def ask(crowd: Crowd, value: Value, number: int) -> list[Future[Any]]:
    """Let so many more callers ask for the value, and wait until they wait for the one that computes it."""
    before = waiting_for_values()
    turns = [crowd().start(value, "get") for _ in range(number)]
    until(lambda: waiting_for_values() == before + number)
    return turns


@pytest.mark.parametrize("alias", ["ours", "locmem"])
def test_coroutines_and_threads_wait_for_each_other_and_each_reads_an_object_of_its_own(
    crowd: Crowd, computing: Computing, alias: str
) -> None:
    late = Value("never", using=alias)
    with closing(Crowd(tasks=not crowd.awaits)) as others, computing({"a": []}, using=alias) as value:
        assert crowd()(Value("mine", using=alias, version=2), "get") == "mine"
        turns = ask(others, late, 3) + ask(crowd, late, 3)
        assert [lock.waiters for lock in list_locks()] == [0]  # nobody asks Redis for what is computed in this process
        value.go.set()
        found = [turn.result(GENEROUS) for turn in turns]
    assert found == [{"a": []}] * 6
    assert len({id(one) for one in found}) == 6
    assert (value.calls, late.calls) == (1, 0)


@pytest.mark.parametrize("end", [ValueError("no"), LockUnavailable("of another lock", "another"), "force-released"])
def test_if_the_one_that_computes_fails_or_loses_its_lock_the_next_one_tries(
    end: Any, crowd: Crowd, computing: Computing
) -> None:
    late = Value("second")
    with computing(end) as value:
        turns = ask(crowd, late, 3)
        if end == "force-released":
            assert force_release(NAME)
            lose_patience()
        else:
            value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
    assert (value.calls, late.calls) == (1, 1)
    # what was stored meanwhile takes precedence, and the loss costs nobody the value
    assert (end == "force-released" and value.turn.result() == "second") or value.turn.exception() is end


async def test_a_cancelled_coroutine_lets_the_next_one_try() -> None:
    value = Value(held_up=True)
    leader = asyncio.create_task(value.aget())
    await auntil(value.called.is_set)
    cancelled = asyncio.create_task(Value("never").aget())
    second = asyncio.create_task(Value("second").aget())
    await auntil(lambda: waiting_for_values() == 2)
    cancelled.cancel()
    leader.cancel()
    assert await asyncio.wait_for(second, GENEROUS) == "second"
    await asyncio.wait([leader, cancelled])
    assert leader.cancelled()
    assert cancelled.cancelled()


@pytest.mark.parametrize("how", ["released", "died"])
@pytest.mark.complete
def test_a_caller_waits_for_another_process_and_reads_the_cache_again(how: str, crowd: Crowd) -> None:
    elsewhere, late = crowd(), Value("mine")
    lock = Lock(NAME, ttl=600 if how == "released" else 3, auto_renew=False)
    assert elsewhere(lock, "acquire")
    turn = crowd().start(late, "get")
    until(lambda: turn.done() or list_locks()[0].waiters == 1)
    if how == "released":
        caches["ours"].set("x", "theirs")
        elsewhere(lock, "release")
    assert turn.result(GENEROUS) == ("theirs" if how == "released" else "mine")
    assert late.calls == (how == "died")
    until(lambda: list_locks() == [])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "elsewhere"])
@pytest.mark.parametrize(("patience", "setting"), [(0, None), (0.05, None), (None, 0.05)])
def test_a_caller_whose_timeout_has_passed_gets_an_error(
    crowd: Crowd, computing: Computing, elsewhere: bool, patience: float | None, setting: float | None, settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": setting}
    refusals: list[dict[str, Any]] = []
    caplog.set_level(logging.DEBUG)
    with ExitStack() as stack:
        if elsewhere:
            crowd()(Lock(NAME), "acquire")
        else:
            stack.enter_context(computing())
        stack.enter_context(receiving(lambda **facts: refusals.append(facts), lock_not_acquired))
        with pytest.raises(LockNotAcquired, match="'x' in time: it is being computed elsewhere") as raised:
            crowd()(Value("never", blocking_timeout=patience), "get")
    assert raised.value.name == NAME
    assert raised.value.outcome == ("busy" if patience == 0 else "timeout")
    assert raised.value.waited >= (setting or patience or 0)
    (sent,) = refusals
    assert [sent[fact] for fact in ("sender", "name", "template")] == [Lock, NAME, NAME]
    assert (sent["outcome"], sent["waited"] <= raised.value.waited) == (raised.value.outcome, True)
    assert f"event=not-acquired name={NAME} template={NAME} outcome={raised.value.outcome} waited=" in caplog.text


def test_when_a_computation_takes_long_one_of_those_who_wait_for_it_asks_redis_like_any_waiter(
    crowd: Crowd, computing: Computing, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDISLOCK = {"SLOW_WAIT": 0.05}
    late = Value("never")
    with computing() as value:
        turns = ask(crowd, late, 3)
        with pytest.raises(LockNotAcquired):
            crowd()(Value("never", blocking_timeout=0), "get")
        assert (list_locks()[0].waiters, waiting_for_values()) == (0, 3)
        lose_patience()
        until(lambda: "event=still-waiting" in caplog.text)
        until(lambda: waiting_for_values() == 2)
        until(lambda: list_locks()[0].waiters == 1)  # once its process has subscribed
        lock = list_locks()[0]
        held = f"event=still-waiting name={NAME} owner={lock.owner} fence={lock.fence} waited="
        assert caplog.text.replace('"', "").count(held) == 1
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 3
    assert late.calls == 0


def test_the_longer_a_computation_takes_the_fewer_others_join_those_who_ask_redis(
    crowd: Crowd, computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_patience=0.1)
    begun = monotonic()
    with computing() as value:
        turns = [crowd().start(Value("never"), "get") for _ in range(5)]
        until(lambda: list_locks()[0].waiters == 4)
        assert monotonic() - begun >= 0.1 * 2**3
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 5


@pytest.mark.complete
def test_an_outage_costs_nobody_a_value_that_is_there_and_a_missing_one_is_not_computed(
    crowd: Crowd, own: RedisServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDISLOCK = {"CACHE": "default", "RETRY_FOR": 0.5}  # the values are in this process
    there, missing = Value(using="locmem", held_up=True), Value(key="y", using="locmem")
    turn = crowd().start(there, "get")
    assert there.called.wait(GENEROUS)
    assert list_locks()
    own.stop()
    there.go.set()
    assert turn.result(GENEROUS) == "computed"
    assert "event=not-released name=get_or_set:locmem::1:x" in caplog.text
    assert crowd()(Value("never", using="locmem"), "get") == "computed"
    settings.REDISLOCK |= {"RETRY_FOR": 4}
    begun = monotonic()
    turns = [crowd().start(missing, "get") for _ in range(10)]
    for turn in turns:
        with pytest.raises(LockUnavailable) as raised:
            turn.result(GENEROUS)
        assert raised.value.name == "get_or_set:locmem::1:y"
    assert monotonic() - begun < 10 * 4 / 2  # not one after the other
    assert missing.calls == 0


async def test_sync_code_waits_for_its_timeout_where_a_coroutine_that_computes_needs_its_thread() -> None:
    late, asks = Value("never", blocking_timeout=0.05), threading.Event()

    async def compute() -> Any:
        await auntil(asks.is_set)
        return await sync_to_async(lambda: "computed")()

    def get() -> Any:
        asks.set()
        return late.get()

    leads = asyncio.create_task(alocked_get_or_set("x", compute, using="ours"))
    await auntil(values_under_way)
    with pytest.raises(LockNotAcquired):
        await sync_to_async(get)()
    assert await leads == "computed"


@pytest.mark.complete
def test_if_the_loop_of_the_computing_coroutine_is_closed_the_next_caller_tries(crowd: Crowd, settings: Any) -> None:
    settings.REDISLOCK = {"TTL": 3}  # it is renewed until the loop is closed, however busy the machine is
    value, second = Value("never", held_up=True), Value("second", blocking_timeout=GENEROUS / 2)
    loop = asyncio.new_event_loop()
    computes = loop.create_task(value.aget())
    loop.run_until_complete(auntil(value.called.is_set))
    turns = [crowd().start(second, "get")]
    until(waiting_for_values)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    lose_patience()
    turns.append(crowd().start(second, "get"))
    assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 2
    computes._log_destroy_pending = False  # type: ignore[attr-defined]
    computes.get_coro().close()  # else it would end in the midst of a later test


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_caller_that_joins_at_the_moment_of_the_end_does_not_wait(asynchronous: bool, monkeypatch: Any) -> None:
    limit(monkeypatch, value_patience=GENEROUS)
    begun = monotonic()
    assert joins_at_the_end(asynchronous)
    assert monotonic() < begun + GENEROUS / 2


@pytest.mark.complete
def test_the_next_caller_after_one_that_was_interrupted_anywhere_computes(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: whether that was before it computed, or when it was about to tell the others that it had ended."""
    limit(monkeypatch, value_patience=10 * GENEROUS)
    ours = str(Path(django_redislock.__file__).parent)
    waits = other()
    locked_get_or_set("warm-up", int)
    for place, one in enumerate(interrupters(lambda file: file.startswith(ours), least=50)):
        get = partial(locked_get_or_set, f"key-{place}", int)
        try:
            one.run(get)
        except Interrupt:  # of which somebody may keep the traceback
            caches["default"].delete(f"key-{place}")
            waits(get)
