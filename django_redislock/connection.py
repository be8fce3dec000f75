"""From an alias in ``CACHES`` to Redis. No other module knows cache backends or connection pools.

We take the connection class and its keywords from the alias (they must travel together, or unix sockets, TLS and
Sentinel break) and build pools of our own: a bounded or busy cache pool must never keep a holder from releasing,
and redis-py's hidden retries must not repeat a command behind our back.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from redis.connection import Connection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from .aconnection import LoopConnections, Maker
from .conf import conf

MAX_CONNECTIONS = 16
WAIT_FOR_CONNECTION = 20.0  # seconds
# Who comes first where coroutines wait for a connection: a holder must be able to release, and newcomers must not
# overtake those who have asked before.
LEAVING, RETURNING, ENTERING = range(3)
IDLE = 0.005  # seconds after which a connection is looked at before it is used again
DEFAULT_SOCKET_TIMEOUT = 5.0
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

# What belongs to the alias's own pool or client and must not come along: retries, decoding, and the plumbing of
# redis-py's maintenance notifications, which needs RESP3.
_LEFT_BEHIND = (
    "retry",
    "decode_responses",
    "protocol",
    "legacy_responses",
    "maint_",
    "orig_",
    "himport_registry",
    "event_dispatcher",
)

Command = tuple[Any, ...]

pack_command: Callable[[Command], bytes]
try:
    # what redis-py does as well, without a look at the type of each argument: 2 % of an uncontended lock
    from hiredis import pack_command
except ImportError:  # pragma: no cover (the tests have hiredis)
    _packer = Connection()
    pack_command = lambda command: b"".join(_packer.pack_command(*command))  # noqa: E731


class Backend:
    """The connections of one alias in this process: a bounded pool for commands, and single ones on request.

    ``known`` is the highest fence that this process has seen; ``anchor`` pairs a server time (microseconds) with the
    local monotonic time at which the request for it was sent, which is never later than the server's own moment.
    """

    def __init__(self, alias: str, key_prefix: str) -> None:
        self.alias = alias
        cache = _create_cache(alias)
        client = _redis_client(cache, alias)
        self.memory = client is None
        if client is None:
            client = _memory_client(alias)
        pool = client.connection_pool
        # Sentinel connections ask their own pool for the master: keep it alive
        self._origin = (cache, client)
        self._class: type[Connection] = pool.connection_class
        self._keywords = {
            key: value for key, value in pool.connection_kwargs.items() if not key.startswith(_LEFT_BEHIND)
        } | {"protocol": 2}
        if self._keywords.get("socket_timeout") is None:
            self._keywords["socket_timeout"] = DEFAULT_SOCKET_TIMEOUT
        self.timeout = float(self._keywords["socket_timeout"])
        own = f"{cache.key_prefix}:" if cache.key_prefix else ""
        if "{" in own or "}" in own:
            raise ImproperlyConfigured(
                f"The KEY_PREFIX of the cache alias {alias!r} contains braces ({cache.key_prefix!r}): they decide the "
                f"hash slot of a lock's keys. Take an alias without them for the locks (REDISLOCK['CACHE'])."
            )
        self.prefix = f"{own}{key_prefix}{{0}}:"
        self.channel = f"{self.prefix}wake:{secrets.token_urlsafe(12)}"
        self.known = 0
        self.anchor: tuple[int, float] | None = None
        self.closed = False
        self.on_close: list[Callable[[], object]] = []
        self.on_loop_end: list[Callable[[asyncio.AbstractEventLoop], object]] = []
        self._bound = min(pool.max_connections, MAX_CONNECTIONS)
        self._connections = _Connections(lambda: self._class(**self._keywords), self._bound)
        self._pool = pool
        self._maker: Maker | None = None
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    def connect(self, timeout: float | None) -> Connection:
        """A connection outside the pool, with a socket timeout of its own (None: reads wait without end)."""
        keywords: dict[str, Any] = {**self._keywords, "socket_timeout": timeout}
        if not keywords.get("socket_connect_timeout"):
            keywords["socket_connect_timeout"] = self.timeout
        if timeout is not None:
            keywords["socket_connect_timeout"] = min(keywords["socket_connect_timeout"], timeout)
        if issubclass(self._class, Connection) and not self.memory:
            options = {getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)}
            keywords |= {"socket_keepalive": True, "socket_keepalive_options": options}
        keywords["health_check_interval"] = 0
        return self._class(**keywords)

    def execute(self, command: Command) -> Any:
        """One command, one answer."""
        connection = self._connections.borrow()
        try:
            connection.send_packed_command([pack_command(command)])
            answer = connection.read_response()
        except ResponseError:
            self._connections.give_back(connection)
            raise
        except BaseException:
            self._connections.give_back(connection, broken=True)
            raise
        self._connections.give_back(connection)
        return answer

    def execute_many(self, commands: Iterable[Command]) -> list[Any]:
        """Several commands in one write. Errors of single commands stand in the list, in their place."""
        connection = self._connections.borrow()
        try:
            answers = pipeline(connection, list(commands))
        except BaseException:
            self._connections.give_back(connection, broken=True)
            raise
        self._connections.give_back(connection)
        return answers

    async def aexecute(self, command: Command, *, urgency: int = ENTERING) -> Any:
        """See execute(). ``urgency``: before which other coroutines that wait for a connection."""
        if self.memory:  # in this process: there is nothing to wait for
            return self.execute(command)
        connections = await self._of_loop()
        (answer,) = await connections.exchange([pack_command(command)], 1, urgency=urgency)
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    async def aexecute_many(self, commands: Iterable[Command]) -> list[Any]:
        """See execute_many()."""
        commands = list(commands)
        if self.memory:
            return self.execute_many(commands)
        connections = await self._of_loop()
        packed = [pack_command(command) for command in commands]
        return await connections.exchange(packed, len(commands), urgency=ENTERING)

    async def _of_loop(self) -> LoopConnections:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None or (found.closed and not self.closed):
            for other in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(other, None)
            if self._maker is None:
                self._maker = Maker(self._pool, self._keywords)
            found = LoopConnections(self._maker, bound=self._bound, idle=IDLE, patience=WAIT_FOR_CONNECTION)
            found.closed = self.closed
            self._loops[loop] = found
            await found.open(lambda: self._forget(loop))
        return found

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.pop(loop, None)
        for callback in self.on_loop_end:
            callback(loop)

    def drop_connections(self) -> None:
        """Close what idles, so that the next command connects (and asks Sentinel) anew."""
        self._connections.drop_idle()
        for loop, connections in list(self._loops.items()):
            if connections.idle:
                try:
                    loop.call_soon_threadsafe(_drop_idle, connections)
                except RuntimeError:
                    pass  # the loop was closed, and its connections with it

    def close(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback()
        self._connections.close()
        for connections in list(self._loops.values()):
            connections.closed = True
        self.drop_connections()


_tasks: set[asyncio.Task[None]] = set()  # an event loop alone keeps none alive


def _drop_idle(connections: LoopConnections) -> None:
    """In the event loop of these connections."""
    task = asyncio.get_running_loop().create_task(connections.drop_idle())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


class _Connections:
    """A bounded stack of connections; who finds none free waits for one.

    redis-py's BlockingConnectionPool does the same and more, for a tenth of the time of an uncontended lock: it asks
    the system before each command whether the connection went stale, we only when it has idled for a while.
    """

    def __init__(self, make: Callable[[], Connection], bound: int) -> None:
        self._make = make
        self._idle: deque[tuple[Connection, float]] = deque()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        for _ in range(bound):
            self._permits.put(None)

    def borrow(self) -> Connection:
        try:
            self._permits.get(timeout=WAIT_FOR_CONNECTION)
        except Empty:
            raise ConnectionError(f"no connection became free within {WAIT_FOR_CONNECTION} s") from None
        try:
            try:
                connection, used = self._idle.pop()
            except IndexError:
                connection, used = self._make(), 0.0
            if monotonic() - used > IDLE:
                if used and _is_stale(connection):
                    connection.disconnect()
                # not left to send_command: only here does a Sentinel's connection ask for its master
                connection.connect()
        except BaseException:
            self._permits.put(None)
            raise
        return connection

    def give_back(self, connection: Connection, *, broken: bool = False) -> None:
        """``broken``: an answer may still come, which nobody else must read."""
        if broken or self._closed:
            connection.disconnect()
        else:
            self._idle.append((connection, monotonic()))
        self._permits.put(None)

    def close(self) -> None:
        """Keep no connection from now on; commands still work, each with its own."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        try:
            while True:
                self._idle.pop()[0].disconnect()
        except IndexError:
            pass


def _is_stale(connection: Connection) -> bool:
    """Whether the server has closed the connection, or has sent what nobody asked for."""
    try:
        return bool(connection.can_read(0))
    except (ConnectionError, TimeoutError, OSError):
        return True


def pipeline(connection: Connection, commands: list[Command]) -> list[Any]:
    """Send ``commands`` in one write over ``connection``; errors of single commands stand among the answers."""
    connection.connect()
    connection.send_packed_command([b"".join(map(pack_command, commands))])
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers


def _create_cache(alias: str) -> Any:
    if alias not in caches.settings:
        raise ImproperlyConfigured(
            f"There is no cache alias {alias!r} in CACHES for the locks. There are: {', '.join(caches.settings)}."
        )
    return caches.create_connection(alias)


def _redis_client(cache: Any, alias: str) -> Any:
    """The write client of a cache backend, found by what it can do; None for the memory mode."""
    try:
        if callable(getattr(getattr(cache, "client", None), "get_client", None)):  # django-redis
            client = cache.client.get_client(write=True)
        elif callable(getattr(getattr(cache, "_cache", None), "get_client", None)):  # Django's own RedisCache
            client = cache._cache.get_client(None, write=True)
        elif isinstance(cache, (LocMemCache, DummyCache)):
            return None
        else:
            raise ImproperlyConfigured(
                f"The cache alias {alias!r} ({type(cache).__module__}.{type(cache).__qualname__}) has no Redis "
                f"connection. Locks need django-redis or Django's RedisCache, or LocMemCache or DummyCache for the "
                f"memory mode."
            )
    except NotImplementedError:  # django-redis's sharded client
        client = None
    except ValueError as error:  # a URL that redis-py cannot read
        raise ImproperlyConfigured(f"The cache alias {alias!r} cannot be used for locks: {error}") from error
    pool = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} spreads its keys over several servers (sharding or cluster). All state of a "
            f"lock must live on one: name an alias with a single Redis in REDISLOCK['CACHE']."
        )
    return client


def database(alias: str) -> tuple[object, ...] | None:
    """What tells the Redis database of a cache alias from others; None when it has none, or cannot be used."""
    try:
        pool = _redis_client(_create_cache(alias), alias).connection_pool
    except Exception:  # whatever backend that is: it is none of ours
        return None
    known = pool.connection_kwargs
    service = getattr(pool, "service_name", None)  # of a Sentinel
    host = known.get("host", "localhost")
    where = (service,) if service else (known.get("path") or (_HOSTS.get(host, host), known.get("port", 6379)),)
    return (*where, int(known.get("db") or 0))


_HOSTS = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}
_memory_servers: dict[str, Any] = {}


def _memory_client(alias: str) -> Any:
    try:
        import fakeredis
    except ImportError:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is no Redis, and its in-process stand-in is not installed: "
            f'python -m pip install "django-redislock[memory]"'
        ) from None
    if alias not in _memory_servers:
        _memory_servers[alias] = fakeredis.FakeServer()
    return fakeredis.FakeRedis(server=_memory_servers[alias])


_backends: dict[tuple[str, str], Backend] = {}
_mutex = threading.Lock()


def get_backend(using: str | None = None) -> Backend:
    """The backend of the alias ``using`` (None: the one in the settings). One per alias and process."""
    settings = conf()
    key = (using or settings.CACHE, settings.KEY_PREFIX)
    found = _backends.get(key)
    if found is None:
        with _mutex:
            found = _backends.get(key)
            if found is None:
                found = _backends[key] = Backend(*key)
                found.on_close.append(lambda: _drop(key, found))
    return found


def _drop(key: tuple[str, str], closed: Backend) -> None:
    """Nobody is given a closed backend any more: nothing listens there."""
    with _mutex:
        if _backends.get(key) is closed:
            del _backends[key]


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        with _mutex:
            closing = list(_backends.values())
            _backends.clear()
            _memory_servers.clear()
        for backend in closing:
            backend.close()


def _after_fork_in_child() -> None:  # pragma: no cover (runs in forked children only)
    # sockets and locks of the parent are not ours; the listener closes its own socket itself
    global _mutex
    _mutex = threading.Lock()
    _backends.clear()
    _memory_servers.clear()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.connection")
os.register_at_fork(after_in_child=_after_fork_in_child)
