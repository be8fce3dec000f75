"""Arguments of other libraries, and options by position: the errors name ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.management import call_command

import django_redislock
from django_redislock import Lock, LockedCommand, LockPool, locked, locked_atomic, locked_get_or_set, locked_view
from tests.helpers.state import count


def ours() -> Any:
    """Our cache backend."""
    return caches["ours"]


a: Any = django_redislock  # whose types are not checked here
# a call with an argument that there is not, and what the error says: of whom, of which argument, and what it suggests
HINTS: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: a.Lock("x", 10), "Lock()", "by name, not 10", "ttl=10"),
    (lambda: a.Lock("x", True), "Lock()", "by name, not True", "blocking=True"),
    (lambda: a.Lock("x", "a-token-that-is-secret"), "Lock()", "by name, not a str", ""),
    (lambda: a.locked("x", 10), "locked()", "by name, not 10", "ttl=10"),
    (lambda: a.locked_view("x", 10), "locked_view()", "by name, not 10", "ttl=10"),
    (lambda: a.locked_atomic("x", 10), "locked_atomic()", "by name, not 10", "ttl=10"),
    (lambda: a.Lock("x").acquire(timeout=1), "Lock.acquire()", "timeout", "'blocking_timeout'"),
    (lambda: a.Lock("x").acquire(False), "Lock.acquire()", "by name, not False", "blocking=False"),
    (lambda: asyncio.run(a.Lock("x").aacquire(timeout=1)), "Lock.aacquire()", "timeout", "'blocking_timeout'"),
    (lambda: asyncio.run(a.Lock("x").aacquire(1.5)), "Lock.aacquire()", "by name, not 1.5", "blocking_timeout=1.5"),
    (lambda: a.LockPool("x").acquire(5), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: asyncio.run(a.LockPool("x").aacquire(5)), "LockPool.acquire()", "by name, not 5", "blocking_timeout=5"),
    (lambda: ours().lock("x", expire=3), "cache.lock()", "expire", "'timeout'"),
    (lambda: ours().lock("x", ttl=3), "cache.lock()", "ttl", "'timeout'"),
    (lambda: ours().lock("x").acquire(timeout=3), "acquire() of cache.lock()", "timeout", "'blocking_timeout'"),
    (lambda: a.locked_get_or_set("x", int, expire=3), "locked_get_or_set()", "expire", "'timeout'"),
    (lambda: a.locked_get_or_set("x", int, 60), "locked_get_or_set()", "by name, not 60", "timeout=60"),
    (lambda: asyncio.run(a.alocked_get_or_set("x", int, ttl=3)), "alocked_get_or_set()", "ttl", "'timeout'"),
    (lambda: ours().locked_get_or_set("x", int, ttl=3), "locked_get_or_set()", "ttl", "'timeout'"),
    (lambda: asyncio.run(ours().alocked_get_or_set("x", int, ex=3)), "alocked_get_or_set()", "ex", "'timeout'"),
]


@pytest.mark.parametrize(("call", "what", "wrong", "meant"), HINTS)
def test_an_argument_of_other_libraries_is_an_error_that_names_ours(
    call: Callable[[], Any], what: str, wrong: str, meant: str, client: redis.Redis, settings: Any
) -> None:
    backend = {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "ours": backend}
    trouble = f"its options {wrong}" if " " in wrong else f"no option {wrong!r}"
    hint = f" Did you mean {meant}?" if meant else ""
    before = count(client, "evalsha") + count(client, "eval")
    with pytest.raises(TypeError, match=re.escape(f"{what} takes {trouble}.{hint} The options are: ")):
        call()
    assert count(client, "evalsha") + count(client, "eval") == before


@pytest.mark.parametrize("wrong", ["expire", "timeout"])
def test_the_options_of_a_command_are_those_of_a_lock(wrong: str) -> None:
    class Command(LockedCommand):
        lock_options = {wrong: 3}

    with pytest.raises(TypeError, match=rf"^Lock\(\) takes no option '{wrong}'\. Did you mean 'ttl'"):
        call_command(Command())
    with pytest.raises(TypeError, match=rf"^Wrong has lock_{wrong} = 3, .* Did you mean 'lock_ttl'"):
        type("Wrong", (LockedCommand,), {f"lock_{wrong}": 3})


def test_signatures_show_only_what_can_be_given() -> None:
    functions: list[Any] = [Lock, Lock.acquire, Lock.aacquire, LockPool.acquire, LockPool.aacquire, locked_get_or_set]
    functions += [locked, locked_view, locked_atomic]
    for function in functions:
        assert {"wrong", "unknown", "caller"}.isdisjoint(signature(function).parameters)
    assert [*signature(Lock.aacquire).parameters] == ["self", "blocking", "blocking_timeout", "token"]
