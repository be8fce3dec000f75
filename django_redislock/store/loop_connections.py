"""The connections of coroutines: a bounded number per alias and running event loop, closed with their loop."""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError, TimeoutError

from ..base.steps import arun
from ..base.times import GRACE, Alarm, is_frozen, monotonic
from .node import AbortableConnection, Node
from .sentinels import believe, connect
from .thread_connections import IDLE, IDLE_FOR, PATIENCE, PooledConnection, find, surplus, taken
from .wire import CONNECTION_ERRORS, NO_FAILOVER_WITHIN, Command, NotAsked, classified, pack, with_address

# The order in which waiting coroutines get a connection: a holder must be able to release, newcomers must not overtake
# those who asked before, and a look by the clock alone has time.
LEAVING, RETURNING, ENTERING, LOOKING = range(4)
# seconds more, once time is up: where the loop has hung for all of it, nothing is said against the node
AFTER_HANGING = 0.2


class Loan:
    """The right of a coroutine to use a connection."""

    entry: weakref.ref[Loan] | None = None  # its entry in the set that is counted


class _Limit:
    """Hangs up a connection on which an exchange takes too long: whoever reads fails then.

    It is lighter than a time limit for the task, since one alarm is set for many exchanges: when it rings, it looks
    whether one is late. redis-py's own limits for reads and writes swallow cancellations before Python 3.12.
    """

    __slots__ = ("_alarm", "_connection", "_loop", "_rings", "_until", "struck")

    def __init__(self, connection: AbortableConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._alarm: Any = None
        self._rings = self._until = math.inf  # monotonic
        self.struck = False

    def begin(self, until: float) -> None:
        """An exchange begins, which may last until then."""
        self._until, self.struck = until, False
        if until < self._rings or is_frozen():  # then the alarm may have been set before, and never ring
            self._set(until)

    def end(self, error: BaseException | None = None) -> None:
        """It is over, with this ``error``: after a cancellation, for instance, the answer may still come, and nobody
        else must read it."""
        self._until = math.inf
        if self.struck:
            self._silence()
        if error is not None:
            self._connection.abort()
            if self.struck and isinstance(error, Exception):
                raise TimeoutError("no answer in time") from None

    def _set(self, at: float) -> None:
        self._silence()
        self._rings = at
        self._alarm = Alarm(self._loop, at - monotonic(), self._ring)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._rings = None, math.inf

    def _ring(self) -> None:
        self._silence()
        if self._until <= monotonic():
            # one turn of the loop later, after what arrived while the loop was blocked is read
            self._loop.call_soon(self._strike)
        elif self._until < math.inf:
            self._set(self._until)

    def _strike(self) -> None:
        if self._until <= monotonic():
            self.struck = True
            self._connection.abort()
            self._rings = monotonic() + 0.1
            self._alarm = Alarm(self._loop, 0.1, self._strike)  # it may just have been connected


class PooledLoopConnection(PooledConnection):
    """A connection of coroutines, with its limit."""

    __slots__ = ("limit",)

    def __init__(self, node: Node, connection: AbortableConnection) -> None:
        super().__init__(node, connection)
        self.limit = _Limit(connection)


class LoopConnections:
    """A bounded stack of connections for one event loop. A coroutine that finds none free waits for one."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.idle: deque[PooledLoopConnection] = deque()
        self._loans: set[weakref.ref[Loan]] = set()
        # coroutines that wait for a connection, by urgency; each with what ends its waiting
        self._queues: tuple[deque[tuple[Loan, asyncio.Future[None]]], ...] = tuple(deque() for _ in range(4))
        self.end: AsyncGenerator[None, None] | None = None  # closes them with their loop
        self.closed: bool = False  # commands still work, each with a connection of its own

    async def exchange(
        self, node: Node, commands: Sequence[Command], by: float | None, *, urgency: int
    ) -> tuple[list[Any], float]:
        """See ThreadConnections.exchange(). ``urgency``: which waiting coroutines come first; see LEAVING."""
        loan = Loan()
        try:
            if len(self._loans) < self._bound:
                self._grant(loan)
            else:
                await self._enter(loan, _left(PATIENCE, by), urgency)
            sent = monotonic()
            until = sent + node.config.timeout
            pooled = self._take(node)
            if pooled is None or sent - pooled.used > IDLE or _was_reset(pooled.connection):
                pooled = await self._connected(pooled, node, _left(node.config.timeout, by))
                until = monotonic() + node.config.timeout
                by = by and max(by, monotonic() + GRACE)  # as in ThreadConnections
            connection, limit = pooled.connection, pooled.limit
            read: list[Any] = []
            try:
                limit.begin(until if by is None or by > until else by)
                if connection.plain and connection._writer is not None:  # as below, in fewer steps
                    connection._writer.write(pack(commands))
                    for _ in commands:
                        answer = await connection._parser.read_response()
                        read.append(classified(answer) if isinstance(answer, ResponseError) else answer)
                else:
                    await connection.send_packed_command([pack(commands)], check_health=False)
                    for _ in commands:
                        try:
                            read.append(await connection.read_response())
                        except ResponseError as error:
                            read.append(classified(error))
            except BaseException as error:
                limit.end(error)
                if isinstance(error, OSError):
                    raise with_address(error, connection) from error
                raise
            limit.end()
            pooled.used = monotonic()
            if pooled.used - sent > NO_FAILOVER_WITHIN:
                try:
                    await arun(believe(connection, sent))
                except BaseException:
                    connection.abort()
                    raise
            if self.closed or node.closed or limit.struck:
                connection.abort()
            else:
                self.idle.append(pooled)
            return read, sent
        finally:
            self._leave(loan)

    def _take(self, node: Node) -> PooledLoopConnection | None:
        """An unused connection to ``node``."""
        try:
            return self.idle.pop() if self.idle[-1].node is node else find(self.idle, node)
        except IndexError:
            return None

    async def _connected(self, pooled: PooledLoopConnection | None, node: Node, seconds: float) -> PooledLoopConnection:
        """This unused connection if it is in order, else a new one."""
        if pooled is not None:
            stale = True
            try:
                stale = _was_reset(pooled.connection) or await _is_stale(pooled.connection)
            finally:
                if stale:  # or the check was cancelled
                    pooled.connection.abort()
            if not stale:
                return pooled
            self.drop_idle(node)  # nor are those in order that were unused for longer
        for oldest in surplus(self.idle, self._bound - len(self._loans)):  # make room for the new one
            oldest.connection.abort()
        try:
            return await self._connect(node, seconds)
        except TimeoutError:
            return await self._connect(node, AFTER_HANGING)

    @staticmethod
    async def _connect(node: Node, seconds: float) -> PooledLoopConnection:
        pooled = PooledLoopConnection(node, node.for_loops.connection(seconds, socket_timeout=None))
        try:
            pooled.limit.begin(monotonic() + seconds)
            await arun(connect(pooled.connection))
        except BaseException as error:
            pooled.limit.end(error)
            raise
        pooled.limit.end()
        return pooled

    async def _enter(self, loan: Loan, patience: float, urgency: int) -> None:
        """Wait until there are fewer loans than connections. A lower urgency is served first."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        self._queues[urgency].append((loan, granted))
        limit = Alarm(loop, patience, partial(Alarm, loop, AFTER_HANGING, partial(self._give_up, granted)))
        try:
            await granted
        finally:
            limit.cancel()
            if not loop.is_closed():
                granted.cancel()  # so that it is not granted any more

    @staticmethod
    def _give_up(granted: asyncio.Future[None]) -> None:
        if not granted.done():
            granted.set_exception(NotAsked("no connection became free in time"))

    def _leave(self, loan: Loan) -> None:
        """End the loan, if it was granted at all, and grant the next one."""
        if loan.entry is not None:
            self._loans.discard(loan.entry)
        for queue in self._queues:
            while queue and len(self._loans) < self._bound:
                following, granted = queue.popleft()
                if not granted.done() and not granted.get_loop().is_closed():
                    self._grant(following)
                    granted.set_result(None)

    def _grant(self, loan: Loan) -> None:
        # if an exception strikes while the loan is returned, it still ends when its object dies, in C code alone
        loan.entry = weakref.ref(loan, self._loans.discard)
        self._loans.add(loan.entry)

    def drop_idle(self, node: Node | None = None) -> None:
        """Close the unused connections to ``node`` (None: to all nodes). Call it in their event loop."""
        for pooled in taken(self.idle, node):
            pooled.connection.abort()

    def trim(self) -> None:
        """Close all but one of those that nobody has needed for a while. Call it in their event loop."""
        for oldest in surplus(self.idle, 1, monotonic() - IDLE_FOR):
            oldest.connection.abort()


def _left(seconds: float, by: float | None) -> float:
    return seconds if by is None else min(seconds, max(0.0, by - monotonic()))


def _was_reset(connection: AbortableConnection) -> bool:
    """Return whether its transport has ended: writing to it can raise AttributeError (python/cpython#136234)."""
    return connection._writer is None or connection._writer.transport.is_closing()


async def _is_stale(connection: AbortableConnection) -> bool:
    """Return whether the server has closed the connection, or has sent what nobody asked for."""
    look = connection.can_read() if hasattr(connection, "can_read") else connection.can_read_destructive()
    if sys.version_info < (3, 11):  # pragma: no cover
        # redis-py before 8 checks by a read with a time limit of zero, which swallows a cancellation here
        look = asyncio.shield(look)
    try:
        return bool(await look)
    except CONNECTION_ERRORS:  # pragma: no cover (redis-py before 8)
        return True
