"""The counterparts in redis.asyncio of an alias's connections, for coroutines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from django.core.exceptions import ImproperlyConfigured
from redis.asyncio.connection import AbstractConnection

from .aliases import Origin
from .sentinels import LoopAsking, Sentinels

_COUNTERPARTS = (
    (redis.connection, redis.asyncio.connection),
    (redis.sentinel, redis.asyncio.sentinel),
)
# what is only for a pool of connections, or would have to be awaitable here
_LEFT_BEHIND = {"connection_pool", "parser_class", "redis_connect_func"}


class Maker:
    """Makes connections for event loops from the connection class and keywords of an alias."""

    def __init__(self, origin: Origin) -> None:
        twin = _counterpart(origin)
        self._class: Callable[..., HangsUp] = type(twin.__name__, (HangsUp, twin), {})
        known = {name for base in twin.__mro__ for name in inspect.signature(base).parameters}
        if unchecked := [key for key in origin.keywords if key.startswith("ssl_") and key not in known]:
            raise ImproperlyConfigured(
                f"{twin.__module__}.{twin.__qualname__} does not know {', '.join(unchecked)} of the cache alias "
                f"{origin.alias!r}: coroutines cannot use its locks, since their TLS would be checked less."
            )
        self._keywords = {key: value for key, value in origin.keywords.items() if key in known - _LEFT_BEHIND}
        # we limit the whole exchange instead of each write (which takes a task before Python 3.12) and each read
        self.timeout: float = origin.timeout
        self._keywords["socket_timeout"] = None
        known_by = origin.sentinels
        self._sentinels = known_by and Sentinels(known_by.name, known_by.manager, [*map(Maker, known_by.ways)])

    def make(self, seconds: float) -> HangsUp:
        """A connection. With Sentinel, it takes at most ``seconds`` to find the master."""
        more = {} if self._sentinels is None else {"connection_pool": LoopAsking(self._sentinels, seconds)}
        return self._class(**self._keywords, **more)

    def connection(self, timeout: float) -> HangsUp:
        """A connection that takes at most ``timeout`` seconds to connect, and for each answer."""
        return self._class(**{**self._keywords, "socket_timeout": timeout, "socket_connect_timeout": timeout})


def _counterpart(origin: Origin) -> type[AbstractConnection]:
    """The class in redis.asyncio for a connection class of redis-py; for a site's own class, its ``async_class``.

    Never the counterpart of a base class: what the site's class adds, such as a certificate check, must not be lost.
    """
    kind = origin.kind
    found = vars(kind).get("async_class")
    for ours, theirs in _COUNTERPARTS:
        if found is None and kind.__module__ == ours.__name__:
            found = getattr(theirs, kind.__name__, None)
    if isinstance(found, type) and issubclass(found, AbstractConnection):
        return found
    raise ImproperlyConfigured(
        f"The connection class {kind.__module__}.{kind.__qualname__} has no counterpart in redis.asyncio: coroutines "
        f"cannot use the locks of the cache alias {origin.alias!r}. Name one in its attribute async_class."
    )


class HangsUp(AbstractConnection):
    """A connection that closes in one step, even in the last turn of an event loop, or after it.

    TLS would send its goodbye and wait for the peer's, and be left open there.
    """

    def hang_up(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        self._parser.on_disconnect()
        if writer is not None:
            try:
                writer.transport.abort()
            except RuntimeError:
                pass  # its loop was closed

    async def disconnect(self, *more: Any, **named: Any) -> None:
        self.hang_up()
