"""A cached value with one caller: what is computed, kept and returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_redislock import (
    LockError,
    LockNotAcquired,
    alist_locks,
    alocked_get_or_set,
    force_release,
    list_locks,
    locked_get_or_set,
)
from tests.helpers.actors import GENEROUS
from tests.helpers.databases import Account

from .conftest import NAME, Computing, Value

Heard = list[tuple[str, dict[str, Any]]]


class Plain:
    """``person(plain, "get")`` asks for a value whose default is this one, as it is."""

    def __init__(self, default: Any, **options: Any) -> None:
        self.default = default
        self.options: dict[str, Any] = {"using": "ours", **options}

    def get(self) -> Any:
        return locked_get_or_set("x", self.default, **self.options)

    async def aget(self) -> Any:
        return await alocked_get_or_set("x", self.default, **self.options)


class Itself:
    """A value whose default asks for that very value."""

    def __init__(self, **options: Any) -> None:
        self.options: dict[str, Any] = {"using": "ours", **options}

    def get(self) -> Any:
        return locked_get_or_set("x", self.get, **self.options)

    async def aget(self) -> Any:
        return await alocked_get_or_set("x", self.aget, **self.options)


def commands(client: redis.Redis) -> dict[str, int]:
    """How many times each command was called since CONFIG RESETSTAT."""
    counts: dict[str, Any] = client.info("commandstats")
    return {key.removeprefix("cmdstat_"): stat["calls"] for key, stat in counts.items() if "config" not in key}


# -- what is computed -------------------------------------------------------------------------------------------------


def test_a_missing_value_is_computed_under_a_lock_and_kept(me: Any, computing: Computing, alias: str) -> None:
    with computing([1, 2], using=alias) as value:
        assert [lock.name for lock in list_locks()] == [f"get_or_set:{alias}::1:x"]
    assert caches[alias].get("x") == [1, 2]
    assert me(value, "get") == [1, 2]
    assert value.calls == 1
    assert list_locks() == []


async def test_for_a_coroutine_a_plain_function_is_called_in_a_thread_and_what_it_returns_is_awaited() -> None:
    async def compute() -> str:
        return "awaited"

    assert await alocked_get_or_set("x", lambda: compute()) == "awaited"
    assert await alocked_get_or_set("y", asyncio._get_running_loop) is None


def test_for_sync_code_what_a_plain_function_returns_is_awaited_as_well() -> None:
    async def compute() -> list[str]:
        return [lock.name for lock in await alist_locks()]

    default: Any = lambda: compute()  # noqa: E731
    assert locked_get_or_set("x", default) == ["get_or_set:default::1:x"]


def test_our_backend_has_it_as_methods() -> None:
    cache: Any = caches["ours"]
    assert cache.locked_get_or_set("x", lambda: 1, timeout=60, version=2, blocking_timeout=5) == 1
    assert cache.get("x", version=2) == 1
    assert asyncio.run(cache.alocked_get_or_set("x", lambda: 2, timeout=None, version=3)) == 2
    assert cache.get("x", version=3) == 2
    assert cache.get("x") is None


@pytest.mark.parametrize("method", ["locked_get_or_set", "alocked_get_or_set"])
def test_arguments_by_position_as_other_backends_took_them_are_errors(method: str) -> None:
    """For example, their third argument was the version; it would silently be misunderstood."""
    with pytest.raises(TypeError, match=rf"^{method}\(\) takes its options by name, not 2\. The options are: "):
        asyncio.run(getattr(caches["ours"], method)("x", int, 2))


def test_a_value_that_is_no_callable_needs_no_lock(me: Any, alias: str, client: redis.Redis) -> None:
    client.config_resetstat()
    assert me(Plain(42, using=alias), "get") == 42
    assert caches[alias].get("x") == 42
    assert "evalsha" not in commands(client)


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django"])
def test_a_value_that_is_there_costs_one_get(me: Any, alias: str, client: redis.Redis) -> None:
    me(Plain(1, using=alias), "get")
    client.config_resetstat()
    assert me(Value(using=alias), "get") == 1
    assert commands(client) == {"get": 1}


def test_none_is_a_value(me: Any, alias: str) -> None:
    value = Value(None, using=alias)
    assert [me(value, "get"), me(value, "get")] == [None, None]
    assert caches[alias].get_or_set("x", value.compute) is None
    assert value.calls == 1


def test_the_timeout_and_version_are_those_of_the_cache(me: Any, client: redis.Redis) -> None:
    for value in (Value(key="x", timeout=60, version=2), Value(key="y", timeout=None), Value(key="z")):
        me(value, "get")
    assert 30 < int(client.ttl(":2:x")) <= 60
    assert client.ttl(":1:y") == -1
    assert 270 < int(client.ttl(":1:z")) <= 300


def test_a_value_that_was_stored_meanwhile_takes_precedence(me: Any) -> None:
    mine = Value("mine", held_up=True)
    turn = me.start(mine, "get")
    assert mine.called.wait(GENEROUS)
    caches["ours"].set("x", "theirs")
    mine.go.set()
    assert turn.result(GENEROUS) == "theirs"


@pytest.mark.parametrize("options", [{"using": "dummy"}, {"timeout": 0}])
def test_a_value_that_the_cache_does_not_keep_is_computed_each_time(me: Any, options: dict[str, Any]) -> None:
    value = Value(**options)
    assert [me(value, "get"), me(value, "get")] == ["computed"] * 2
    assert value.calls == 2


def test_any_key_can_be_computed(me: Any) -> None:
    assert me(Value(key="ü" * 400 + "\n"), "get") == "computed"


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


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_inside_a_transaction_it_does_not_warn(account: Account) -> None:
    with transaction.atomic():
        assert Value().get() == "computed"


def test_a_lock_that_is_lost_meanwhile_costs_nobody_the_value(
    me: Any, heard: Heard, eventually: Callable[..., Any]
) -> None:
    mine = Value("mine", held_up=True)
    turn = me.start(mine, "get")
    assert mine.called.wait(GENEROUS)
    assert force_release(NAME)
    mine.go.set()
    assert turn.result(GENEROUS) == "mine"
    eventually(lambda: [facts["name"] for which, facts in heard if which == "lost"] == [NAME])


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, "1", float("nan")])
def test_a_wrong_blocking_timeout_is_an_error_even_where_the_value_is_there(me: Any, wrong: Any) -> None:
    caches["ours"].set("x", 1)
    with pytest.raises((ValueError, TypeError), match="blocking_timeout must be"):
        me(Value(blocking_timeout=wrong), "get")


def test_an_unknown_option_is_refused(me: Any) -> None:
    with pytest.raises(TypeError, match="lock_timeout"):
        me(Value(lock_timeout=1), "get")


def test_an_unknown_alias_is_named(me: Any) -> None:
    with pytest.raises(InvalidCacheBackendError, match="nowhere"):
        me(Value(using="nowhere"), "get")


def test_a_coroutine_function_is_for_coroutines() -> None:
    with pytest.raises(TypeError, match="await alocked_get_or_set"):
        locked_get_or_set("x", Value().acompute)  # type: ignore[unused-coroutine]


async def test_it_refuses_to_block_an_event_loop() -> None:
    with pytest.raises(SynchronousOnlyOperation, match="alocked_get_or_set"):
        locked_get_or_set("x", Value().compute)


# -- a default that asks itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patience", "kind"), [(None, LockError), (0.05, LockNotAcquired)])
def test_a_default_that_asks_for_its_own_value_gets_an_error(patience: float | None, kind: type, me: Any) -> None:
    text = r"^Could not compute the value of the cache key 'x': what computes it asks for that very value\.$"
    with pytest.raises(LockError, match=text) as raised:
        me(Itself(blocking_timeout=patience), "get")
    assert raised.type is kind
    assert list_locks() == []


def test_a_default_may_ask_for_another_value() -> None:
    def compute() -> Any:
        return locked_get_or_set("y", lambda: 20, using="ours") + 1

    assert locked_get_or_set("x", compute, using="ours") == 21
