"""A receiver: a thread and a connection that receive the messages of one node, for several listeners."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis.connection import Connection
from redis.exceptions import ResponseError

from ..base.times import monotonic
from ..store.calls import probe_command, probed
from ..store.node import Node
from ..store.wire import PASSING, classified, exchange, pack
from .listener import Listener

MESSAGE_WITHIN = 1.0  # seconds from the first byte of a message to its last


class Receiver:
    """Subscribed to the channels of ``listeners`` once, for as long as its connection lasts.

    At its end, its thread calls ``ended`` with the error that ended it, or None after :meth:`retire`. Any trouble ends
    it for good; an incomplete message is trouble after MESSAGE_WITHIN seconds.
    """

    def __init__(
        self, node: Node, listeners: Sequence[Listener], ended: Callable[[Receiver, Exception | None], None]
    ) -> None:
        self.node: Node = node
        self.listeners: tuple[Listener, ...] = tuple(listeners)
        self.connection: Connection = node.origin.listening(MESSAGE_WITHIN)
        self.trouble: Exception | None = None  # what has ended it, if anything
        self.since: float = 0.0  # monotonic
        self._channels = {listener.partition.channel.encode(): listener for listener in listeners}
        self._ended = ended
        self._retired = threading.Event()
        self._sharded = listeners[0].partition.store.clustered
        self._memory = node.origin.memory
        self.thread: threading.Thread = threading.Thread(target=self._run, name="redislock-listener", daemon=True)

    def subscribe(self, new: Sequence[Listener]) -> dict[Listener, int | ResponseError]:
        """Connect and subscribe. Return for each new listener how many subscribers the node counts, or its error.

        0 means that messages cannot be trusted to arrive (R3). Of the other listeners, only errors are returned.
        """
        self.connection.connect()
        word = "SSUBSCRIBE" if self._sharded else "SUBSCRIBE"
        self.connection.send_packed_command([pack([(word, each.partition.channel) for each in self.listeners])])
        refused: dict[Listener, int | ResponseError] = {}
        for listener in self.listeners:
            try:
                while self.connection.read_response()[0] in (b"message", b"smessage"):
                    pass  # a message on another channel: its listener looks when it hears that it is subscribed
            except ResponseError as error:
                refused[listener] = classified(error)
        asked = [listener for listener in new if listener not in refused]
        return refused | self._probe(asked)

    def _probe(self, asked: Sequence[Listener]) -> dict[Listener, int | ResponseError]:
        found: dict[Listener, int | ResponseError] = {}
        # on a connection of its own: in a process of coroutines, the pool would keep one that nobody else needs
        connection = self.node.origin.connection(self.node.origin.timeout)
        try:
            connection.connect()
            for listener in asked:
                sent = monotonic()
                (answer,) = exchange(connection, [probe_command(listener.partition)])
                found[listener] = counted = probed(self.node, answer, sent)
                if not isinstance(counted, PASSING):  # as of one channel of this connection, so of all
                    return dict.fromkeys(asked, counted) | found
        finally:
            connection.disconnect()
        return found

    def start(self) -> None:
        self.since = monotonic()
        self.thread.start()

    def retire(self) -> None:
        """End it: another receiver has taken its place, or nobody listens any more."""
        self._retired.set()
        if self._memory:
            # with fakeredis there is no socket to shut down; a message ends the wait
            self.listeners[0].partition.execute(probe_command(self.listeners[0].partition))
        else:
            self.end()

    def cut(self) -> None:
        """Cut the connection, on which wakes no longer arrive."""
        if not self._memory:
            self.end()

    def end(self) -> None:
        """Cut the connection, whoever is reading it."""
        connection: Any = self.connection
        connection.connect = _refuse  # whoever is about to read would connect anew, and not be subscribed
        if self.thread.is_alive():
            # Its thread closes it: a new socket could get the number of a closed one before the thread has begun to
            # wait, and would then be waited for instead
            with suppress(OSError, AttributeError):  # it has ended by itself
                connection._sock.shutdown(socket.SHUT_RDWR)
        else:
            connection.disconnect()

    def leave_parent(self) -> None:
        """In a forked child: close the inherited socket, without a shutdown (redis-py compares the process id).

        While it is open here, Redis counts the parent as alive even after its death.
        """
        self.connection.disconnect()

    def _run(self) -> None:
        try:
            while not self._retired.is_set():
                if not self._memory:  # fakeredis cannot wait for data without reading it
                    self.connection.can_read(None)  # type: ignore[arg-type]  # without end
                self._on_message(*self.connection.read_response())
        except Exception as error:  # of any kind: a TLS connection that is cut yields nonsense
            self.trouble = error
        retired = self._retired.is_set()
        self.trouble = self.trouble or ConnectionError("nobody listens any more")
        self.connection.disconnect()
        self._ended(self, None if retired else self.trouble)

    def _on_message(self, kind: Any, channel: bytes, data: Any) -> None:
        listener = self._channels[channel]
        if kind in (b"message", b"smessage"):
            listener.on_message(data, self.node)
        else:  # C3: an unsolicited sunsubscribe: the slot has moved
            listener.on_unsubscribed()


def _refuse() -> None:
    raise ConnectionError("the subscription has ended")
