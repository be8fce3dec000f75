"""Values in caches of several kinds, and threads and tasks that ask for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.core.cache import caches

from django_redislock import alocked_get_or_set, locked_get_or_set
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.inside import values_under_way

BACKENDS = {
    "ours": "django_redislock.cache.RedisCache",
    "django-redis": "django_redis.cache.RedisCache",
    "django": "django.core.cache.backends.redis.RedisCache",
    "locmem": "django.core.cache.backends.locmem.LocMemCache",
    "dummy": "django.core.cache.backends.dummy.DummyCache",
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
        while not self.go.is_set():
            await asyncio.sleep(0.002)
        return self._end()

    def _end(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


Computing = Callable[..., AbstractContextManager[Value]]


@pytest.fixture(autouse=True)
def _aliases(settings: Any, server: RedisServer) -> Iterator[None]:
    for alias, backend in BACKENDS.items():
        cache = {"BACKEND": backend, "LOCATION": server.url if "edis" in backend else ""}
        settings.CACHES = {**settings.CACHES, alias: cache}
    caches["locmem"].clear()
    yield
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
