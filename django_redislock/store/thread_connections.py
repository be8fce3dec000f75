"""The connections of threads: a bounded number, shared by all commands of one alias and all nodes behind it."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..base.steps import run
from ..base.times import GRACE, monotonic
from .aliases import RedisConfig
from .node import Node
from .sentinels import believe, connect
from .wire import NO_FAILOVER_WITHIN, Command, NotAsked, change_timeout, exchange, is_stale, let_the_system_wait

S = TypeVar("S", bound="PooledConnection")

PATIENCE = 20.0  # seconds to wait for a connection
IDLE = 0.005  # seconds unused after which a connection is checked before it is used again
CHECK_EVERY = 0.05  # seconds, while threads wait for a connection: for all of them together
IDLE_FOR = 30.0  # seconds after which an unused connection is closed


class PooledConnection:
    """The right to have a connection, and the connection: it counts for as long as this object exists."""

    __slots__ = ("__weakref__", "connection", "node", "used")

    def __init__(self, node: Node | None = None, connection: Any = None) -> None:
        self.node: Node | None = node
        self.connection: Any = connection
        self.used: float = 0.0  # when last (monotonic)


class ThreadConnections:
    """A bounded stack of connections.

    redis-py's BlockingConnectionPool does this, too, but costs a tenth of an uncontended lock: before each command it
    asks the system whether the connection went stale, which we do only after it was unused for a while. And it can lose
    a connection for good when a thread is interrupted inside it, as by the time limit of a task queue.
    """

    def __init__(self, bound: int, config: RedisConfig) -> None:
        self._bound = bound
        self._memory = config.memory
        self._timeout = config.timeout
        self.idle: deque[PooledConnection] = deque()  # the right end is the one in use
        # if an exception strikes anywhere, one that is in nobody's hands dies and leaves this set, in C code alone
        self._made: set[weakref.ref[PooledConnection]] = set()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._waiting = 0
        self._closed = False

    def exchange(self, node: Node, commands: Sequence[Command], by: float | None = None) -> tuple[list[Any], float]:
        """Send ``commands`` to ``node`` in one write; return the answers, errors among them, and when it was sent.

        Times are monotonic. ``by``: when to give up, if that is sooner than the timeouts of the connection.
        """
        pooled: PooledConnection | None = None  # while it is for this thread to give back
        try:
            try:
                pooled = self.idle.pop()
            except IndexError:
                pooled = self._await_free(by)
            sent = monotonic()  # C7: before connecting, as a node may be silent then already
            if by is not None and (self._memory or by - sent >= self._timeout):
                by = None
            if pooled.node is not node:
                other, pooled = pooled, None
                pooled = self._for_node(other, node, by)
            if pooled.node is not node or (sent - pooled.used > IDLE and is_stale(pooled.connection)):
                self._connect(pooled, node, by)
                by = by and max(by, monotonic() + GRACE)  # or a far node would never answer in time
            answers = exchange(pooled.connection, commands, by)
            pooled.used = monotonic()
            if pooled.used - sent > NO_FAILOVER_WITHIN:
                run(believe(pooled.connection, sent))
            used, pooled = pooled, None
            self.idle.append(used)
        except BaseException:
            if pooled is not None:
                self._break(pooled)  # the answer may still come, and nobody else must read it
            raise
        if self._closed or node.closed:  # asked only now: another thread may be closing it at this very moment
            self.drop_idle(None if self._closed else node)
        if self._waiting:
            self._tell_waiting()
        return answers, sent

    def _await_free(self, by: float | None) -> PooledConnection:
        """Return an unused one, or a new one as soon as the bound allows."""
        pooled = PooledConnection()
        give_up = 0.0
        with self._mutex:
            while len(self._made) >= self._bound:
                with suppress(IndexError):
                    return self.idle.pop()
                now = monotonic()
                give_up = give_up or min(now + PATIENCE, by or math.inf)
                if now >= give_up:
                    raise NotAsked("no connection became free in time")
                self._waiting += 1
                try:
                    self._changed.wait(min(CHECK_EVERY * self._waiting, give_up - now))
                finally:
                    self._waiting -= 1
            self._made.add(weakref.ref(pooled, self._made.discard))
        return pooled

    def _for_node(self, pooled: PooledConnection, node: Node, by: float | None) -> PooledConnection:
        """Return ``pooled`` if it is new; else it is another node's, and an unused one of this node takes its place, or
        a new one, or where the bound allows none, that which was unused for longest."""
        if pooled.node is None:
            return pooled
        self.idle.append(pooled)
        with suppress(IndexError):
            return find(self.idle, node)
        if len(self._made) >= self._bound:
            with suppress(IndexError):
                return self.idle.popleft()
        return self._await_free(by)

    def _connect(self, pooled: PooledConnection, node: Node, by: float | None) -> None:
        """Give it a new connection to ``node``, in place of a stale one, or another node's.

        ``by``: when it has to be connected (monotonic). It then has the alias's own timeouts, for its next user.
        """
        if pooled.node is node:
            self.drop_idle(node)  # nor are those in order that were unused for longer
        if pooled.connection is not None:
            pooled.connection.disconnect()
        connection = node.config.connection(None if by is None else max(0.001, by - monotonic()))
        pooled.connection, pooled.node = connection, node  # now: if it cannot connect, exchange() closes what is there
        run(connect(connection))
        if by is not None:
            change_timeout(connection, self._timeout)
        let_the_system_wait(connection, self._timeout)

    def _break(self, pooled: PooledConnection) -> None:
        """Close its connection, and give it up, even if the traceback of an error keeps it.

        An error that the server answered keeps the frames of all who called for it, and what they had in hand.
        """
        self._made.discard(weakref.ref(pooled))
        if pooled.connection is not None:  # pragma: no branch (a class of the site's own may fail to make it)
            pooled.connection.disconnect()
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._mutex:
            self._changed.notify()

    def drop_idle(self, node: Node | None = None) -> None:
        """Close the unused connections to ``node`` (None: to all), so that the next command connects anew."""
        for pooled in taken(self.idle, node):
            self._break(pooled)

    def close(self) -> None:
        """Keep no connections from now on; each command then makes its own."""
        self._closed = True
        self.drop_idle()

    def trim(self) -> None:
        """Close all but one of those that nobody has needed for IDLE_FOR seconds."""
        for oldest in surplus(self.idle, 1, monotonic() - IDLE_FOR):
            self._break(oldest)


def find(idle: deque[S], node: Node) -> S:
    """Take out the connection to ``node`` that was used last. IndexError: there is none."""
    for pooled in reversed(idle.copy()):
        if pooled.node is node:
            with suppress(ValueError):  # another thread has just taken it
                idle.remove(pooled)
                return pooled
    raise IndexError


def taken(idle: deque[S], node: Node | None) -> Iterator[S]:
    """Take out the connections to ``node``; None: all."""
    with suppress(IndexError):
        while True:
            yield idle.pop() if node is None else find(idle, node)


def surplus(idle: deque[S], most: int, before: float = math.inf) -> Iterator[S]:
    """Take out the connections unused for longest, while there are more than ``most``.

    Only those last used ``before`` that time (monotonic).
    """
    with suppress(IndexError):  # all are in use, or another thread has just taken it
        while len(idle) > most and idle[0].used <= before:
            yield idle.popleft()
