"""From an alias in ``CACHES`` to Redis. No other module knows cache backends or connection pools.

We take the connection class and its keywords from the alias (they must travel together, or unix sockets, TLS and
Sentinel break) and build pools of our own: a bounded or busy cache pool must never keep a holder from releasing,
and redis-py's hidden retries must not repeat a command behind our back.
"""

from __future__ import annotations

import inspect
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.connection import ConnectionDoesNotExist
from redis.connection import BlockingConnectionPool, Connection
from redis.exceptions import ResponseError

from .conf import conf

MAX_CONNECTIONS = 16
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

Command = Sequence[Any]


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
        self.on_close: list[Callable[[], object]] = []
        self._pool = BlockingConnectionPool(
            max_connections=min(pool.max_connections, MAX_CONNECTIONS),
            connection_class=self._class,
            **self._keywords,
        )
        # redis-py before 5.3 wants the name of the command, later ones warn about it
        parameters = inspect.signature(BlockingConnectionPool.get_connection).parameters
        self._wants_name = parameters["command_name"].default is inspect.Parameter.empty

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
        pool = self._pool
        connection = pool.get_connection("_") if self._wants_name else pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            pool.release(connection)

    def execute_many(self, commands: Iterable[Command]) -> list[Any]:
        """Several commands in one write. Errors of single commands stand in the list, in their place."""
        pool = self._pool
        connection = pool.get_connection("_") if self._wants_name else pool.get_connection()
        try:
            return pipeline(connection, list(commands))
        finally:
            pool.release(connection)

    def drop_connections(self) -> None:
        """Close what idles in the pool, so that the next command connects (and asks Sentinel) anew."""
        self._pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        for callback in self.on_close:
            callback()
        self._pool.disconnect()


def pipeline(connection: Connection, commands: list[Command]) -> list[Any]:
    """Send ``commands`` in one write over ``connection``; errors of single commands stand among the answers."""
    connection.send_packed_command(connection.pack_commands(commands))
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers


def _create_cache(alias: str) -> Any:
    try:
        return caches.create_connection(alias)
    except ConnectionDoesNotExist:
        raise ImproperlyConfigured(
            f"There is no cache alias {alias!r} in CACHES for the locks. There are: {', '.join(caches.settings)}."
        ) from None


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
    except NotImplementedError:
        client = None
    pool = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} spreads its keys over several servers (sharding or cluster). All state of a "
            f"lock must live on one: name an alias with a single Redis in REDISLOCK['CACHE']."
        )
    return client


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
    return found


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        with _mutex:
            closing = list(_backends.values())
            _backends.clear()
            _memory_servers.clear()
        for backend in closing:
            backend.close()


def _after_fork_in_child() -> None:
    # sockets and locks of the parent are not ours; the listener closes its own socket itself
    global _mutex
    _mutex = threading.Lock()
    _backends.clear()
    _memory_servers.clear()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.connection")
os.register_at_fork(after_in_child=_after_fork_in_child)
