"""What several tests of locks use."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.dispatch import Signal

from django_redislock import Lock, LockSet
from redisserver import RedisServer
from tests.helpers.actors import until
from tests.helpers.proxy import Proxy, proxy
from tests.inside import will_hear_of

Heard = list[tuple[str, dict[str, Any]]]


class Block:
    """``with`` and ``async with`` through one interface: ``me(Block(lock, body), "run")``."""

    def __init__(self, lock: Lock | LockSet, body: Callable[[], Any] = lambda: None) -> None:
        self.lock, self.body = lock, body

    def run(self) -> Any:
        with self.lock:
            return self.body()

    async def arun(self) -> Any:
        async with self.lock:
            await asyncio.sleep(0)  # others run
            return self.body()


@contextmanager
def receiving(receiver: Callable[..., Any], *signals: Signal) -> Iterator[None]:
    with ExitStack() as stack:
        for signal in signals:
            signal.connect(receiver, weak=False)
            stack.callback(signal.disconnect, receiver)
        yield


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    with proxy(server.port) as between:
        far = {**settings.CACHES["default"], "LOCATION": between.url, "OPTIONS": {"SOCKET_TIMEOUT": 3}}
        settings.CACHES = {**settings.CACHES, "far": far}
        yield between


def until_told(person: Any, lock: Lock) -> None:
    """Wait until this process is told at once what happens to a lock that is held here."""
    until(lambda: person.read(lambda: will_hear_of(lock)))
