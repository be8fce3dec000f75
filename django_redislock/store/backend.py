"""The Redis of one cache alias, as this process knows it."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from django.core.signals import setting_changed
from redis.connection import Connection
from redis.exceptions import ResponseError

from ..conf import conf
from ..per_process import PerProcess
from .aio import LoopConnections, Maker
from .aliases import Origin, find_origin, lock_aliases
from .memory import check_allowed, forget_servers
from .pool import ConnectionPool
from .wire import Command

MAX_CONNECTIONS = 16


class Backend:
    """The connections of one alias in this process, and what it knows of the server.

    ``known`` is the highest fence that this process has seen; ``anchor`` pairs a server time (microseconds) with the
    local monotonic time at which the request for it was sent, which is never later than the server's own moment.
    """

    def __init__(self, alias: str, key_prefix: str) -> None:
        self.alias = alias
        self.origin: Origin = find_origin(alias)
        self.memory: bool = self.origin.memory
        self.timeout: float = self.origin.timeout
        own = f"{self.origin.key_prefix}:" if self.origin.key_prefix else ""
        self.prefix: str = f"{own}{key_prefix}{{0}}:"
        # locks in the same place exclude each other
        self.place: tuple[tuple[object, ...], str] = (self.origin.database, self.prefix)
        self.channel: str = f"{self.prefix}wake:{secrets.token_urlsafe(12)}"
        self.known = 0
        self.anchor: tuple[int, float] | None = None
        self.closed: bool = False
        self.on_close: list[Callable[[], object]] = []
        self.on_loop_end: list[Callable[[asyncio.AbstractEventLoop], object]] = []
        self._bound = min(self.origin.pool.max_connections, MAX_CONNECTIONS)
        self._pool = ConnectionPool(self._connect_by, self._bound)
        self._maker: Maker | None = None
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    # -- for threads ------------------------------------------------------------------------------------------------

    def execute(self, command: Command, by: float | None = None) -> Any:
        """One command, one answer. ``by``: the monotonic time at which to give up, if the timeouts are longer."""
        (answer,) = self.execute_many([command], by)
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    def execute_many(self, commands: Sequence[Command], by: float | None = None) -> list[Any]:
        """Several commands in one write; errors of single ones stand among the answers."""
        if by is not None and (self.memory or by - monotonic() >= self.timeout):
            by = None
        return self._pool.exchange(commands, by)

    def connect(self, timeout: float) -> Connection:
        """A connection of one's own, outside the pool, with a timeout of its own."""
        return self.origin.connection(timeout)

    def _connect_by(self, by: float | None) -> Connection:
        return self.origin.connection(None if by is None else max(0.001, by - monotonic()))

    # -- for coroutines ---------------------------------------------------------------------------------------------

    async def aexecute(self, command: Command, by: float | None = None, *, urgency: int) -> Any:
        """See execute(). ``urgency``: before which other coroutines that wait for a connection (aio.py)."""
        (answer,) = await self.aexecute_many([command], by, urgency=urgency)
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    async def aexecute_many(self, commands: Sequence[Command], by: float | None = None, *, urgency: int) -> list[Any]:
        """See execute_many()."""
        if self.memory:  # in this process: there is nothing to wait for
            return self.execute_many(commands)
        connections = await self._of_loop()
        return await connections.exchange(commands, by, urgency=urgency)

    async def _of_loop(self) -> LoopConnections:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None or (found.closed and not self.closed):
            for other in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(other, None)
            if self._maker is None:
                self._maker = Maker(self.origin)
            found = LoopConnections(self._maker, self._bound)
            found.closed = self.closed
            self._loops[loop] = found
            await found.open(lambda: self._forget(loop))
        return found

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.pop(loop, None)
        for callback in self.on_loop_end:
            callback(loop)

    # -- for both ---------------------------------------------------------------------------------------------------

    def drop_connections(self) -> None:
        """Close what idles, so that the next command connects (and asks Sentinel) anew."""
        self._pool.drop_idle()
        for loop, connections in list(self._loops.items()):
            if connections.idle:
                try:
                    loop.call_soon_threadsafe(connections.drop_idle_soon)
                except RuntimeError:
                    pass  # the loop was closed, and its connections with it

    def close(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback()
        self._pool.close()
        for connections in list(self._loops.values()):
            connections.closed = True
        self.drop_connections()


class _Backends:
    """Those of this process, by alias and prefix."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Backend] = {}
        self.mutex = threading.RLock()  # a finalizer may use a lock of ours while this is held


_backends = PerProcess(_Backends)


def get_backend(using: str | None = None) -> Backend:
    """The backend of the alias ``using`` (None: the one in the settings). One per alias and process."""
    settings = conf()
    key = (using or settings.CACHE, settings.KEY_PREFIX)
    backends = _backends.get()
    found = backends.found.get(key)
    if found is None:
        with backends.mutex:
            found = backends.found.get(key)
            if found is None:
                found = backends.found.setdefault(key, Backend(*key))
                found.on_close.append(lambda: _drop(key, found))
    elif found.memory:
        check_allowed(found.alias)  # the setting may have changed since
    return found


def made_backends() -> list[Backend]:
    """Those that this process has made under the KEY_PREFIX in force."""
    return [backend for (_, prefix), backend in list(_backends.get().found.items()) if prefix == conf().KEY_PREFIX]


def get_backends(using: str | None = None) -> list[Backend]:
    """That of ``using``, or those of all aliases that have locks, first the one in the settings.

    Of several in the same place, the first.
    """
    if using is not None:
        return [get_backend(using)]
    found: dict[object, Backend] = {}
    for backend in map(get_backend, lock_aliases(conf().CACHE)):
        found.setdefault(backend.place, backend)
    return list(found.values())


def _drop(key: tuple[str, str], closed: Backend) -> None:
    """Nobody is given a closed backend any more: nothing listens there."""
    backends = _backends.get()
    with backends.mutex:
        if backends.found.get(key) is closed:
            del backends.found[key]


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        closing = _backends.reset()
        forget_servers()
        for backend in list(closing.found.values()) if closing is not None else ():
            backend.close()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_redislock.backend")
