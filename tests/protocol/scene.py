"""Helpers of the tests of the protocol's rules: waiting processes, users in a queue, and views from outside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import redis

from django_redislock import LockPool
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.processes import Worker
from tests.helpers.state import LOCK, NAME
from tests.inside import PREFIX

LONG = 600.0  # seconds; a test that waits for that has failed
ACQUIRE, RELEASE = inside.ACQUIRE, inside.RELEASE  # to recognize their requests
POOL = "pool:accounts:"  # the line of a pool
MEMBER = "pool:accounts:alice"  # the lock of its member

Eventually = Callable[..., Any]
Ghosts = Callable[..., Ghost]
Join = Callable[..., "Waiting"]
Listening = Callable[..., inside.Ears]
Start = Callable[..., Worker]


class Waiting:
    """Somebody who waits for a lock or for any member of a pool, and keeps it."""

    def __init__(self, person: Any, thing: Any, **options: Any) -> None:
        self.person = person
        self.lock = thing
        self.future: Future[Any] = person.start(thing, "acquire", **options)

    def result(self, within: float = GENEROUS) -> Any:
        """What acquire() has returned: whether it has the lock, or the member."""
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


def joiner(crowd: Crowd, client: redis.Redis, eventually: Eventually) -> Join:
    def join(thing: Any, **options: Any) -> Waiting:
        name = POOL if isinstance(thing, LockPool) else thing.name
        before = len(listed(client, name))
        waiting = Waiting(crowd(), thing, **options)
        eventually(lambda: len(listed(client, name)) > before)
        return waiting

    return join


def listed(client: redis.Redis, name: str = NAME) -> list[tuple[str, int]]:
    """Ids and tickets of the queue, in order."""
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
    else:
        assert client.zadd(f"{PREFIX}busy:{POOL}", {"alice": 1}, ch=True)
