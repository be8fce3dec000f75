"""The connections of threads: a bounded number of them, shared by all commands of one alias."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.connection import Connection
from redis.exceptions import ConnectionError

from .wire import CONNECTION_ERRORS, Command, exchange

PATIENCE = 20.0  # seconds to wait for a connection
IDLE = 0.005  # seconds after which a connection is looked at before it is used again
CHECK_EVERY = 0.05  # seconds, while waiting for a connection


class _Loan:
    """The right to use a connection. It exists before anything is taken, so whatever is interrupted gives it back."""

    __slots__ = ("__weakref__", "connection", "entry")

    def __init__(self) -> None:
        self.connection: Connection | None = None  # in order, to be used again
        self.entry: weakref.ref[_Loan] | None = None  # among those that are counted


class ConnectionPool:
    """A bounded stack of connections.

    redis-py's BlockingConnectionPool does the same and more, for a tenth of the time of an uncontended lock: it asks
    the system before each command whether the connection went stale, we only when it has idled for a while. And a
    thread that is interrupted in there (a time limit of a task queue) can take a connection out of it for good.

    ``connect``: makes a connection; its argument is as ``by`` of :meth:`exchange`.
    """

    def __init__(self, connect: Callable[[float | None], Connection], bound: int) -> None:
        self._connect = connect
        self._bound = bound
        self._loans: set[weakref.ref[_Loan]] = set()
        self._idle: deque[tuple[Connection, float]] = deque()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0
        self._closed = False

    def exchange(self, commands: Sequence[Command], by: float | None = None) -> list[Any]:
        """The answers to ``commands``, sent in one write; an error of a single one stands among them.

        ``by``: the monotonic time at which to give up, if that is sooner than the timeouts of the connection.
        """
        loan = _Loan()
        try:
            self._enter(loan, by)
            connection, in_time = self._take(by)
            try:
                answers = exchange(connection, commands, by)
            except BaseException:
                connection.disconnect()  # an answer may still come, which nobody else must read
                raise
            if in_time:
                loan.connection = connection
            return answers
        finally:
            self._leave(loan)

    def _enter(self, loan: _Loan, by: float | None) -> None:
        """Wait until there are fewer loans than connections."""
        give_up = None
        with self._mutex:
            while len(self._loans) >= self._bound:
                now = monotonic()
                give_up = give_up or min(now + PATIENCE, by or math.inf)
                if now >= give_up:
                    raise ConnectionError("no connection became free in time")
                self._waiting += 1
                try:
                    self._changed.wait(min(CHECK_EVERY, give_up - now))
                finally:
                    self._waiting -= 1
            # one that is interrupted even while it is given back ends with its object, by C code alone
            loan.entry = weakref.ref(loan, self._loans.discard)
            self._loans.add(loan.entry)

    def _leave(self, loan: _Loan) -> None:
        if loan.entry is not None:
            self._loans.discard(loan.entry)
        if loan.connection is not None:
            if self._closed:
                loan.connection.disconnect()
            else:
                self._idle.append((loan.connection, monotonic()))
        if self._waiting:
            with self._mutex:
                self._changed.notify()

    def _take(self, by: float | None) -> tuple[Connection, bool]:
        """A connection, and whether it may be used again."""
        while True:
            try:
                connection, used = self._idle.pop()
            except IndexError:
                break
            if monotonic() - used <= IDLE or not _is_stale(connection):
                return connection, True
            connection.disconnect()
        connection = self._connect(by)
        # not left to the sending: only here does a Sentinel's connection ask for its master
        connection.connect()
        return connection, by is None  # one that was made with a deadline has short timeouts for good

    def close(self) -> None:
        """Keep no connection from now on; commands still work, each with its own."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close what idles, so that the next command connects anew."""
        try:
            while True:
                self._idle.pop()[0].disconnect()
        except IndexError:
            pass


def _is_stale(connection: Connection) -> bool:
    """Whether the server has closed the connection, or has sent what nobody asked for."""
    try:
        return bool(connection.can_read(0))
    except CONNECTION_ERRORS:
        return True
