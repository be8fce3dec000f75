"""One Redis server, as this process reaches it; and how coroutines connect to it, by the counterpart in redis.asyncio
of an alias's connection class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from .aliases import RedisConfig
from .sentinels import LoopSentinels


def for_loops(config: RedisConfig) -> RedisConfig:
    """The same, with connections for event loops."""
    twin = _counterpart(config)
    known = {name for base in twin.__mro__ for name in inspect.signature(base).parameters}
    asked = [key for key, given in config.keywords.items() if given]  # for sentinels, redis-py names all that there are
    if unchecked := [key for key in asked if key.startswith("ssl_") and key not in known]:
        raise ImproperlyConfigured(
            f"{twin.__module__}.{twin.__qualname__} does not know {', '.join(unchecked)} of the cache alias "
            f"{config.alias!r}: coroutines cannot use its locks, since their TLS would be checked less."
        )
    if config.keywords.get("redis_connect_func") is not None:
        raise ImproperlyConfigured(
            f"The redis_connect_func of the cache alias {config.alias!r} is for connections of threads: coroutines "
            f"cannot use its locks, since what it does would be left out."
        )
    keywords = {key: value for key, value in config.keywords.items() if key in known}
    by = config.sentinels
    sentinels = by and LoopSentinels(by.service_name, by.manager, [*map(for_loops, by.ways)], turn=by.turn)
    plain = twin in (Connection, SSLConnection, UnixDomainSocketConnection)
    return replace(
        config,
        kind=type(twin.__name__, (AbortableConnection, twin), {"plain": plain}),
        keywords=keywords,
        sentinels=sentinels,
    )


def _counterpart(config: RedisConfig) -> type[AbstractConnection]:
    """The class in redis.asyncio for a connection class of redis-py; for a site's own class, its ``async_class``.

    Never the counterpart of a base class: what the site's class adds, such as a certificate check, must not be lost.
    """
    kind = config.kind
    found = vars(kind).get("async_class")
    if found is None and kind.__module__ in ("redis.connection", "redis.sentinel"):
        found = getattr(import_module(kind.__module__.replace(".", ".asyncio.")), kind.__name__, None)
    if isinstance(found, type) and issubclass(found, AbstractConnection):
        return found
    raise ImproperlyConfigured(
        f"The connection class {kind.__module__}.{kind.__qualname__} has no counterpart in redis.asyncio: coroutines "
        f"cannot use the locks of the cache alias {config.alias!r}. Name one in its attribute async_class."
    )


class AbortableConnection(AbstractConnection):
    """A connection that closes in one step, even in the last turn of an event loop, or after it.

    TLS would send its goodbye and wait for the peer's, and be left open there.
    """

    plain: bool = False  # it sends and reads as redis-py does, and adds nothing
    _parser: Any

    def abort(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        self._parser.on_disconnect()
        if writer is not None:
            try:
                writer.transport.abort()
            except RuntimeError:
                pass  # its loop was closed

    async def disconnect(self, *more: Any, **named: Any) -> None:
        self.abort()


class Node:
    """A server, or the master that the sentinels name.

    ``anchor`` is a pair: the server's time (microseconds), and the local monotonic time at which the request for it was
    sent, which is never later than that moment. Each node has its own clock. ``id`` is what a cluster node signs its
    handoffs with (C3). ``suspected_at`` is the monotonic time since which another node may have replaced it unawares,
    and ``answered_at`` that of its first answer afterwards (C7); 0 means never, or no longer.
    """

    def __init__(self, config: RedisConfig) -> None:
        self.config: RedisConfig = config
        self.anchor: tuple[int, float] | None = None
        self.id: str = ""
        self.suspected_at: float = 0.0
        self.answered_at: float = 0.0
        self.closed: bool = False
        self.on_close: list[Callable[[], object]] = []

    @cached_property
    def for_loops(self) -> RedisConfig:
        """How event loops reach it."""
        return for_loops(self.config)

    def doubt(self) -> None:
        """It was of no use: where a sentinel has named it, another one is asked next time."""
        if self.config.sentinels is not None:
            self.config.sentinels.turn.doubted = True

    def close(self) -> None:
        """Keep no connections to it from now on: those in use are closed when given back, others by ``on_close``."""
        self.closed = True
        callbacks, self.on_close = self.on_close, []  # breaks a cycle: they refer to this node
        for callback in callbacks:
            callback()
