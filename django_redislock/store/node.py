"""One Redis server, as this process reaches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from redis.connection import Connection

from ..base.times import monotonic
from .aliases import Origin
from .counterpart import Maker


class Node:
    """A server, or the master that the sentinels name.

    ``anchor`` is a pair: the server's time (microseconds), and the local monotonic time at which the request for it was
    sent, which is never later than that moment. Each node has its own clock. ``id`` is what a cluster node signs its
    handoffs with (C3). ``doubted_at`` is the monotonic time since which another node may have replaced it unawares, and
    ``answered_at`` that of its first answer afterwards (C7); 0 means never, or no longer.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin: Origin = origin
        self.anchor: tuple[int, float] | None = None
        self.id: str = ""
        self.doubted_at: float = 0.0
        self.answered_at: float = 0.0
        # unused connections of threads, and since when (monotonic); see thread_connections.py
        self.idle: deque[tuple[Connection, float]] = deque()
        self.closed: bool = False
        self.on_close: list[Callable[[], object]] = []
        self._maker: Maker | None = None

    @property
    def maker(self) -> Maker:
        """Makes the connections of event loops."""
        if self._maker is None:
            self._maker = Maker(self.origin)
        return self._maker

    def connect(self, by: float | None) -> Connection:
        """Connect before ``by`` (monotonic). The connection then has the alias's own timeouts, for its next user."""
        connection: Any = self.origin.connection(None if by is None else max(0.001, by - monotonic()))
        # explicitly, as only connect() makes a Sentinel connection ask for its master
        connection.connect()
        if by is not None and not self.origin.memory:
            connection.socket_timeout = self.origin.timeout
            connection._sock.settimeout(self.origin.timeout)
            connection._parser.on_connect(connection)  # the parser has a copy of them
        return connection  # type: ignore[no-any-return]

    def close(self) -> None:
        """Keep no connections to it from now on."""
        self.closed = True
        callbacks, self.on_close = self.on_close, []  # breaks a cycle: they refer to this node
        for callback in callbacks:
            callback()
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the unused connections, so that the next command connects anew."""
        try:
            while True:
                self.idle.pop()[0].disconnect()
        except IndexError:
            pass
