"""The connections of threads: a bounded number, shared by all commands of one alias and all nodes behind it."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.connection import Connection

from ..base.times import monotonic
from .aliases import Origin
from .node import Node
from .wire import CONNECTION_ERRORS, Command, NotAsked, exchange

C = TypeVar("C")  # a connection

# unused connections and since when (monotonic), in this order; the right end is the one in use
Idle = deque[tuple[Node, C, float]]

PATIENCE = 20.0  # seconds to wait for a connection
IDLE = 0.005  # seconds unused after which a connection is checked before it is used again
CHECK_EVERY = 0.05  # seconds, while waiting for a connection
IDLE_FOR = 30.0  # seconds after which an unused connection is closed


class Loan:
    """The right to use a connection."""

    entry: weakref.ref[Loan] | None = None  # its entry in the set that is counted
    granted: asyncio.Future[None] | None = None  # while a coroutine waits for it


class ThreadConnections:
    """A bounded stack of connections.

    redis-py's BlockingConnectionPool does this, too, but costs a tenth of an uncontended lock: before each command it
    asks the system whether the connection went stale, which we do only after it was unused for a while. And it can lose
    a connection for good when a thread is interrupted inside it, as by the time limit of a task queue.
    """

    def __init__(self, bound: int, origin: Origin) -> None:
        self._bound = bound
        self._memory = origin.memory
        self._timeout = origin.timeout
        self.idle: Idle[Connection] = deque()
        self._loans: set[weakref.ref[Loan]] = set()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0
        self._closed = False

    def exchange(self, node: Node, commands: Sequence[Command], by: float | None = None) -> tuple[list[Any], float]:
        """Send ``commands`` to ``node`` in one write; return the answers, errors among them, and when it was sent.

        Times are monotonic. ``by``: when to give up, if that is sooner than the timeouts of the connection.
        """
        # it exists before it is counted, and ends in C code alone if an exception strikes while it is returned
        loan = Loan()
        answered: Connection | None = None  # it is in order, and can be used again
        try:
            with self._mutex:
                if len(self._loans) >= self._bound:
                    self._await_room(by)
                loan.entry = weakref.ref(loan, self._loans.discard)
                self._loans.add(loan.entry)
            sent = monotonic()  # C7: before connecting, as a node may be silent then already
            if by is not None and (self._memory or by - sent >= self._timeout):
                by = None
            try:
                owner, connection, used = self.idle.pop()
                if owner is not node:
                    self.idle.append((owner, connection, used))
                    _, connection, used = find(self.idle, node)
            except IndexError:
                connection = self._connect(node, by)
            else:
                if sent - used > IDLE and _is_stale(connection):
                    connection.disconnect()
                    self.drop_idle(node)  # nor are those in order that were unused for longer
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
                self.idle.append((node, answered, monotonic()))
                if self._closed or node.closed:  # asked only now: another thread may be closing it at this very moment
                    self.drop_idle(node)
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
        """Connect before ``by`` (monotonic). The connection then has the alias's own timeouts, for its next user."""
        for oldest in surplus(self.idle, self._bound, self._loans):  # make room for the new one
            oldest.disconnect()
        connection: Any = node.origin.connection(None if by is None else max(0.001, by - monotonic()))
        # explicitly, as only connect() makes a Sentinel connection ask for its master
        connection.connect()
        if by is not None:
            connection.socket_timeout = self._timeout
            connection._sock.settimeout(self._timeout)
            connection._parser.on_connect(connection)  # the parser has a copy of them
        return connection  # type: ignore[no-any-return]

    def drop_idle(self, node: Node | None = None) -> None:
        """Close the unused connections to ``node`` (None: to all), so that the next command connects anew."""
        for connection in taken(self.idle, node):
            connection.disconnect()

    def close(self) -> None:
        """Keep no connections from now on; each command then makes its own."""
        self._closed = True
        self.drop_idle()

    def trim(self) -> None:
        """Close all but one of those that nobody has needed for IDLE_FOR seconds."""
        for oldest in surplus(self.idle, 1, (), monotonic() - IDLE_FOR):
            oldest.disconnect()


def find(idle: Idle[C], node: Node) -> tuple[Node, C, float]:
    """Take out the connection to ``node`` that was used last. IndexError: there is none."""
    for entry in reversed(idle.copy()):
        if entry[0] is node:
            with suppress(ValueError):  # another thread has just taken it
                idle.remove(entry)
                return entry
    raise IndexError


def taken(idle: Idle[C], node: Node | None) -> Iterator[C]:
    """Take out the connections to ``node``; None: all."""
    with suppress(IndexError):
        while True:
            yield (idle.pop() if node is None else find(idle, node))[1]


def surplus(idle: Idle[C], bound: int, loans: Collection[object], before: float = math.inf) -> Iterator[C]:
    """Take out the connections unused for longest, while there are more than ``bound`` with those on loan.

    Only those last used ``before`` that time (monotonic).
    """
    with suppress(IndexError):  # all are in use
        while len(loans) + len(idle) > bound and idle[0][2] <= before:
            yield idle.popleft()[1]


def _is_stale(connection: Connection) -> bool:
    """Return whether the server has closed the connection, or sent something that nobody asked for."""
    try:
        return bool(connection.can_read(0))
    except CONNECTION_ERRORS:
        return True
