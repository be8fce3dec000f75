"""How to reach the Redis behind an alias in ``CACHES``. No other module knows cache backends.

We take the connection class and its keywords from the alias (they must travel together, or unix sockets, TLS and
Sentinel break) and make connections of our own: a bounded or busy cache pool must never keep a holder from releasing,
and redis-py's hidden retries must not repeat a command behind our back.

In memory mode it is an in-process stand-in, for development and tests, that guards one process only.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from logging import WARNING
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis.cluster import NodesManager
from redis.connection import AbstractConnection, Connection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisClusterException, RedisError
from redis.sentinel import SentinelManagedConnection

from ..base.display import shown
from ..base.log import log_event
from ..base.names import check_prefix
from ..base.processes import PerProcess
from ..base.times import seconds
from ..conf import conf
from ..exceptions import LockUnavailable
from .sentinels import Sentinels

_servers: PerProcess[dict[str, Any]] = PerProcess(dict)


def check_allowed(alias: str) -> None:
    """Raise ImproperlyConfigured where the settings demand Redis."""
    if conf().REQUIRE_REDIS:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is not Redis, and REDISLOCK['REQUIRE_REDIS'] is True: without Redis, locks "
            f"guard one process only."
        )


def memory_client(alias: str) -> Any:
    """A client of the server that stands in for ``alias``."""
    check_allowed(alias)
    try:
        import fakeredis
        import lupa  # type: ignore[import-untyped]  # noqa: F401 (it runs the scripts)
    except ImportError:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is not Redis, and its in-process stand-in is not installed: "
            f'python -m pip install "django-redislock[memory]"'
        ) from None
    made = fakeredis.FakeServer()
    server = _servers.get().setdefault(alias, made)
    if server is made and not settings.DEBUG:
        log_event(WARNING, "memory-mode", alias=alias, detail="not Redis: locks guard this process only")
    return fakeredis.FakeRedis(server=server)


def forget_servers() -> None:
    """Drop the stand-ins, with all that they hold."""
    _servers.reset()


DEFAULT_TIMEOUT = 5.0  # seconds, for connecting and for each answer, where the alias has no socket_timeout
# seconds, and how often: so that the system notices a dead peer, and nothing on the way forgets an idle connection
_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
KEEPALIVE = {
    "socket_keepalive": True,
    "socket_keepalive_options": {getattr(socket, key): _PROBES[key] for key in _PROBES if hasattr(socket, key)},
}

_SECONDS = {"socket_timeout": 0.001, "socket_connect_timeout": 0.001, "health_check_interval": 0.0}  # at least

# Keywords of the alias's own pool or client that our connections must not inherit: retries, decoding, RESP3 with its
# parsers and maintenance notifications, and the pool of a Sentinel's, see sentinels.py.
_NOTIFICATIONS = ("maint_", "orig_", "himport_registry", "event_dispatcher")
_OF_RESP3 = ("protocol", "parser_class", "legacy_responses", *_NOTIFICATIONS)
_LEFT_BEHIND = ("retry", "decode_responses", "connection_pool", *_OF_RESP3)

# What Django, django-redis and redis-py raise for an entry whose library or value is missing, or of the wrong type. Not
# Exception: a task queue's time limit may be raised here, too, and must propagate.
_UNUSABLE = (ImportError, AttributeError, LookupError, TypeError, ValueError, RedisError)


Address = tuple[str, int]  # host and port


@dataclass(frozen=True)
class RedisConfig:
    """How to reach the Redis of a cache alias."""

    alias: str
    key_prefix: str  # of the alias
    memory: bool
    kind: type[Any]
    keywords: Mapping[str, Any] = field(repr=False)  # of a connection, the password among them
    pool: Any  # the alias's own
    # kept alive: with it may go what connections need (a directory of keys, a tunnel), or a pool that the site shares
    cache: Any = field(default=None, repr=False)
    sentinels: Sentinels | None = None  # these know the master
    # for a cluster: host and port of the nodes to ask first, and a function that maps the addresses that nodes announce
    startup: tuple[Address, ...] = ()
    remap: Callable[[Address], Address] | None = None

    @property
    def clustered(self) -> bool:
        return bool(self.startup)

    @property
    def database(self) -> tuple[object, ...]:
        """Identifies the Redis database: two aliases of the same one have the same value."""
        if self.clustered:
            return ("cluster", *sorted(self.startup))
        return (self.alias,) if self.memory else _database(self.pool)

    @property
    def address(self) -> str:
        """Host and port of a node of a cluster."""
        return f"{self.keywords.get('host')}:{self.keywords.get('port')}"

    def at(self, host: str, port: int) -> RedisConfig:
        """The configuration for one node of the cluster."""
        return replace(self, keywords={**self.keywords, "host": host, "port": port})

    @property
    def timeout(self) -> float:
        return float(self.keywords["socket_timeout"])

    def connection(self, timeout: float | None = None, **more: Any) -> Any:
        """A connection that takes at most ``timeout`` seconds to connect, and for each answer (None: the alias's own).

        Finding the master through sentinels may take as long again.
        """
        if timeout is not None:
            connecting = min(self.keywords["socket_connect_timeout"], timeout)
            more = {"socket_timeout": timeout, "socket_connect_timeout": connecting, **more}
        if self.sentinels is not None:
            more |= {"connection_pool": self.sentinels.within(self.timeout if timeout is None else timeout)}
        connection = self.kind(**{**self.keywords, **more})
        if connection.db:
            connection.db = str(connection.db)  # R18: redis-py sends it, and words are sent as text
        return connection


def lock_aliases() -> list[str]:
    """The aliases that have locks: first that of the settings, then every alias whose cache has our ``lock()``."""
    first = conf().CACHE
    return [first, *(alias for alias in caches.settings if alias != first and has_locks(alias))]


def has_locks(alias: str) -> bool:
    """Return whether the cache of ``alias`` has our ``lock()``."""
    try:
        kind = import_string(caches.settings[alias]["BACKEND"])
    except Exception:  # a missing library, for instance: such a backend is not ours
        return False
    return hasattr(kind, "lock_alias")


def find_config(alias: str) -> RedisConfig:
    """Return how to reach the Redis of ``alias``; ImproperlyConfigured if locks cannot use it."""
    try:
        return _find_config(alias)
    except LockUnavailable:
        raise
    except (ImproperlyConfigured, *_UNUSABLE) as error:
        trouble = str(error)
        if not isinstance(error, ImproperlyConfigured):
            trouble = f"{type(error).__name__}: {trouble}"
        elif repr(alias) in trouble:
            raise
        # django-redis does not name the alias, for instance when it has no LOCATION
        raise ImproperlyConfigured(f"Cannot use the cache alias {alias!r} for locks: {trouble}") from error


def _find_config(alias: str) -> RedisConfig:
    cache = _create_cache(alias)
    client = _redis_client(cache, alias)
    manager: NodesManager | None = getattr(client, "nodes_manager", None)  # a RedisCluster client has one
    pool: Any = None if client is None else _pool_of(client)
    # connections of fakeredis, too: coroutines, for one, could not use them for locks
    kinds = [] if pool is None else getattr(pool.connection_class, "__mro__", [pool.connection_class])
    memory = pool is None or any(str(getattr(kind, "__module__", "")).startswith("fakeredis.") for kind in kinds)
    if memory:
        pool = memory_client(alias).connection_pool
    if not isinstance(pool.connection_class, type):
        raise ImproperlyConfigured(
            f"The connection_class of the cache alias {alias!r} must be a class, not {shown(pool.connection_class)}."
        )
    if not issubclass(pool.connection_class, AbstractConnection):
        raise _not_through_redis_py(alias, pool.connection_class.__module__)
    keywords = _keywords_of(pool)
    if manager is not None:  # replace redis-py's own function, which may send READONLY
        theirs = client.user_on_connect_func
        keywords["redis_connect_func"] = None if theirs is None else partial(_log_in_first, theirs)
    try:
        prefix = check_prefix(str(cache.key_prefix), f"The KEY_PREFIX of the cache alias {alias!r}")
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None
    remap = keywords.pop("address_remap", None) if manager is None else manager.address_remap
    config = RedisConfig(alias, prefix, memory, pool.connection_class, keywords, pool, (cache, client), remap=remap)
    ways: list[RedisConfig] = []
    if issubclass(pool.connection_class, SentinelManagedConnection):
        watching = [client.connection_pool for client in pool.sentinel_manager.sentinels]
        ways = [RedisConfig(alias, "", False, each.connection_class, _keywords_of(each), each) for each in watching]
        config = replace(config, sentinels=Sentinels(pool.service_name, pool.sentinel_manager, ways))
    if manager is not None:
        found = [(node.host, int(node.port)) for node in manager.startup_nodes.values()]
        with suppress(*_UNUSABLE):  # LOCATION may be whatever the client understands
            found += _startup_nodes(cache, pool)  # from which redis-py has found the others, and which it has forgotten
        return replace(config, startup=tuple(dict.fromkeys(found)))
    # find keywords that no connection accepts now, rather than at the first lock; nothing here connects
    _ = [each.connection() for each in (config, *ways)], config.timeout, config.database
    if not memory and conf().is_cluster(alias):
        _check_clusterable(config)
        return replace(config, startup=_startup_nodes(cache, pool))
    return config


def _log_in_first(then: Callable[[Any], object], connection: Any) -> None:
    connection.on_connect()
    then(connection)


def _keywords_of(pool: Any) -> dict[str, Any]:
    """The keywords for connections that we make ourselves, bypassing this pool."""
    keywords = {key: value for key, value in pool.connection_kwargs.items() if not key.startswith(_LEFT_BEHIND)}
    if issubclass(pool.connection_class, Connection):
        keywords |= {key: value for key, value in KEEPALIVE.items() if keywords.get(key) is None}
    if keywords.get("socket_timeout") is None:
        keywords["socket_timeout"] = DEFAULT_TIMEOUT
    if keywords.get("socket_connect_timeout") is None:
        keywords["socket_connect_timeout"] = keywords["socket_timeout"]
    for key, least in _SECONDS.items():
        if keywords.get(key) is not None:
            keywords[key] = seconds(keywords[key], key, least=least)
    if not isinstance(keywords.get("password") or "", (str, bytes, int)):
        raise TypeError(f"password must be text or bytes, not of type {type(keywords['password']).__name__}.")
    if keywords.get("password") and not (keywords.get("username") or keywords.get("credential_provider")):
        keywords["username"] = "default"  # as with RESP3: then a server without a password does not mind one
    return {**keywords, "protocol": 2}


def _pool_of(client: Any) -> Any:
    """The client's connection pool; for a cluster, that of any node, as they differ in host and port only."""
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        client = next(node.redis_connection for node in manager.nodes_cache.values() if node.redis_connection)
    return client.connection_pool


def _check_clusterable(config: RedisConfig) -> None:
    trouble = ""
    if issubclass(config.kind, (UnixDomainSocketConnection, SentinelManagedConnection)):
        trouble = f"is reached by {config.kind.__name__}, and a cluster by the host and port of its nodes"
    elif int(config.keywords.get("db") or 0) != 0:
        trouble = f"names database {config.keywords['db']}, and a cluster has only database 0"
    if trouble:
        raise ImproperlyConfigured(
            f"REDISLOCK['CLUSTER'] says that the cache alias {config.alias!r} is a cluster, but it {trouble}."
        )


def _startup_nodes(cache: Any, pool: Any) -> tuple[Address, ...]:
    """Host and port of each node that the alias names in its LOCATION."""
    # django-redis, Django's own
    named = getattr(getattr(cache, "client", None), "_server", None) or getattr(cache, "_servers", None) or ()
    known = [pool.connection_kwargs, *map(parse_url, [named] if isinstance(named, str) else named)]
    return tuple(dict.fromkeys((each.get("host", "localhost"), int(each.get("port", 6379))) for each in known))


def database(alias: str) -> tuple[object, ...] | None:
    """See RedisConfig.database; None for an alias that has no Redis, or cannot be used."""
    try:
        return _database(_pool_of(_redis_client(_create_cache(alias), alias)))
    except Exception:  # any backend may be configured here, and any error mean that it is not Redis
        return None


def _database(pool: Any) -> tuple[object, ...]:
    known = pool.connection_kwargs
    where = known.get("path") or _address(known)
    if service := getattr(pool, "service_name", None):  # of sentinels, whatever their order
        sentinels = (client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels)
        where = service, *sorted(map(_address, sentinels), key=str)
    return where, int(known.get("db") or 0)


def _address(known: Mapping[str, Any]) -> Address:
    host = known.get("host", "localhost")
    return _HOSTS.get(host, host), known.get("port", 6379)


_HOSTS = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}


def check_alias(alias: Any) -> str:
    """Return ``alias``, or raise ImproperlyConfigured if it is not in CACHES."""
    if alias not in [*caches.settings]:  # it may be of a type that no key of a dict has
        given = "in REDISLOCK['CACHE']" if alias == conf().CACHE else "given as using"
        raise ImproperlyConfigured(
            f"Unknown cache alias {alias!r} ({given}). The aliases in CACHES are: {', '.join(caches.settings)}."
        )
    return alias  # type: ignore[no-any-return]


def _create_cache(alias: str) -> Any:
    return caches.create_connection(check_alias(alias))


def _not_through_redis_py(alias: str, library: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"The cache alias {alias!r} connects through {library}, but locks work only through redis-py: use django-redis "
        f"or Django's RedisCache, which talk to Valkey as well."
    )


def _redis_client(cache: Any, alias: str) -> Any:
    """The write client of a cache backend, recognised by its capabilities; None for the memory mode."""
    if any(kind.__module__.startswith("django_valkey.") for kind in type(cache).__mro__):
        raise _not_through_redis_py(alias, "valkey-py")  # before it connects: it has errors of its own
    try:
        if callable(getattr(getattr(cache, "client", None), "get_client", None)):  # django-redis
            # django-redis's own pools are kept by URL, with the options of whichever alias has come first
            getattr(cache.client, "connection_factory", cache)._pools = {}
            client = cache.client.get_client(write=True)
        elif callable(getattr(getattr(cache, "_cache", None), "get_client", None)):  # Django's own RedisCache
            if not getattr(cache, "_servers", True):
                raise ImproperlyConfigured(f"The cache alias {alias!r} has no LOCATION: name the URL of its Redis.")
            client = cache._cache.get_client(None, write=True)
        elif isinstance(cache, (LocMemCache, DummyCache)):
            return None
        else:
            raise ImproperlyConfigured(
                f"The cache alias {alias!r} ({type(cache).__module__}.{type(cache).__qualname__}) has no Redis "
                f"connection. Locks need django-redis or Django's RedisCache, or LocMemCache or DummyCache for the "
                f"memory mode."
            )
    except (RedisError, RedisClusterException) as error:  # RedisCluster asks for the slots in its constructor
        raise LockUnavailable(f"Redis cannot be reached for locks (cache alias {alias!r}): {error}", None) from error
    except NotImplementedError:  # django-redis's sharded client
        client = None
    if not hasattr(getattr(client, "connection_pool", None), "connection_class") and not hasattr(
        client, "nodes_manager"
    ):
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} spreads its keys over several servers by itself (sharding). All state of a "
            f"lock must live on one: name one server, Sentinels, or a Redis Cluster."
        )
    return client
