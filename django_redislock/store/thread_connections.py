"""The connections of threads: a bounded number, shared by all commands of one alias and all nodes behind it."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from redis.connection import Connection

from ..base.times import monotonic
from .node import Node
from .wire import CONNECTION_ERRORS, Command, NotAsked, exchange

C = TypeVar("C")  # a connection

PATIENCE = 20.0  # seconds to wait for a connection
IDLE = 0.005  # seconds unused after which a connection is checked before it is used again
CHECK_EVERY = 0.05  # seconds, while waiting for a connection
IDLE_FOR = 30.0  # seconds after which an unused connection is closed


class _Loan:
    """The right to use a connection."""

    entry: weakref.ref[_Loan] | None = None  # its entry in the set that is counted


class ThreadConnections:
    """A bounded stack of connections.

    redis-py's BlockingConnectionPool does this, too, but costs a tenth of an uncontended lock: before each command it
    asks the system whether the connection went stale, which we do only after it was unused for a while. And it can lose
    a connection for good when a thread is interrupted inside it, as by the time limit of a task queue.

    ``bound`` is the limit for all ``nodes`` together. Each node keeps its own unused connections.
    """

    def __init__(self, bound: int, nodes: Collection[Node]) -> None:
        self._bound = bound
        self._nodes = nodes
        self._loans: set[weakref.ref[_Loan]] = set()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0
        self._closed = False

    def exchange(self, node: Node, commands: Sequence[Command], by: float | None = None) -> tuple[list[Any], float]:
        """Send ``commands`` to ``node`` in one write; return the answers, errors among them, and when it was sent.

        Times are monotonic. ``by``: when to give up, if that is sooner than the timeouts of the connection.
        """
        # it exists before it is counted, and ends in C code alone if an exception strikes while it is returned
        loan = _Loan()
        answered: Connection | None = None  # it is in order, and can be used again
        try:
            with self._mutex:
                if len(self._loans) >= self._bound:
                    self._await_room(by)
                loan.entry = weakref.ref(loan, self._loans.discard)
                self._loans.add(loan.entry)
            sent = monotonic()  # C7: before connecting, as a node may be silent then already
            try:
                connection, used = node.idle.pop()
            except IndexError:
                connection = self._connect(node, by)
            else:
                if sent - used > IDLE and _is_stale(connection):
                    connection.disconnect()
                    node.drop_idle()  # nor are those in order that were unused for longer
                    connection = self._connect(node, by)
            try:
                answers = exchange(connection, commands, by)
            except BaseException:
                connection.disconnect()  # the answer may still come, and nobody else must read it
                raise
            answered = connection
            return answers, sent
        finally:
            if loan.entry is not None:
                self._loans.discard(loan.entry)
            if answered is not None:
                node.idle.append((answered, monotonic()))
                if self._closed or node.closed:  # asked only now: another thread may be closing it at this very moment
                    node.drop_idle()
            if self._waiting:
                with self._mutex:
                    self._changed.notify()

    def _await_room(self, by: float | None) -> None:
        """Wait, with the mutex, until there are fewer loans than the bound allows."""
        give_up = min(monotonic() + PATIENCE, by or math.inf)
        while len(self._loans) >= self._bound:
            now = monotonic()
            if now >= give_up:
                raise NotAsked("no connection became free in time")
            self._waiting += 1
            try:
                self._changed.wait(min(CHECK_EVERY, give_up - now))
            finally:
                self._waiting -= 1

    def _connect(self, node: Node, by: float | None) -> Connection:
        if len(self._nodes) > 1:
            self._close_surplus(self._bound, self._loans)  # make room for the new connection
        return node.connect(by)

    def _close_surplus(self, bound: int, loans: Collection[object] = (), before: float = math.inf) -> None:
        nodes = list(self._nodes)  # a copy: another thread may be adding one
        for connection in surplus([node.idle for node in nodes], bound, loans, before):
            connection.disconnect()

    def close(self) -> None:
        """Keep no connections from now on; each command then makes its own."""
        self._closed = True
        for node in list(self._nodes):
            node.close()

    def trim(self) -> None:
        """Close all but one of those that nobody has needed for IDLE_FOR seconds."""
        self._close_surplus(1, before=monotonic() - IDLE_FOR)


def surplus(
    stocks: Sequence[deque[tuple[C, float]]], bound: int, loans: Collection[object], before: float
) -> Iterator[C]:
    """Take out the connections unused for longest, while there are more than ``bound`` with those on loan.

    Only those last used ``before`` that time (monotonic).
    """
    while len(loans) + sum(map(len, stocks)) > bound:
        try:
            stock = min((stock for stock in stocks if stock), key=lambda stock: stock[0][1])
            if stock[0][1] > before:
                return
            oldest, _ = stock.popleft()  # the other end is the one in use
        except ValueError:
            return  # all are in use
        except IndexError:
            continue  # another thread has just taken it
        yield oldest


def _is_stale(connection: Connection) -> bool:
    """Whether the server has closed the connection, or sent something that nobody asked for."""
    try:
        return bool(connection.can_read(0))
    except CONNECTION_ERRORS:
        return True
