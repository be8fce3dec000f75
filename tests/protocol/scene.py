"""Helpers of the tests of the protocol's rules: waiting processes, users in a queue, and views from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import redis

from django_redislock import Lock
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker
from tests.helpers.state import QUEUE, WAITERS, what_listens
from tests.inside import PREFIX, keys_of

LONG = 600.0  # seconds; a test that waits for that has failed
ACQUIRE = inside.ACQUIRE  # to recognize its requests
RELEASE = inside.RELEASE
MEMBER = "pool:accounts:alice"  # the lock of a pool's member

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

# A process that waits for one lock.
WAITS = """
from tests.inside import limit
limit(look_every=look_every)
lock = Lock(name, ttl=ttl, blocking_timeout=60)
say("ready")
hear()
say("acquired" if lock.acquire() else "left", lock.fence)
hear()
lock.release()
say("released")
hear()
"""

# A process with many threads that wait for one lock. On request, each acquires the lock and releases it.
MANY_WAIT = """
from tests.inside import limit
limit(look_every=look_every)

def wait(number):
    with Lock(name, ttl=ttl, blocking_timeout=60):
        say("acquired", number)

say("ready")
for number in range(count):
    hear()
    threading.Thread(target=wait, args=(number,), daemon=True).start()
threading.Event().wait()
"""


class _Visit:
    """Acquires a lock and releases it."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock

    def come(self) -> int | None:
        with self.lock:
            return self.lock.fence

    async def acome(self) -> int | None:
        async with self.lock:
            return self.lock.fence


class Waiting:
    """A waiter for a lock, which keeps it until ``release()``."""

    def __init__(self, person: Any, lock: Lock) -> None:
        self.person = person
        self.lock = lock
        self.future: Future[bool] = person.start(lock, "acquire")

    def result(self, within: float = GENEROUS) -> bool:
        """What acquire() has returned."""
        try:
            return self.future.result(within)
        except FutureTimeoutError:
            print(what_listens())  # for the log
            raise

    @property
    def fence(self) -> int:
        return self.person.read(lambda: self.lock.fence) or 0

    @property
    def id(self) -> str:
        """The id of the attempt, which is also its token, as none was given."""
        return str(self.person.read(lambda: self.lock.token))

    def release(self) -> None:
        self.person(self.lock, "release")


class Line:
    """Users of locks that queue one behind the other."""

    def __init__(self, crowd: Crowd, client: redis.Redis, eventually: Eventually) -> None:
        self.crowd = crowd
        self.client = client
        self.eventually = eventually

    def join(self, lock: Lock) -> Waiting:
        """A new user queues for this lock, and keeps it when it gets it."""
        waiting: Waiting = self._once_queued(lock, lambda person: Waiting(person, lock))
        return waiting

    def visit(self, lock: Lock) -> Future[int]:
        """A new user queues for this lock, and releases it as soon as it has it; the result is its fence."""
        fence: Future[int] = self._once_queued(lock, lambda person: person.start(_Visit(lock), "come"))
        return fence

    def _once_queued(self, lock: Lock, begin: Callable[[Any], Any]) -> Any:
        key = keys_of(lock.name).queue
        before = int(self.client.zcard(key))
        begun = begin(self.crowd())
        self.eventually(lambda: int(self.client.zcard(key)) > before)
        return begun


class Ear:
    """Receives all messages to all processes."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.pubsub = client.pubsub()
        self.pubsub.psubscribe(f"{PREFIX}wake:*")
        assert (self.pubsub.get_message(timeout=GENEROUS) or {})["type"] == "psubscribe"

    def heard(self) -> list[list[str]]:
        """The messages so far, split into words, without probes."""
        self.client.publish(f"{PREFIX}wake:mark", "mark")
        messages: list[list[str]] = []
        while (message := (self.pubsub.get_message(timeout=GENEROUS) or {})["data"].decode()) != "mark":
            if message != "p":
                messages.append(message.split())
        return messages

    def close(self) -> None:
        self.pubsub.close()


def listed(client: redis.Redis, key: str = QUEUE) -> list[tuple[str, int]]:
    """Ids and tickets of the queue, in order."""
    rows: Any = client.zrange(key, 0, -1, withscores=True)
    return [(id.decode(), int(ticket)) for id, ticket in rows]


def channel_of(client: redis.Redis, id: str) -> str:
    """The channel of this waiter; "-" if it polls."""
    entry = client.hget(WAITERS, id)
    assert isinstance(entry, bytes)
    return entry.decode().split(" ")[0]


def receivers(client: redis.Redis, channel: str) -> int:
    """How many are subscribed."""
    return int(client.pubsub_numsub(channel)[0][1])


def vanish(client: redis.Redis, name: str) -> None:
    """Delete the lock, as at the end of its lease, without any message."""
    keys = keys_of(name)
    if keys.member is None:
        assert client.delete(keys.lock)
    else:
        assert client.hdel(keys.lock, keys.member)
        assert client.zrem(keys.busy, keys.member)


def freeze(worker: Worker) -> None:
    """Stop the process, and wait until it has stopped."""
    worker.signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)
