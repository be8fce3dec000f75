"""Waiting processes, users in a queue, views from outside, and fixtures for the tests of the protocol's rules."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest
import redis

from django_redislock import Lock, LockPool
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import LOCK, NAME
from tests.inside import PREFIX, Ears, all_seen, limit

LONG = 600.0  # seconds; a test that waits for that has failed
ACQUIRE, RELEASE = inside.ACQUIRE, inside.RELEASE  # to recognize their requests
POOL = "pool:accounts:"  # the line of a pool
SEMAPHORE = "semaphore:export"
MEMBER = "pool:accounts:alice"  # the lock of its member

Ghosts = Callable[..., Ghost]
Join = Callable[..., "Waiting"]
Start = Callable[..., Worker]


class Waiting:
    """Somebody who waits for a lock or for any member of a pool, and keeps it."""

    def __init__(self, person: Any, thing: Any, **options: Any) -> None:
        self.person = person
        self.lock = thing
        self.future: Future[Any] = person.start(thing, "acquire", **options)

    def result(self, within: float = GENEROUS) -> Any:
        result = self.future.result(within)
        if not isinstance(result, bool):
            self.lock = result
        return result

    @property
    def id(self) -> str:
        """The id of the attempt, which is also its token, as none was given."""
        return str(self.person.read(lambda: self.lock.token))

    def release(self) -> None:
        self.person(self.lock, "release")


def listed(client: redis.Redis, name: str = NAME) -> list[tuple[str, int]]:
    rows: Any = client.zrange(f"{PREFIX}queue:{name}", 0, -1, withscores=True)
    return [(id.decode(), int(ticket)) for id, ticket in rows]


def told(ghost: Ghost) -> list[list[str]]:
    """The messages to a simulated process since the last call: kinds and ids."""
    ghost.client.publish(ghost.channel, "end")
    messages: list[list[str]] = []
    while messages[-1:] != [["end"]]:
        messages.append(ghost.hear()[:2])
    return messages[:-1]


def lapse(client: redis.Redis, name: str = NAME) -> None:
    """End the holder's lease now, without any message."""
    if name == NAME:
        assert client.delete(LOCK)
    elif name == SEMAPHORE:
        (id,) = cast("list[bytes]", client.zrange(f"{PREFIX}ends:{SEMAPHORE}", 0, -1))
        assert client.zadd(f"{PREFIX}ends:{SEMAPHORE}", {id: 1}, ch=True)
    else:
        assert client.zadd(f"{PREFIX}busy:{POOL}", {"alice": 1}, ch=True)


@pytest.fixture
def join(crowd: Crowd, client: redis.Redis) -> Join:
    """Let somebody queue. The test runs twice: with threads, and with tasks."""

    def join(thing: Any, **options: Any) -> Waiting:
        name = POOL if isinstance(thing, LockPool) else thing.name
        before = len(listed(client, name))
        waiting = Waiting(crowd(), thing, **options)
        until(lambda: waiting.future.done() or len(listed(client, name)) > before)  # it may give up soon
        return waiting

    return join


@pytest.fixture
def add_alias(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Add an alias to CACHES; returns its name."""

    def add_alias(url: str, **options: Any) -> str:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "other": cache}
        return "other"

    return add_alias


@pytest.fixture
def network(server: RedisServer, add_alias: Callable[..., str]) -> Iterator[Proxy]:
    """A bad network in front of the server, which already has the scripts; the alias ``other`` leads through it."""
    with proxy(server.port) as running:
        with Lock("warm-up", using=add_alias(running.url)):
            pass
        yield running


@pytest.fixture
def impatient(network: Proxy, add_alias: Callable[..., str]) -> Proxy:
    """The same for an alias that soon gives up on an answer."""
    add_alias(network.url, SOCKET_TIMEOUT=0.5)
    return network


@pytest.fixture
def allow_only(client: redis.Redis, server: RedisServer, add_alias: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """Make a user with all commands and keys and the given rights. Its alias is ``other``."""

    def allow_only(*rules: str) -> str:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "+@all", *rules)
        return add_alias(f"redis://limited:secret@127.0.0.1:{server.port}/0")

    yield allow_only
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.fixture
def look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, look_every=0.3)


def subscribed(using: str | None = None) -> Ears:
    """Subscribe this process first, so that no waiter looks again because of a new subscription."""
    ears = Ears(using)
    ears.start()
    until(lambda: ears.ready and (ears.heard or ears.polled))  # the probe, too, is a message
    return ears


def renew_all(using: str | None = None) -> None:
    """Let the watchdog renew all leases of an alias, as after a reconnect."""
    until(all_seen)
    inside.renew_all(using)


@pytest.fixture
def pool() -> LockPool:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    return pool
