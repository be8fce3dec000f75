"""A cached value with one caller: what is computed, kept and returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.exceptions import SynchronousOnlyOperation

from django_redislock import (
    LockError,
    LockNotAcquired,
    alist_locks,
    alocked_get_or_set,
    list_locks,
    locked_get_or_set,
)

from .conftest import Computing, Value


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django", "locmem"])
@pytest.mark.parametrize("wanted", [[1, 2], None])
def test_a_missing_value_is_computed_under_a_lock_and_kept(
    me: Any, computing: Computing, alias: str, wanted: Any
) -> None:
    with computing(wanted, using=alias) as value:
        assert [lock.name for lock in list_locks()] == [f"get_or_set:{alias}::1:x"]
    assert list_locks() == []
    assert caches[alias].get("x", "missing") == wanted
    assert me(value, "get") == wanted
    assert caches[alias].get_or_set("x", value.compute) == wanted
    assert value.calls == 1


async def compute() -> list[str]:
    return [lock.name for lock in await alist_locks()]


def test_a_plain_function_may_return_an_awaitable_and_is_called_in_a_thread_for_a_coroutine() -> None:
    default: Any = lambda: compute()  # noqa: E731
    assert locked_get_or_set("x", default) == ["get_or_set:default::1:x"]
    assert asyncio.run(alocked_get_or_set("y", default)) == ["get_or_set:default::1:y"]
    assert asyncio.run(alocked_get_or_set("z", asyncio._get_running_loop)) is None


def test_our_backend_has_it_as_methods() -> None:
    cache: Any = caches["ours"]
    assert cache.locked_get_or_set("x", lambda: 1, timeout=60, version=2, blocking_timeout=5) == 1
    assert asyncio.run(cache.alocked_get_or_set("x", lambda: 2, timeout=None, version=3)) == 2
    assert [cache.get("x", version=version) for version in (1, 2, 3)] == [None, 1, 2]
    for method in (cache.locked_get_or_set, cache.alocked_get_or_set):
        with pytest.raises(TypeError, match=r"takes its options by name, not 2\."):  # the version, for others
            asyncio.run(method("x", int, 2))


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django"])
def test_a_value_that_is_there_costs_one_get_and_one_that_is_no_callable_no_lock(
    me: Any, alias: str, client: redis.Redis
) -> None:
    client.config_resetstat()
    assert locked_get_or_set("x", 1, using=alias) == 1
    assert asyncio.run(alocked_get_or_set("y", 2, using=alias)) == 2
    assert me(Value(using=alias), "get") == 1
    counts: Any = client.info("commandstats")
    assert counts["cmdstat_get"]["calls"] == 3
    assert {"cmdstat_evalsha", "cmdstat_script|load"}.isdisjoint(counts)


def test_the_timeout_and_version_are_those_of_the_cache(me: Any, client: redis.Redis) -> None:
    for value in (Value(key="x", timeout=60, version=2), Value(key="y", timeout=None), Value(key="z")):
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


async def in_the_event_loop() -> None:
    locked_get_or_set("y", int)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (Value(blocking_timeout=-1).get, ValueError, "blocking_timeout must be"),
        (Value(lock_timeout=1).get, TypeError, "lock_timeout"),
        (Value(using="nowhere").get, InvalidCacheBackendError, "nowhere"),
        (lambda: locked_get_or_set("x", Value().acompute), TypeError, "await alocked_get_or_set"),
        (lambda: asyncio.run(Value(lock_timeout=1).aget()), TypeError, "lock_timeout"),
        (async_to_sync(in_the_event_loop), SynchronousOnlyOperation, "alocked_get_or_set"),
    ],
)
def test_a_wrong_call_is_an_error_even_where_the_value_is_there(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    caches["ours"].set("x", 1)
    with pytest.raises(error, match=text):
        call()


class Itself(Value):
    compute, acompute = Value.get, Value.aget


@pytest.mark.parametrize(("patience", "kind"), [(None, LockError), (0.05, LockNotAcquired)])
def test_a_default_that_asks_for_its_own_value_gets_an_error(patience: float | None, kind: type, me: Any) -> None:
    text = r"^Could not compute the value of the cache key 'x': what computes it asks for that very value\.$"
    with pytest.raises(LockError, match=text) as raised:
        me(Itself(blocking_timeout=patience), "get")
    assert raised.type is kind
    assert list_locks() == []
    assert locked_get_or_set("x", lambda: locked_get_or_set("y", lambda: 20) + 1) == 21  # another value
