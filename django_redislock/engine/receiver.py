"""A receiver: a thread and a connection that receive the messages of one node, for several listeners."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from redis.connection import Connection
from redis.exceptions import ResponseError

from ..base.times import monotonic
from ..store.calls import probe_command, probed
from ..store.lock_store import Partition
from ..store.node import Node
from ..store.wire import PASSING, classified, exchange, pack
from .reader import Reader
from .waiters import Waiters

MESSAGE_WITHIN = 1.0  # seconds from the first byte of a message to its last


class Hears(Protocol):
    """A listener, as its receiver sees it."""

    partition: Partition
    waiters: Waiters

    def on_message(self, data: bytes, node: Node) -> None: ...

    def on_unsubscribed(self) -> None: ...


L = TypeVar("L", bound=Hears)


class Receiver(Generic[L]):
    """Subscribed to the channels of ``listeners`` once, for as long as its connection lasts.

    At its end, its thread calls ``ended`` with the error that ended it, or None after :meth:`retire`. Closing the
    connection (``reader.end()``) is up to ``ended``.
    """

    def __init__(
        self, node: Node, listeners: Sequence[L], ended: Callable[[Receiver[L], Exception | None], None]
    ) -> None:
        self.node: Node = node
        self.listeners: tuple[L, ...] = tuple(listeners)
        self.connection: Connection = node.origin.listening(MESSAGE_WITHIN)
        self.reader: Reader = Reader(self.connection, self._on_message, self._threads_may_read)
        self._kind_of_socket = socket.socket
        self.since: float = 0.0  # monotonic
        self._channels = {listener.partition.channel.encode(): listener for listener in listeners}
        self._waiters = [listener.waiters for listener in listeners]
        self._ended = ended
        self._retired = threading.Event()
        self._sharded = listeners[0].partition.store.clustered
        self._memory = node.origin.memory
        self.thread: threading.Thread = threading.Thread(target=self._run, name="redislock-listener", daemon=True)

    def subscribe(self, new: Sequence[L]) -> dict[L, int | ResponseError]:
        """Connect and subscribe. Return for each new listener how many subscribers the node counts, or its error.

        0 means that messages cannot be trusted to arrive (R3). Of the other listeners, only errors are returned.
        """
        self.connection.connect()
        word = "SSUBSCRIBE" if self._sharded else "SUBSCRIBE"
        self.connection.send_packed_command([pack([(word, each.partition.channel) for each in self.listeners])])
        refused: dict[L, int | ResponseError] = {}
        for listener in self.listeners:
            try:
                while self.connection.read_response()[0] in (b"message", b"smessage"):
                    pass  # a message on another channel: its listener looks when it hears that it is subscribed
            except ResponseError as error:
                refused[listener] = classified(error)
        asked = [listener for listener in new if listener not in refused]
        return refused | self._probe(asked)

    def _probe(self, asked: Sequence[L]) -> dict[L, int | ResponseError]:
        found: dict[L, int | ResponseError] = {}
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
            self.reader.end()

    def cut(self) -> None:
        """Cut the connection, on which wakes no longer arrive."""
        if not self._memory:
            self.reader.end()

    def leave_parent(self) -> None:
        """In a forked child: close the inherited socket.

        While it is open here, Redis counts the parent as alive even after its death.
        """
        self.reader.leave_parent()

    def _run(self) -> None:
        trouble: Exception | None = None
        try:
            self.reader.serve(self._retired, polls=self._memory)
        except Exception as error:
            trouble = None if self._retired.is_set() else error
        self._ended(self, trouble)

    def _threads_may_read(self) -> bool:
        """Whether waiting threads may read: not while coroutines wait, or did a moment ago.

        Nor with fakeredis, which has no socket that threads could take turns at; nor a socket from before gevent
        patched sockets, since a greenlet that reads it would block its whole thread.
        """
        patched = socket.socket is not self._kind_of_socket
        now = monotonic()
        return not self._memory and not patched and all(each.tasks_until <= now for each in self._waiters)

    def _on_message(self, kind: Any, channel: bytes, data: Any) -> None:
        listener = self._channels[channel]
        if kind in (b"message", b"smessage"):
            listener.on_message(data, self.node)
        else:  # C3: an unsolicited sunsubscribe: the slot has moved
            listener.on_unsubscribed()
