"""A receiver: a thread and a connection that receive messages from one node, for several listeners."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from redis.connection import Connection
from redis.exceptions import ResponseError

from ..store.node import Node
from ..store.place import Backend
from ..store.probe import probe_command, probed
from ..store.wire import classified, exchange
from .reader import Reader

MESSAGE_WITHIN = 1.0  # seconds that a message may take from its begin to its end


class Hears(Protocol):
    """A listener, as its receiver knows it."""

    backend: Backend

    @property
    def expects_tasks(self) -> bool: ...

    def on_message(self, data: bytes, node: Node) -> None: ...

    def on_unsubscribed(self) -> None: ...


L = TypeVar("L", bound=Hears)


class Receiver(Generic[L]):
    """Subscribed once, for as long as its connection lasts, to the channels of ``listeners`` and no others.

    ``ended`` is called in its thread with what has ended it: an error, or None if it was :meth:`retire`. It
    decides when the connection is closed.
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
        self._channels = {listener.backend.channel.encode(): listener for listener in listeners}
        self._ended = ended
        self._retired = threading.Event()
        self._sharded = listeners[0].backend.place.clustered
        self._memory = node.origin.memory
        self.thread: threading.Thread = threading.Thread(target=self._run, name="redislock-listener", daemon=True)

    def subscribe(self, new: Sequence[L]) -> dict[L, int | ResponseError]:
        """Connect and subscribe; how often the node counts each new listener, or what it says instead.

        0: messages to it cannot be trusted to arrive (R3). Of the others, only errors are returned.
        """
        self.connection.connect()
        for channel in self._channels:
            self.connection.send_command("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", channel)
        refused: dict[L, int | ResponseError] = {}
        for listener in self.listeners:
            try:
                while self.connection.read_response()[0] in (b"message", b"smessage"):
                    pass  # of another channel: its listener looks once it is told that it is subscribed
            except ResponseError as error:
                refused[listener] = classified(error)
        asked = [listener for listener in new if listener not in refused]
        return refused | self._probe(asked)

    def _probe(self, asked: Sequence[L]) -> dict[L, int | ResponseError]:
        # not through the pool, which may have no other use in a process of coroutines, and would keep the connection
        connection = self.node.origin.connection(self.node.origin.timeout)
        try:
            connection.connect()
            sent = monotonic()
            answers = exchange(connection, [probe_command(listener.backend) for listener in asked])
        finally:
            connection.disconnect()
        return {listener: probed(self.node, answer, sent) for listener, answer in zip(asked, answers, strict=True)}

    def start(self) -> None:
        self.since = monotonic()
        self.thread.start()

    def retire(self) -> None:
        """End it: another has taken its place, or nobody listens any more."""
        self._retired.set()
        if self._memory:
            # fakeredis has nothing that could be cut: a message ends its wait
            self.listeners[0].backend.execute(probe_command(self.listeners[0].backend))
        else:
            self.reader.end()

    def cut(self) -> None:
        """Cut the connection: wakes do not arrive on it any more."""
        if not self._memory:
            self.reader.end()

    def leave_parent(self) -> None:
        """In a forked child: close the inherited socket, without a shutdown (redis-py looks at the process id).

        As long as it is open here, Redis would count the parent as alive after its death.
        """
        self.reader.end()

    def _run(self) -> None:
        trouble: Exception | None = None
        try:
            self.reader.serve(self._retired, polls=self._memory)
        except Exception as error:
            trouble = None if self._retired.is_set() else error
        self._ended(self, trouble)

    def _threads_may_read(self) -> bool:
        """Whether waiting threads may; fakeredis has nothing that two threads could take turns to wait for.

        Nor may greenlets read a socket of before gevent patched it: all of their thread would stand still.
        """
        patched = socket.socket is not self._kind_of_socket
        return not self._memory and not patched and not any(listener.expects_tasks for listener in self.listeners)

    def _on_message(self, kind: Any, channel: bytes, data: Any) -> None:
        listener = self._channels[channel]
        if kind in (b"message", b"smessage"):
            listener.on_message(data, self.node)
        else:  # C3: sunsubscribe, for which nobody here has asked: the slot has moved
            listener.on_unsubscribed()
