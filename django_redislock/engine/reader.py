"""The subscribed connection, and who reads it: one thread at a time.

While threads wait, one of them reads (the leader: Schmidt et al., "Leader/Followers", 2000), so a wake needs no switch
to another thread, which would take a sixth of the time of a contended section. A leader that stops promotes a follower.
The listener's own thread reads what leaders leave, and all messages while no thread waits or coroutines do, as these
cannot read by themselves.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from redis.connection import Connection
from redis.exceptions import ConnectionError, RedisError

from ..base.times import monotonic

SWEEP_EVERY = 0.03  # seconds between reads of the listener's thread while threads wait in quick succession
HOT_FOR = 1.0  # seconds after a wait in which the next one is expected
CHECK_EVERY = 1.0  # seconds between checks whether the leader still exists


class Interrupted(ConnectionError):
    """The leader was interrupted, perhaps in the middle of a message: the connection is open, but of no more use."""


class Told(Protocol):
    """A waiter for a message."""

    told: bool

    def wake(self) -> None: ...


class _Turn:
    """The right to read. It exists before it is taken, so that any interruption gives it up."""

    __slots__ = ("__weakref__",)


class Reader:
    """Reads ``connection`` and gives each message (kind, channel, data) to ``handle``. Any trouble ends it for good.

    An incomplete message is trouble after the connection's timeout. ``may_lead``: whether waiting threads may read.
    """

    def __init__(
        self, connection: Connection, handle: Callable[[Any, Any, Any], None], may_lead: Callable[[], bool]
    ) -> None:
        self._connection = connection
        self._handle = handle
        self._may_lead = may_lead
        self._mutex = threading.RLock()
        self._freed = threading.Condition(self._mutex)
        self._turn: Callable[[], _Turn | None] = _nobody  # the leader's
        self._followers: dict[Told, None] = {}  # waiters that wanted to read while another did
        self._hot_until = 0.0
        self._trouble: Exception | None = None
        self._cut = False

    def lead(self, waiter: Told, seconds: float | None) -> bool:
        """Read in the waiting thread until it was told something, for at most ``seconds`` (None: without end).

        False: another thread reads. When it stops, this waiter is woken to try again, unless it has called
        :meth:`unfollow`.
        """
        if self._trouble is not None or not self._may_lead():
            return False
        now = monotonic()
        self._hot_until = now + HOT_FOR
        turn = _Turn()
        try:
            if not self._take(turn):
                self._followers[waiter] = None
                # try once more: a leader that stopped just before has not seen us among its followers
                if not self._take(turn):
                    return False
                self.unfollow(waiter)
            while not waiter.told and self._trouble is None:
                left = None if seconds is None else now + seconds - monotonic()
                if left is not None and left <= 0:
                    break
                if self._connection.can_read(left):  # type: ignore[arg-type]  # None: without end
                    self._read()
        except RedisError as error:  # of any kind: a TLS connection that is cut yields nonsense
            self._trouble = error.with_traceback(None)  # which would keep our turn alive
        except BaseException as error:
            # From a signal handler, for instance: it must propagate, and half a message may be left unread. But ssl
            # may raise some of these types when end() cuts the connection, and redis-py after leave_parent()
            if self._trouble is None or not isinstance(error, (TypeError, ValueError, AttributeError)):
                self._trouble = self._trouble or Interrupted("reading was interrupted")
                raise
        finally:
            self._give_up(turn)
        return waiter.told or self._trouble is None

    def serve(self, closed: threading.Event, *, polls: bool) -> None:
        """Read in the listener's thread until ``closed`` is set. Raises the trouble that any reader has met.

        ``polls``: the connection cannot wait for data without reading it.
        """
        while not closed.is_set():
            hot = monotonic() < self._hot_until and self._may_lead()
            if hot:
                closed.wait(SWEEP_EVERY)
            turn = _Turn()
            if not self._take(turn, wait=not hot):
                continue
            try:
                if self._trouble is not None:
                    raise self._trouble
                if hot:
                    while self._connection.can_read(0):
                        self._read()
                elif (monotonic() >= self._hot_until or not self._may_lead()) and (
                    polls or self._connection.can_read(None)  # type: ignore[arg-type]  # without end
                ):
                    self._read()
            except Exception as error:
                self._trouble = error  # ends all reading: redis-py would reconnect, but not subscribe
                raise
            finally:
                self._give_up(turn)
        self._trouble = self._trouble or ConnectionError("the listener has ended")  # its owner calls end()

    def unfollow(self, waiter: Told) -> None:
        """The waiter no longer waits."""
        self._followers.pop(waiter, None)

    @property
    def trouble(self) -> Exception | None:
        """What has ended all reading, if anything."""
        return self._trouble

    @property
    def interrupted(self) -> bool:
        """Whether reading has ended, though the connection may be open."""
        return isinstance(self._trouble, Interrupted)

    def end(self) -> None:
        """Cut the connection, whoever is reading it."""
        with self._mutex:
            self._refuse_more()
            self._cut = True
            if self._turn() is None:
                self._connection.disconnect()
            else:
                # Whoever reads closes it: a new socket could get the number of a closed one before its reader has
                # begun to wait, and would then be waited for instead
                _shut_down(self._connection)

    def leave_parent(self) -> None:
        """In a forked child: close the inherited socket, without a shutdown (redis-py compares the process id)."""
        self._refuse_more()  # without the mutex, which another thread of the parent may have had
        self._connection.disconnect()

    def _refuse_more(self) -> None:
        self._trouble = self._trouble or ConnectionError("wakes do not arrive any more")
        # a thread about to read would make redis-py reconnect, without subscribing
        setattr(self._connection, "connect", _refuse)  # noqa: B010

    def _take(self, turn: _Turn, *, wait: bool = False) -> bool:
        with self._mutex:
            # the turn's weak reference is dead if its thread was interrupted both in taking it and in giving it up
            while self._turn() is not None:
                if not wait:
                    return False
                self._freed.wait(CHECK_EVERY)
            self._turn = weakref.ref(turn)
            return True

    def _give_up(self, turn: _Turn) -> None:
        with self._mutex:
            if self._turn() is not turn:
                return
            self._turn = _nobody
            if self._cut:
                self._connection.disconnect()
            self._freed.notify()
        for follower in list(self._followers):
            if not follower.told:
                follower.wake()
                return

    def _read(self) -> None:
        self._handle(*self._connection.read_response())


def _shut_down(connection: Any) -> None:
    """End the connection for whoever reads it, but leave its socket open."""
    with suppress(OSError, AttributeError):  # it has ended by itself
        connection._sock.shutdown(socket.SHUT_RDWR)


def _refuse() -> None:
    raise ConnectionError("the subscription has ended")


def _nobody() -> None:
    return None
