"""Fixtures for the tests of the protocol's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django_redis.pool import ConnectionFactory

from django_redislock import Lock
from django_redislock.engine.listener import Listener
from django_redislock.engine.runtime import runtime
from django_redislock.store.places import get_backend
from redisserver import RedisServer
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import leases, listener
from tests.protocol.scene import LONG, Ear, Eventually, Line


@pytest.fixture
def line(crowd: Crowd, client: redis.Redis, eventually: Eventually) -> Line:
    """People who queue: once threads, and once tasks."""
    return Line(crowd, client, eventually)


@pytest.fixture
def threads(client: redis.Redis, eventually: Eventually) -> Iterator[Line]:
    """The same, threads only: where the rule is the scripts' alone."""
    made = Crowd(tasks=False)
    yield Line(made, client, eventually)
    made.close()


@pytest.fixture
def ear(client: redis.Redis) -> Iterator[Ear]:
    made = Ear(client)
    yield made
    made.close()


@pytest.fixture
def add_alias(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Add an alias to CACHES; returns its name."""

    def add_alias(url: str, **options: Any) -> str:
        monkeypatch.setattr(ConnectionFactory, "_pools", {})  # one for each URL for ever, whatever the options
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "other": cache}
        return "other"

    return add_alias


@pytest.fixture
def network(server: RedisServer, add_alias: Callable[..., str]) -> Iterator[Proxy]:
    """A bad network before the server, which knows the scripts; the alias ``other`` leads through it."""
    with proxy(server.port) as running:
        with Lock("warm-up", using=add_alias(running.url)):
            pass
        yield running


@pytest.fixture
def allow_only(client: redis.Redis, server: RedisServer, add_alias: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """Make a user with the given rights on top of all commands and keys; returns the URL. Its alias is ``other``."""

    def allow_only(*rules: str) -> str:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all", *rules)
        url = f"redis://limited:secret@127.0.0.1:{server.port}/0"
        add_alias(url)
        return url

    yield allow_only
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters hear of a lock by a message, or not within this test. (Hold it for LONG: its end counts as well.)"""
    monkeypatch.setattr("django_redislock.engine.listener.LOOK_EVERY", LONG)


@pytest.fixture
def listening(eventually: Eventually) -> Callable[..., Listener]:
    """Let this process hear messages before anything else happens, so that nobody looks again on that account."""

    def listening(using: str | None = None) -> Listener:
        ears: Listener = listener(using)
        ears.start()
        eventually(lambda: ears.ready)
        return ears

    return listening


@pytest.fixture
def renew_all(eventually: Eventually) -> Callable[..., None]:
    """Let the watchdog renew everything of an alias, as after a reconnect."""

    def renew_all(using: str | None = None) -> None:
        eventually(lambda: all(lease.seen for lease in leases()))
        runtime().watchdog.renew_all(get_backend(using))

    return renew_all


@pytest.fixture
def a_round(eventually: Eventually, renew_all: Callable[..., None]) -> Callable[[], None]:
    """Wait until the watchdog has gone through its work once more, and has had its answers."""

    def a_round() -> None:
        lock = Lock("round", ttl=LONG)
        lock.acquire()
        lease = next(lease for lease in leases() if lease.name == "round")
        eventually(lambda: lease.seen)
        ends = lease.ends
        renew_all()
        eventually(lambda: lease.ends > ends)
        lock.release()

    return a_round
