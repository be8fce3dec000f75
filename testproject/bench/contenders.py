"""The locks that are compared, each used as in real code: a new lock object for each acquisition."""

from __future__ import annotations

import secrets
from functools import cached_property
from hashlib import sha1
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import redis
import redis.asyncio
from django.core.cache import cache

import django_redislock  # another checkout may have no pools
from django_redislock import Lock

if TYPE_CHECKING:
    from .worker import Worker

TTL = 60  # seconds


async def done(result: Any) -> Any:
    """What a call has returned; that of a client for coroutines is awaited."""
    return await result if hasattr(result, "__await__") else result


class Entrant:
    """Something that is compared with others of its kind; each process makes it once."""

    key: ClassVar[str]
    package: ClassVar[str | None] = None  # a package that it needs
    in_coroutines: ClassVar[bool] = True  # whether there is one for coroutines
    on_cluster: ClassVar[bool] = True
    limit: ClassVar[int] = 1  # how many may hold it at once
    elsewhere: ClassVar[bool] = False  # is from another checkout of this package
    coroutine_note: ClassVar[str] = ""  # shown below the figures of coroutines

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @classmethod
    def is_installed(cls) -> bool:
        return cls.package is None or find_spec(cls.package) is not None


class Contender(Entrant):
    """A kind of lock.

    ``commands``: what it sends to Redis. ``in_script``: those of them that each of its scripts also calls once.
    """

    commands: ClassVar[tuple[str, ...]] = ("set", "evalsha")
    in_script: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def client(self) -> Any:
        return self.worker.client(cluster=self.worker.cluster)

    def name(self, number: int) -> str:
        """The lock's name with this number."""
        return f"bench:{self.key}:{number}"

    async def prepare(self, names: int) -> None:
        """Called before so many names are locked."""

    async def acquire(self, name: str, ttl: int = TTL) -> Any:
        """Wait for the lock, without end."""
        lock = self.make(name, ttl)
        await done(lock.acquire())
        return lock

    async def release(self, held: Any) -> None:
        await done(held.release())

    def number(self, held: Any, wanted: int) -> int:
        """The number of what is held."""
        return wanted

    def make(self, name: str, ttl: int) -> Any:
        """A lock object."""
        raise NotImplementedError


class Floor(Contender):
    """The least that a lock can do. Everything else is compared with it."""

    key = "floor"
    on_cluster = False
    script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
    spin = 0.001  # seconds

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.sha = sha1(self.script.encode()).hexdigest()
        with redis.Redis.from_url(worker.url) as client:
            client.script_load(self.script)

    async def acquire(self, name: str, ttl: int = TTL) -> tuple[str, str]:
        token = secrets.token_urlsafe(16)
        while not await done(self.client.set(name, token, nx=True, px=ttl * 1000)):
            await self.worker.sleep(self.spin)
        return name, token

    async def release(self, held: tuple[str, str]) -> None:
        await done(self.client.evalsha(self.sha, 1, *held))


class RedisPy(Contender):
    """redis-py's own lock, which is also django-redis's ``cache.lock()``."""

    key = "redis-py"

    def make(self, name: str, ttl: int) -> Any:
        return self.client.lock(name, timeout=ttl)


class CrowdedRedisPy(RedisPy):
    """The same for many of one process at once."""

    coroutine_note = (
        "on a BlockingConnectionPool without a timeout; its usual pool fails whoever comes when all 100 are busy"
    )

    @cached_property
    def client(self) -> Any:
        if not self.worker.loop:
            return self.worker.client()
        pool = redis.asyncio.BlockingConnectionPool.from_url(self.worker.url, timeout=None)
        return redis.asyncio.Redis(connection_pool=pool)


class PythonRedisLock(Contender):
    """python-redis-lock."""

    key = "python-redis-lock"
    package = "redis_lock"
    in_coroutines = False
    on_cluster = False
    commands = ("get", "set", "blpop", "evalsha")
    in_script = ("get",)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.kind = import_module("redis_lock").Lock

    @cached_property
    def client(self) -> Any:
        return self.worker.client(socket_timeout=None)  # redis-py's own 5 seconds would end its BLPOP with an error

    def make(self, name: str, ttl: int) -> Any:
        return self.kind(self.client, name, expire=ttl)


class OurLock(Contender):
    """Ours, through the cache alias of the worker's settings."""

    key = "Lock"
    commands = ("evalsha",)

    async def acquire(self, name: str, ttl: int = TTL) -> Lock:
        lock = Lock(name, ttl=ttl)
        if self.worker.loop:
            await lock.aacquire()
        else:
            lock.acquire()
        return lock

    async def release(self, held: Lock) -> None:
        if self.worker.loop:
            await held.arelease()
        else:
            held.release()


class OurCacheLock(Contender):
    """Ours as ``cache.lock()``, with redis-py's methods and errors."""

    key = "cache.lock"
    in_coroutines = False
    commands = ("evalsha",)

    def make(self, name: str, ttl: int) -> Any:
        ours: Any = cache  # of our class
        return ours.lock(name, timeout=ttl)


class OtherLock(OurLock):
    """The Lock of another checkout."""

    key = "other Lock"
    elsewhere = True


class OurSemaphore(OurLock):
    """With one permit."""

    key = "Semaphore 1"

    async def acquire(self, name: str, ttl: int = TTL) -> Lock:
        permit = django_redislock.Semaphore(name, limit=self.limit, ttl=ttl)
        await permit.aacquire() if self.worker.loop else permit.acquire()
        return permit


class OurSemaphore5(OurSemaphore):
    """With five."""

    key, limit = "Semaphore 5", 5


class ZsetSemaphore(Floor):
    """What books and blogs show: one sorted set of leases, one of turns; waiters ask again every millisecond."""

    key, limit = "sorted sets 5", 5
    commands = ("evalsha",)
    script = """
        local leases, turns, id = KEYS[1], KEYS[1] .. ':turns', ARGV[1]
        if not ARGV[2] then return redis.call('zrem', leases, id) + redis.call('zrem', turns, id) end
        local time = redis.call('time')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        redis.call('zremrangebyscore', leases, '-inf', now)
        redis.call('zadd', leases, now + ARGV[2], id)
        if not redis.call('zscore', turns, id) then
          redis.call('zadd', turns, redis.call('incr', KEYS[1] .. ':turn'), id)
        end
        redis.call('zinterstore', turns, 2, turns, leases, 'weights', 1, 0)
        return redis.call('zrank', turns, id) < tonumber(ARGV[3]) and 1 or 0
    """

    async def acquire(self, name: str, ttl: int = TTL) -> tuple[str, str]:
        id = secrets.token_urlsafe(16)
        while not await done(self.client.evalsha(self.sha, 1, name, id, ttl * 1000, self.limit)):
            await self.worker.sleep(self.spin)
        return name, id


class PyRedisSemaphore(Contender):
    """py-redis-semaphore."""

    key, limit = "py-redis-semaphore 5", 5
    package = "redis_semaphore"
    in_coroutines = False
    on_cluster = False
    commands = ("evalsha", "blpop")

    def make(self, name: str, ttl: int) -> Any:
        module = import_module(self.package or "")
        config = module.SemaphoreConfig(
            name=name, limit=self.limit, lock_timeout=ttl, acquire_mode=module.AcquireMode.BLPOP
        )
        return module.Semaphore(self.client, config)


class OurPool(OurLock):
    """Members of one pool."""

    key = "LockPool"

    async def prepare(self, names: int) -> None:
        """The first process fills the pool; the others wait for its members."""
        if self.worker.number == 0:
            await self.worker.block(django_redislock.LockPool("bench").assign, [str(number) for number in range(names)])

    async def acquire(self, name: str, ttl: int = TTL) -> Lock:
        pool = django_redislock.LockPool("bench")
        return await pool.aacquire(ttl=ttl) if self.worker.loop else pool.acquire(ttl=ttl)

    def number(self, held: Any, wanted: int) -> int:
        return int(held.key)
