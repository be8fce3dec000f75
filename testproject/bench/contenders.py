"""The locks that are compared, each used as in real code: a new lock object for each acquisition."""

from __future__ import annotations

import asyncio
import copy
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from hashlib import sha1
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol, TypeVar, cast

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster

from django_redislock import FairLock, Lock

TTL = 30  # seconds


class Held(Protocol):
    """An acquisition."""

    def release(self) -> object: ...


class _Usual(Held, Protocol):
    """A lock object of the usual kind."""

    def acquire(self) -> object: ...


class Entrant(ABC):
    """Something that is compared with others of its kind; made once per process, shared by its threads or
    coroutines."""

    key: ClassVar[str]
    package: ClassVar[str | None] = None  # a package that it needs
    coroutines: ClassVar[bool] = False  # for coroutines, not threads: what its methods return must be awaited
    few: ClassVar[bool] = True  # can be used by a single thread or coroutine of a process
    many: ClassVar[bool] = True  # can be used by many of them
    elsewhere: ClassVar[bool] = False  # is from another checkout of this package
    on_server: ClassVar[bool] = True
    on_cluster: ClassVar[bool] = False
    note: ClassVar[str] = ""  # shown below the figures


class Contender(Entrant):
    """One kind of lock on one name.

    ``commands``: what it sends to Redis. ``in_script``: those of them that each of its scripts also calls once.
    """

    commands: ClassVar[tuple[str, ...]]
    in_script: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str, name: str, ttl: int) -> None:
        self.name = name
        self.ttl = ttl  # seconds
        self.client = self.connect(url)

    def connect(self, url: str) -> Any:
        return redis.Redis.from_url(url, **self.options)

    def under(self, name: str) -> Contender:
        """The same lock on another name, over the same connections."""
        other = copy.copy(self)
        other.name = name
        return other

    @abstractmethod
    def acquire(self) -> Held | Awaitable[Held]:
        """Wait for the lock, without end."""

    def release(self, held: Any) -> object:
        return held.release()


class Floor(Contender):
    """The least that a lock can do. Everything else is compared with it."""

    key = "floor"
    many = False  # with hundreds of spinning waiters, this would measure the spinning
    commands = ("set", "evalsha")
    script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
    spin = 0.001  # seconds

    def __init__(self, url: str, name: str, ttl: int) -> None:
        super().__init__(url, name, ttl)
        self.sha = sha1(self.script.encode()).hexdigest()
        with redis.Redis.from_url(url) as client:
            client.script_load(self.script)

    def acquire(self) -> Held | Awaitable[Held]:
        token = secrets.token_urlsafe(16)
        while not self.client.set(self.name, token, nx=True, px=self.ttl * 1000):
            time.sleep(self.spin)
        return _FloorHeld(self, token)


class _FloorHeld:
    __slots__ = ("floor", "token")

    def __init__(self, floor: Floor, token: str) -> None:
        self.floor = floor
        self.token = token

    def release(self) -> object:
        return self.floor.client.evalsha(self.floor.sha, 1, self.floor.name, self.token)


class RedisPy(Contender):
    """redis-py's own lock, which is also django-redis's ``cache.lock()``."""

    key = "redis-py"
    commands = ("set", "evalsha")

    def acquire(self) -> Held | Awaitable[Held]:
        lock: redis.lock.Lock = self.client.lock(self.name, timeout=self.ttl)
        lock.acquire()
        return lock


class ClusterRedisPy(RedisPy):
    """The same on a cluster."""

    on_server = False
    on_cluster = True

    def connect(self, url: str) -> Any:
        return redis.cluster.RedisCluster.from_url(url)


class PythonRedisLock(Contender):
    """python-redis-lock."""

    key = "python-redis-lock"
    package = "redis_lock"
    commands = ("get", "set", "blpop", "evalsha")
    in_script = ("get",)
    options = {"socket_timeout": None}  # redis-py's own 5 seconds would end its BLPOP with an error

    def __init__(self, url: str, name: str, ttl: int) -> None:
        super().__init__(url, name, ttl)
        self.kind: Callable[..., _Usual] = import_module("redis_lock").Lock

    def acquire(self) -> Held:
        lock = self.kind(self.client, self.name, expire=self.ttl)
        lock.acquire()
        return lock


class RedisFifoLock(Contender):
    """redis-fifo-lock, the only other one with a queue and a fence. It is for asyncio, so each process runs an event
    loop."""

    key = "redis-fifo-lock"
    package = "redis_fifo_lock"
    many = False
    commands = ("blpop", "evalsha")

    def __init__(self, url: str, name: str, ttl: int) -> None:
        super().__init__(url, name, ttl)
        self.loop = asyncio.new_event_loop()
        self.fifo_client = redis.asyncio.Redis.from_url(url)
        self._make_lock()

    def _make_lock(self) -> None:
        # kept, because each new object asks Redis for its eviction policy, an extra round trip
        self.lock = import_module("redis_fifo_lock").FifoLock(self.fifo_client, self.name)

    def under(self, name: str) -> RedisFifoLock:
        other = cast("RedisFifoLock", super().under(name))
        other._make_lock()
        return other

    def acquire(self) -> Held:
        return _FifoHeld(self, self.loop.run_until_complete(self.lock.acquire()))


class _FifoHeld:
    __slots__ = ("fifo", "lease")

    def __init__(self, fifo: RedisFifoLock, lease: Any) -> None:
        self.fifo = fifo
        self.lease = lease

    def release(self) -> None:
        self.fifo.loop.run_until_complete(self.fifo.lock.release(self.lease))


class OurLock(Contender):
    """Ours, through the cache alias of the worker's settings."""

    key = "Lock"
    on_cluster = True
    commands = ("evalsha",)
    kind: ClassVar[type[Lock]] = Lock

    def acquire(self) -> Held | Awaitable[Held]:
        lock = self.kind(self.name, ttl=self.ttl)
        lock.acquire()
        return lock


class OtherLock(OurLock):
    """The Lock of another checkout."""

    key = "other Lock"
    elsewhere = True


class OtherFairLock(OtherLock):
    """The FairLock of another checkout, from when Lock and FairLock were two kinds."""

    key = "other FairLock"
    kind = FairLock


class ForCoroutines(Contender):
    """A contender for use in an event loop."""

    coroutines = True

    def connect(self, url: str) -> Any:
        return redis.asyncio.Redis.from_url(url)


class AsyncFloor(ForCoroutines, Floor):
    """See Floor."""

    async def acquire(self) -> Held:
        token = secrets.token_urlsafe(16)
        while not await self.client.set(self.name, token, nx=True, px=self.ttl * 1000):
            await asyncio.sleep(self.spin)
        return _FloorHeld(self, token)


class AsyncRedisPy(ForCoroutines, RedisPy):
    """redis.asyncio's own lock."""

    many = False

    async def acquire(self) -> Held:
        lock: redis.asyncio.lock.Lock = self.client.lock(self.name, timeout=self.ttl)
        await lock.acquire()
        return lock


class AsyncClusterRedisPy(AsyncRedisPy):
    """The same on a cluster."""

    on_server = False
    on_cluster = True

    def connect(self, url: str) -> Any:
        return redis.asyncio.cluster.RedisCluster.from_url(url)


class CrowdedAsyncRedisPy(AsyncRedisPy):
    """The same for many coroutines at once."""

    few = False
    many = True
    note = "on a BlockingConnectionPool without a timeout; its usual pool fails whoever comes when all 100 are busy"

    def connect(self, url: str) -> Any:
        return redis.asyncio.Redis(connection_pool=redis.asyncio.BlockingConnectionPool.from_url(url, timeout=None))


class OurAsyncLock(ForCoroutines, OurLock):
    """See OurLock."""

    async def acquire(self) -> Held:
        lock = self.kind(self.name, ttl=self.ttl)
        await lock.aacquire()
        return lock

    def release(self, held: Lock) -> Awaitable[None]:
        return held.arelease()


class OtherAsyncLock(OurAsyncLock, OtherLock):
    """See OtherLock."""


class OtherAsyncFairLock(OurAsyncLock, OtherFairLock):
    """See OtherFairLock."""


KINDS: tuple[type[Contender], ...] = (
    Floor,
    RedisPy,
    ClusterRedisPy,
    PythonRedisLock,
    RedisFifoLock,
    OurLock,
    AsyncFloor,
    AsyncRedisPy,
    AsyncClusterRedisPy,
    CrowdedAsyncRedisPy,
    OurAsyncLock,
)
OTHERS = (OtherLock, OtherFairLock, OtherAsyncLock, OtherAsyncFairLock)


E = TypeVar("E", bound=Entrant)


def able(kinds: Sequence[type[E]], *, coroutines: bool, crowd: bool, cluster: bool = False) -> dict[str, type[E]]:
    """The contenders for coroutines or threads, for one per process or many, on a server or a cluster."""
    return {
        kind.key: kind
        for kind in kinds
        if kind.coroutines == coroutines
        and (kind.many if crowd else kind.few)
        and (kind.on_cluster if cluster else kind.on_server)
    }


@lru_cache
def installed(kinds: tuple[type[Entrant], ...] = KINDS) -> tuple[str, ...]:
    """The keys of those whose package is installed."""
    return tuple(dict.fromkeys(kind.key for kind in kinds if kind.package is None or find_spec(kind.package)))


@lru_cache
def packages() -> tuple[str, ...]:
    """What to ``pip install`` for the contenders that come from packages of their own."""
    return tuple(kind.key for kind in KINDS if kind.package is not None and kind.key in installed())
