"""Fixtures for the tests of locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.store.stores import get_partition
from redisserver import RedisServer
from tests.helpers.proxy import Proxy, proxy
from tests.inside import lease_of, listener


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest) -> str:
    """The test runs twice: on an alias of the session's server, and on one of fakeredis in this process."""
    alias: str = request.param
    if alias == "memory":
        get_partition(alias).execute(("FLUSHALL",))
    return alias


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    """A proxy between the alias "far" and the server."""
    with proxy(server.port) as between:
        far = {**settings.CACHES["default"], "LOCATION": between.url, "OPTIONS": {"SOCKET_TIMEOUT": 1}}
        settings.CACHES = {**settings.CACHES, "far": far}
        yield between


@pytest.fixture
def hears(eventually: Callable[..., Any]) -> Callable[[Any, Lock], None]:
    """Wait until this process is told at once what happens to a lock that is held here. See ``listens``."""

    def hears(person: Any, lock: Lock) -> None:
        lease = person.read(lambda: lease_of(lock))
        ears = listener(lock.using)
        eventually(lambda: ears.ready and not lease.urgent and lease.seen and lease.due < lease.ends)

    return hears


@pytest.fixture
def nowhere(settings: Any) -> None:
    """There is no Redis: if anything were sent, the test would see LockUnavailable instead of the expected error."""
    nowhere = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": nowhere}
