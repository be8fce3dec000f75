"""Connections for coroutines: one bounded stack per alias and running event loop, closed with its loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from time import monotonic
from typing import Any, cast

import redis.asyncio.connection
import redis.asyncio.sentinel
from django.core.exceptions import ImproperlyConfigured
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:  # pragma: no cover

    class time_limit:  # noqa: N801 (it stands for a function)
        """What we need of asyncio.timeout. That of async_timeout cannot be moved by a callback of the loop."""

        def __init__(self, when: None) -> None:
            self._task = cast("asyncio.Task[Any]", asyncio.current_task())
            self._struck = False
            self._strike: asyncio.Handle | None = None

        async def __aenter__(self) -> time_limit:
            return self

        def reschedule(self, when: float) -> None:
            self._strike = asyncio.get_running_loop().call_soon(self._end)

        def _end(self) -> None:
            self._struck = True
            self._task.cancel()

        async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
            if self._strike is not None:
                self._strike.cancel()
            if self._struck and kind is asyncio.CancelledError:
                raise asyncio.TimeoutError


# what a pool of connections brings along for itself, or what would have to be awaitable here
_LEFT_BEHIND = {"connection_pool", "parser_class", "redis_connect_func"}


class Maker:
    """Makes connections for event loops out of the class and keywords of an alias's own."""

    def __init__(self, pool: Any, keywords: Mapping[str, Any]) -> None:
        self._class = _twin(pool.connection_class)
        known = {name for base in self._class.__mro__ for name in inspect.signature(base).parameters}
        self._keywords = {key: value for key, value in keywords.items() if key in known - _LEFT_BEHIND}
        # one limit for a whole exchange, instead of one for each write (a task of its own before Python 3.12) and read
        self.timeout = self._keywords["socket_timeout"]
        self._keywords["socket_timeout"] = None
        if not self._keywords.get("socket_connect_timeout"):
            self._keywords["socket_connect_timeout"] = self.timeout
        self._pool = pool if issubclass(self._class, redis.asyncio.sentinel.SentinelManagedConnection) else None

    def sentinel(self) -> Any:
        """What a Sentinel's connections ask for the master, anew for each event loop; None where there is none."""
        if self._pool is None:
            return None
        manager = self._pool.sentinel_manager
        watchers = [client.connection_pool.connection_kwargs for client in manager.sentinels]
        return redis.asyncio.sentinel.SentinelConnectionPool(
            self._pool.service_name,
            redis.asyncio.Sentinel(
                [(known["host"], known["port"]) for known in watchers],
                min_other_sentinels=manager.min_other_sentinels,
                sentinel_kwargs=manager.sentinel_kwargs,
            ),
        )

    def make(self, sentinel: Any) -> AbstractConnection:
        more = {} if sentinel is None else {"connection_pool": sentinel}
        return self._class(**self._keywords, **more)


def _twin(kind: type) -> type[AbstractConnection]:
    """The class of redis.asyncio for a connection class of redis, or for what it was derived from."""
    for base in kind.__mro__:
        for module in (redis.asyncio.connection, redis.asyncio.sentinel):
            found = getattr(module, base.__name__, None)
            if isinstance(found, type) and issubclass(found, AbstractConnection) and found is not AbstractConnection:
                return found
    raise ImproperlyConfigured(
        f"The connection class {kind.__module__}.{kind.__qualname__} has no counterpart in redis.asyncio: coroutines "
        f"cannot use the locks of this cache alias."
    )


class LoopConnections:
    """A bounded stack of connections for one event loop; a coroutine that finds none free waits for one."""

    def __init__(self, maker: Maker, *, bound: int, idle: float, patience: float) -> None:
        self._maker = maker
        self._idle_for = idle  # seconds after which a connection is looked at before it is used again
        self._patience = patience  # seconds
        self._sentinel = maker.sentinel()
        self._idle: deque[tuple[AbstractConnection, float]] = deque()
        self._permits = bound
        # those who wait for a permit, by urgency
        self._queues: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque(), deque())
        self._end: AsyncGenerator[None, None] | None = None
        self.closed = False  # commands still work, each with a connection of its own

    async def open(self, forget: Callable[[], object]) -> None:
        """Tie our end to that of the running loop, which closes the asynchronous generators that it has begun.

        ``forget`` is called then.
        """
        self._end = self._until_the_loop_ends(forget)
        await self._end.__anext__()

    async def _until_the_loop_ends(self, forget: Callable[[], object]) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            forget()
            self.closed = True
            await self.drop_idle()

    async def exchange(self, packed: list[bytes], answers: int, *, urgency: int) -> list[Any]:
        """Send what is packed in one write, and read so many answers; errors of single commands stand among them."""
        await self._get_permit(urgency)
        try:
            async with time_limit(None) as limit:
                # it strikes one turn of the loop later: what came while the loop stood still is read before
                alarm = asyncio.get_running_loop().call_later(self._maker.timeout, limit.reschedule, 0.0)
                try:
                    return await self._exchange(packed, answers)
                finally:
                    alarm.cancel()
        except RuntimeError:
            if asyncio._get_running_loop() is None:  # closed after its loop: redis-py stumbles as it cleans up
                raise GeneratorExit from None
            raise
        except asyncio.TimeoutError:
            raise TimeoutError(f"no answer within {self._maker.timeout} s") from None
        finally:
            self._return_permit()

    async def _exchange(self, packed: list[bytes], answers: int) -> list[Any]:
        connection = await self._connected()
        try:
            await connection.send_packed_command(packed, check_health=False)
            read: list[Any] = []
            for _ in range(answers):
                try:
                    read.append(await connection.read_response())
                except ResponseError as error:
                    read.append(error)
        except BaseException:
            # of a cancellation, say: an answer may still come, which nobody else must read
            await connection.disconnect(nowait=True)
            raise
        if self.closed:
            await connection.disconnect()
        else:
            self._idle.append((connection, monotonic()))
        return read

    async def _get_permit(self, urgency: int) -> None:
        """A lower urgency is served first; see connection.py."""
        if self._permits > 0:
            self._permits -= 1
            return
        loop = asyncio.get_running_loop()
        permit = loop.create_future()
        self._queues[urgency].append(permit)
        limit = loop.call_later(self._patience, self._give_up, permit)
        try:
            await permit
        except BaseException:
            if permit.done() and not permit.cancelled() and permit.exception() is None:
                self._return_permit()  # it came in the very moment of a cancellation
            permit.cancel()
            raise
        finally:
            limit.cancel()

    def _give_up(self, permit: asyncio.Future[None]) -> None:
        if not permit.done():
            permit.set_exception(ConnectionError(f"no connection became free within {self._patience} s"))

    def _return_permit(self) -> None:
        for queue in self._queues:
            while queue:
                permit = queue.popleft()
                if not permit.done():
                    permit.set_result(None)
                    return
        self._permits += 1

    async def _connected(self) -> AbstractConnection:
        if self._idle:
            connection, used = self._idle.pop()
            if monotonic() - used <= self._idle_for:
                return connection
        else:
            connection, used = self._maker.make(self._sentinel), 0.0
        try:
            if used and await _is_stale(connection):
                await connection.disconnect(nowait=True)
            # not left to the sending: only here does a Sentinel's connection ask for its master
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    @property
    def idle(self) -> bool:
        """Whether there is something to drop."""
        return bool(self._idle) or (self.closed and self._sentinel is not None)

    async def drop_idle(self) -> None:
        """Close what idles; for good when ``closed``."""
        while self._idle:
            await self._idle.pop()[0].disconnect()
        if self.closed and self._sentinel is not None:
            for client in self._sentinel.sentinel_manager.sentinels:
                await client.aclose()


async def _is_stale(connection: AbstractConnection) -> bool:
    """Whether the server has closed the connection, or has sent what nobody asked for."""
    look = connection.can_read() if hasattr(connection, "can_read") else connection.can_read_destructive()
    if sys.version_info < (3, 11):  # pragma: no cover
        # redis-py before 8 looks by reading for no time, and there a time limit of zero swallows a cancellation
        look = asyncio.shield(look)
    try:
        return bool(await look)
    except (ConnectionError, TimeoutError, OSError):
        return True
