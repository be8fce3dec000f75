"""A receiver: a connection on which the messages of one node arrive, for several listeners, and who reads it.

A thread that is the only waiter on the connection reads it by itself (as the leader of Schmidt et al.,
"Leader/Followers", 2000), so its wake takes no switch to another thread. Everything else is read by the receiver's own
thread.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from redis.connection import Connection
from redis.exceptions import ConnectionError, RedisError, ResponseError

from ..base.processes import make_thread
from ..base.steps import run
from ..base.times import monotonic
from ..store.calls import probe_command, probed
from ..store.node import Node
from ..store.sentinels import connect
from ..store.wire import PASSING, begins, classified, exchange, let_the_system_wait, pack, read
from .listener import Listener
from .waiters import ThreadWaiter, Waiter

MESSAGE_WITHIN = 1.0  # seconds from the first byte of a message to its last
READS_FOR = 0.1  # seconds a waiting thread reads, and for which the receiver's thread then expects it to wait again
_OF_A_CUT = TypeError, ValueError, AttributeError  # what reading raises where another thread closes the connection


class Interrupted(ConnectionError):
    """A thread was interrupted while it read, perhaps in the middle of a message: nothing is wrong with the server."""


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
        connecting = min(node.config.keywords["socket_connect_timeout"], MESSAGE_WITHIN)  # other nodes wait for it
        self.connection: Connection = node.config.connection(
            socket_timeout=MESSAGE_WITHIN, socket_connect_timeout=connecting, health_check_interval=0
        )
        self.trouble: Exception | None = None  # what has ended it, if anything
        self.since: float = 0.0  # monotonic
        self._channels = {listener.partition.channel.encode(): listener for listener in listeners}
        self._ended = ended
        self._retired = threading.Event()
        self._memory = node.config.memory
        self._mutex = threading.RLock()
        self._own = ThreadWaiter("", "")  # our thread, which rests while another one reads
        self._own.registered = True
        self._reader: Waiter | None = None
        self.rests_until: float = 0.0  # monotonic; 0: it does not rest
        self.thread: threading.Thread = make_thread(lambda me: self._run(), "redislock-listener")

    def subscribe(self, new: Sequence[Listener]) -> dict[Listener, int | ResponseError]:
        """Connect and subscribe. Return for each new listener how many subscribers the node counts, or its error.

        0 means that messages cannot be trusted to arrive (R3). Of the other listeners, only errors are returned.
        """
        run(connect(self.connection))
        word = "SSUBSCRIBE" if self.listeners[0].partition.store.clustered else "SUBSCRIBE"
        self.connection.send_packed_command([pack([(word, each.partition.channel) for each in self.listeners])])
        refused: dict[Listener, int | ResponseError] = {}
        for listener in self.listeners:
            try:
                while self.connection.read_response()[0] in (b"message", b"smessage"):
                    pass  # a message on another channel: its listener looks when it hears that it is subscribed
            except ResponseError as error:
                refused[listener] = classified(error)
        let_the_system_wait(self.connection, MESSAGE_WITHIN)
        asked = [listener for listener in new if listener not in refused]
        return refused | self._probe(asked)

    def _probe(self, asked: Sequence[Listener]) -> dict[Listener, int | ResponseError]:
        found: dict[Listener, int | ResponseError] = {}
        # on a connection of its own: in a process of coroutines, the pool would keep one that nobody else needs
        connection = self.node.config.connection(self.node.config.timeout)
        try:
            run(connect(connection))
            for listener in asked:
                sent = monotonic()
                (answer,) = exchange(connection, [probe_command(listener.partition)])
                found[listener] = counted = probed(self.node, answer, sent)
                if not isinstance(counted, PASSING):  # any other answer is that for every channel of this connection
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
            partition = self.listeners[0].partition
            partition.exchange([probe_command(partition)])
        else:
            self.end()

    def cut(self) -> None:
        """Cut the connection, on which wakes no longer arrive. (In the memory mode there is none, and all arrive.)"""
        if not self._memory:
            self.end()

    def end(self) -> None:
        """Cut the connection, whoever is reading it."""
        connection: Any = self.connection
        # first: whoever is about to read looks for it once they are the reader. On a closed connection, they would
        # connect anew, and not be subscribed
        self.trouble = self.trouble or ConnectionError("wakes do not arrive any more")
        if self.thread.is_alive() or self._reader is not None:
            # Our thread closes it: a new socket could get the number of a closed one before whoever reads has begun to
            # wait, and would then be waited for instead
            with suppress(OSError, AttributeError):  # it has ended by itself
                connection._sock.shutdown(socket.SHUT_RDWR)
            self._read_ourselves()
        else:
            connection.disconnect()

    # -- who reads --------------------------------------------------------------------------------------------------

    def read_here(self, waiter: ThreadWaiter, until: float) -> None:
        """Read in the thread of ``waiter`` until it is told something, if it is the only one that waits.

        It returns at once if another thread reads, at ``until`` (monotonic), and after READS_FOR; then our thread
        reads. A wake that is not a message is noticed only then.
        """
        if self.trouble is not None or self._lone() is not waiter or not self._take(waiter):
            return
        try:
            end = min(until, monotonic() + READS_FOR)
            while not waiter.told and self.trouble is None and (left := end - monotonic()) > 0:
                if begins(self.connection, left):
                    self._read()
        except BaseException as error:
            # of any kind: a TLS connection that is cut yields nonsense, and ssl has errors of its own then
            if isinstance(error, RedisError) or (self.trouble is not None and isinstance(error, _OF_A_CUT)):
                self.trouble = self.trouble or error.with_traceback(None)
            else:  # from a signal handler, say: half a message may be left unread
                self.trouble = self.trouble or Interrupted("reading was interrupted")
                raise
        finally:
            if not self._stop(waiter, waiter.told):
                self._own.wake()

    def read_for(self, waiter: Waiter) -> None:
        """Have our thread read, unless this new waiter will."""
        if self._lone() is not waiter:
            self._read_ourselves()

    def _lone(self) -> ThreadWaiter | None:
        """The only waiter for messages on this connection, if there is one and it can read them."""
        try:
            (lone,) = chain.from_iterable(each.waiters.by_id.values() for each in self.listeners)
        except (ValueError, RuntimeError):  # the latter where another thread changes it
            return None
        return lone if isinstance(lone, ThreadWaiter) and not self._memory else None

    def _read_ourselves(self) -> None:
        with self._mutex:
            self.rests_until = 0.0
        if self._reader is not self._own:
            self._own.wake()

    def _take(self, waiter: Waiter) -> bool:
        """Become the reader, unless there is one."""
        with self._mutex:
            if self._reader is not None:
                if self._reader.registered:
                    return False
                # R18: it was interrupted where it could not say so
                self.trouble = self.trouble or Interrupted("reading was interrupted")
            self._reader = waiter
            return True

    def _stop(self, waiter: ThreadWaiter | None, told: bool) -> bool:
        """Be no longer the reader. Return whether our thread may rest.

        ``waiter``: the only waiter, or None; when it was ``told`` something, its thread may soon wait again, and read.
        """
        with self._mutex:
            self._reader = None
            if waiter is not None and told and self.trouble is None:
                self.rests_until = monotonic() + READS_FOR
                # checked last: who registers meanwhile is seen here, or sees that we rest
                if self._lone() is waiter:
                    return True
            self.rests_until = 0.0
            return False

    def _run(self) -> None:
        own = self._own
        while True:
            with self._mutex:
                now, rests_until = monotonic(), self.rests_until
                if reads := rests_until <= now and self._take(own):
                    self.rests_until = 0.0
            if not reads:
                own.park(rests_until if rests_until > now else now + READS_FOR)
                continue
            if self._retired.is_set() or self.trouble is not None:
                break
            try:
                if not self._memory:  # fakeredis cannot wait for data without reading it
                    begins(self.connection, None)
                lone = self._lone()
                told = self._read()
            except Exception as error:  # of any kind, as in read_here()
                self.trouble = error
                break
            self._stop(lone, told is not None)
        retired = self._retired.is_set()
        self.trouble = self.trouble or ConnectionError("nobody listens any more")
        self.connection.disconnect()
        self._ended(self, None if retired else self.trouble)

    def _read(self) -> Waiter | None:
        """Read a message, and return the waiter that it was for."""
        message = read(self.connection)
        if isinstance(message, RedisError):
            raise message
        kind, channel, data = message
        listener = self._channels[channel]
        if kind in (b"message", b"smessage"):
            return listener.on_message(data, self.node)
        listener.on_unsubscribed()  # C3: an unsolicited sunsubscribe: the slot has moved
        return None
