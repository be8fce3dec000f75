"""One Redis server, as this process reaches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis.connection import Connection

from .aliases import Origin
from .counterpart import Maker


class Node:
    """A server, or the master that Sentinels name.

    ``anchor`` pairs its time (microseconds) with the local monotonic time at which the request for it was sent, which
    is never later than the server's own moment. Other nodes have other clocks. ``id``: as a cluster's node signs its
    handoffs (C3). ``doubted_at``: since when another one may have replaced it without its knowing, and
    ``answered_at``: when it answered first after that (C7; monotonic); 0: never, or not any more.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin: Origin = origin
        self.anchor: tuple[int, float] | None = None
        self.id: str = ""
        self.doubted_at: float = 0.0
        self.answered_at: float = 0.0
        # connections of threads that nobody uses, and since when (monotonic); see thread_connections.py
        self.idle: deque[tuple[Connection, float]] = deque()
        self.closed: bool = False
        self.on_close: list[Callable[[], object]] = []
        self._maker: Maker | None = None

    @property
    def maker(self) -> Maker:
        """That of the connections of event loops."""
        if self._maker is None:
            self._maker = Maker(self.origin)
        return self._maker

    def connect(self, by: float | None) -> Connection:
        """A connection, made by then (monotonic) or an error; it has the timeouts of the alias, for whoever is next."""
        connection: Any = self.origin.connection(None if by is None else max(0.001, by - monotonic()))
        # not left to the sending: only here does a Sentinel's connection ask for its master
        connection.connect()
        if by is not None and not self.origin.memory:
            connection.socket_timeout = self.origin.timeout
            connection._sock.settimeout(self.origin.timeout)
            connection._parser.on_connect(connection)  # it keeps them as well
        return connection  # type: ignore[no-any-return]

    def close(self) -> None:
        """No connection to it is kept from now on."""
        self.closed = True
        callbacks, self.on_close = self.on_close, []  # they refer to this node
        for callback in callbacks:
            callback()
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close what idles, so that the next command connects anew."""
        try:
            while True:
                self.idle.pop()[0].disconnect()
        except IndexError:
            pass
