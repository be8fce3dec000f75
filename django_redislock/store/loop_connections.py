"""The connections of coroutines: a bounded number per alias and running event loop, closed with their loop."""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

from redis.exceptions import ResponseError, TimeoutError

from ..base.times import Alarm, monotonic
from .node import HangsUp, Node
from .thread_connections import IDLE, IDLE_FOR, PATIENCE, surplus
from .wire import CONNECTION_ERRORS, Command, NotAsked, classified, pack

# The order in which waiting coroutines get a connection: a holder must be able to release, and newcomers must not
# overtake those who asked before.
LEAVING, RETURNING, ENTERING = range(3)

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:  # pragma: no cover

    class time_limit:  # noqa: N801 (it stands for a function)
        """The part of asyncio.timeout that we need. async_timeout's cannot be rescheduled from a callback."""

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


class _Loan:
    """The right to use a connection; see thread_connections.py."""

    __slots__ = ("__weakref__", "entry", "granted")

    def __init__(self) -> None:
        self.entry: weakref.ref[_Loan] | None = None  # among those that are counted
        self.granted: asyncio.Future[None] | None = None  # while it waits


class _Limit:
    """Hangs up after so many seconds: whoever reads fails then. Lighter than a time limit for the task."""

    __slots__ = ("_alarm", "_connection", "_loop", "struck")

    def __init__(self, connection: HangsUp, seconds: float) -> None:
        self.struck = False
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._alarm: Any = Alarm(self._loop, seconds, self._ring)

    def _ring(self) -> None:
        # one turn of the loop later, after what arrived while the loop was blocked is read
        self._alarm = self._loop.call_soon(self._strike)

    def _strike(self) -> None:
        self.struck = True
        self._connection.hang_up()

    def cancel(self) -> None:
        self._alarm.cancel()


class LoopConnections:
    """A bounded stack of connections for one event loop. A coroutine that finds none free waits for one."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        # unused connections, and since when (monotonic)
        self._idle: defaultdict[Node, deque[tuple[HangsUp, float]]] = defaultdict(deque)
        self._loans: set[weakref.ref[_Loan]] = set()
        # coroutines that wait for a connection, by urgency
        self._queues: tuple[deque[_Loan], ...] = (deque(), deque(), deque())
        self._end: AsyncGenerator[None, None] | None = None
        self.closed: bool = False  # commands still work, each with a connection of its own

    async def open(self, forget: Callable[[], object]) -> None:
        """Close with the running loop, which at its end closes the asynchronous generators that were begun in it.

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
            self.drop_idle()

    async def exchange(
        self, node: Node, commands: Sequence[Command], by: float | None, *, urgency: int
    ) -> tuple[list[Any], float]:
        """See ThreadConnections.exchange(). ``urgency``: which waiting coroutines come first; see LEAVING."""
        if node not in self._idle:
            self._forget_the_gone()
        loan = _Loan()
        try:
            if len(self._loans) < self._bound:
                self._grant(loan)
            else:
                await self._enter(loan, _left(PATIENCE, by), urgency)
            sent = monotonic()
            connection = self._used_lately(node, sent)
            if connection is None:
                connection = await self._connected_within(_left(node.maker.timeout, by), node)
            return await self._send(connection, node, commands, by, sent), sent
        finally:
            self._leave(loan)

    def _used_lately(self, node: Node, now: float) -> HangsUp | None:
        """An unused connection that needs no check."""
        idle = self._idle[node]
        if not idle or now - idle[-1][1] > IDLE or _was_reset(idle[-1][0]):
            return None
        return idle.pop()[0]

    async def _send(
        self, connection: HangsUp, node: Node, commands: Sequence[Command], by: float | None, sent: float
    ) -> list[Any]:
        seconds = _left(max(0.0, node.maker.timeout + sent - monotonic()), by)  # connecting may have taken some of it
        limit = _Limit(connection, seconds)
        try:
            await connection.send_packed_command([pack(commands)], check_health=False)
            read: list[Any] = []
            for _ in commands:
                try:
                    read.append(await connection.read_response())
                except ResponseError as error:
                    read.append(classified(error))
        except BaseException as error:
            # after a cancellation, for instance: the answer may still come, and nobody else must read it
            connection.hang_up()
            if limit.struck and isinstance(error, Exception):
                raise TimeoutError(f"no answer within {seconds:.3g} s") from None
            raise
        finally:
            limit.cancel()
        if self.closed or node.closed or limit.struck:
            connection.hang_up()
        else:
            self._idle[node].append((connection, monotonic()))
        return read

    async def _connected_within(self, seconds: float, node: Node) -> HangsUp:
        try:
            async with time_limit(None) as limit:
                # it takes effect one turn of the loop later, after what arrived while the loop was blocked is read
                alarm = Alarm(asyncio.get_running_loop(), seconds, partial(limit.reschedule, 0.0))
                try:
                    return await self._connected(node, seconds)
                finally:
                    alarm.cancel()
        except asyncio.TimeoutError:
            raise TimeoutError(f"no answer within {seconds:.3g} s") from None

    async def _enter(self, loan: _Loan, patience: float, urgency: int) -> None:
        """Wait until there are fewer loans than connections. A lower urgency is served first."""
        loop = asyncio.get_running_loop()
        loan.granted = loop.create_future()
        self._queues[urgency].append(loan)
        limit = Alarm(loop, patience, partial(self._give_up, loan.granted))
        try:
            await loan.granted
        finally:
            limit.cancel()
            if not loop.is_closed():
                loan.granted.cancel()  # so that it is not granted any more

    @staticmethod
    def _give_up(granted: asyncio.Future[None]) -> None:
        if not granted.done():
            granted.set_exception(NotAsked("no connection became free in time"))

    def _leave(self, loan: _Loan) -> None:
        """End the loan, if it was granted at all, and grant the next one."""
        if loan.entry is not None:
            self._loans.discard(loan.entry)
        for queue in self._queues:
            while queue and len(self._loans) < self._bound:
                following = queue.popleft()
                granted = following.granted
                if granted is not None and not granted.done() and not granted.get_loop().is_closed():
                    self._grant(following)
                    granted.set_result(None)

    def _grant(self, loan: _Loan) -> None:
        # if an exception strikes while the loan is returned, it still ends when its object dies, in C code alone
        loan.entry = weakref.ref(loan, self._loans.discard)
        self._loans.add(loan.entry)

    async def _connected(self, node: Node, seconds: float) -> HangsUp:
        idle = self._idle[node]
        if idle:
            connection, _ = idle.pop()
            stale = True
            try:
                stale = _was_reset(connection) or await _is_stale(connection)
            finally:
                if stale:  # or the check was cancelled
                    connection.hang_up()
            if not stale:
                return connection
            self.drop_idle(node)  # nor are those in order that were unused for longer
        if len(self._idle) > 1:
            self._close_surplus(self._bound, self._loans)  # make room for the new connection
        connection = node.maker.make(seconds)
        try:
            # explicitly, as only connect() makes a Sentinel connection ask for its master
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            connection.hang_up()
            raise
        return connection

    def _forget_the_gone(self) -> None:
        """Close the connections to nodes that have left the cluster."""
        for node in [known for known in self._idle if known.closed]:
            self.drop_idle(node)
            del self._idle[node]

    def _close_surplus(self, bound: int, loans: Collection[object] = (), before: float = math.inf) -> None:
        for connection in surplus(list(self._idle.values()), bound, loans, before):
            connection.hang_up()

    @property
    def idle(self) -> bool:
        """Whether there are unused connections."""
        return any(list(self._idle.values()))

    def drop_idle(self, node: Node | None = None) -> None:
        """Close the unused connections to ``node`` (None: to all nodes). Call it in their event loop."""
        for idle in [idle for known, idle in self._idle.items() if node in (None, known)]:
            while idle:
                idle.pop()[0].hang_up()

    def trim(self) -> None:
        """Close all but one of those that nobody has needed for a while. Call it in their event loop."""
        self._close_surplus(1, before=monotonic() - IDLE_FOR)


def _left(seconds: float, by: float | None) -> float:
    return seconds if by is None else min(seconds, max(0.0, by - monotonic()))


def _was_reset(connection: HangsUp) -> bool:
    """Whether its transport has ended: writing to it can raise AttributeError (python/cpython#136234)."""
    return connection._writer is None or connection._writer.transport.is_closing()


async def _is_stale(connection: HangsUp) -> bool:
    """Whether the server has closed the connection, or has sent what nobody asked for."""
    look = connection.can_read() if hasattr(connection, "can_read") else connection.can_read_destructive()
    if sys.version_info < (3, 11):  # pragma: no cover
        # redis-py before 8 checks by a read with a time limit of zero, which swallows a cancellation here
        look = asyncio.shield(look)
    try:
        return bool(await look)
    except CONNECTION_ERRORS:  # pragma: no cover (redis-py before 8)
        return True
