"""The subscriber keeps the listeners of a store subscribed, each at the node that runs its scripts (R3, C3).

Its thread lives only while there is something to subscribe.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from logging import WARNING
from typing import Any

from redis.exceptions import ResponseError

from ..base.pace import Outage
from ..base.processes import make_thread, try_start
from ..base.times import monotonic
from ..store.lock_store import LockStore, Partition
from ..store.node import Node
from ..store.wire import PASSING, wording
from .announcements import Notifier
from .listener import RECONNECTING, Listener
from .receiver import Interrupted, Receiver

RESUBSCRIBE_EVERY = 5.0  # seconds, where subscribing is refused
STANDS = 1.0  # seconds that a subscription must last, for its end to be a new outage


class Subscriber:
    """See the module."""

    def __init__(self, store: LockStore, notifier: Notifier, listener_of: Callable[[Partition], Listener]) -> None:
        self.store: LockStore = store
        self._notifier = notifier
        self._listener_of = listener_of
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may use one of our locks
        self._wanted = threading.Condition(self._mutex)
        self._due: dict[Listener, float] = {}  # listeners to subscribe, and when (monotonic)
        self._receivers: dict[Node, Receiver] = {}
        self._joining: Receiver | None = None  # about to become one of them
        self._thread: threading.Thread | None = None
        self._outage: Outage | None = None
        self._last_refusal = ""
        store.when_closed(self.close)

    def want(self, listener: Listener) -> None:
        """Subscribe this listener, or check that it is at the right node. Returns at once; ``ready`` is set later."""
        self._plan([listener])

    def _plan(self, listeners: Sequence[Listener], due: float = 0.0) -> None:
        """Subscribe these at this time; 0: soon, but after a refusal no sooner than planned.

        Where no thread can be started, at the moment or (at the end of the process) for good, waiters poll.
        """
        with self._mutex:
            if self.store.closed:
                return
            for listener in listeners:
                self._due[listener] = due or self._due.get(listener, 0.0)
            begun = self._wake()
        for listener in listeners:
            if not (begun or listener.ready):
                listener.subscribed(None, polled=True)

    def _wake(self) -> bool:
        """Make sure that our thread is at work. False: no thread can be started."""
        if self._thread is None or not self._thread.is_alive():
            # set before it starts: if start() is interrupted, the next caller must not start a second thread
            self._thread = thread = make_thread(self._run, "redislock-subscriber")
            return try_start(thread)
        self._wanted.notify_all()  # all, as a thread that is about to end may be waiting, too
        return True

    def close(self) -> None:
        """Stop listening: the settings have changed."""
        with self._mutex:
            self._due.clear()
            self._wanted.notify_all()
            receivers, self._receivers = list(self._receivers.values()), {}
        for receiver in receivers:
            receiver.retire()

    def leave_parent(self) -> None:
        """In a forked child: close the inherited sockets, without a shutdown (redis-py compares the process id).

        While they are open here, Redis counts the parent as alive even after its death.
        """
        for receiver in (self._joining, *self._receivers.values()):
            if receiver is not None:
                receiver.connection.disconnect()

    # -- its thread -------------------------------------------------------------------------------------------------

    def _run(self, me: threading.Thread) -> None:
        while (batch := self._next(me)) is not None:
            before, outage = list(self._receivers.values()), self._outage
            try:
                self._subscribe(batch)
                # if a receiver has ended meanwhile, another outage has begun
                over = outage is self._outage and not (self._due or self.store.closed)
                if over and outage is not None and outage.end_is_due():
                    self._log("listener-reconnected", outage=outage.lasted)
            except Exception as error:  # of any kind: nothing would start this thread again
                self._failed(batch, error)
            for receiver in before:
                if not _served_by(receiver):  # it was replaced, or its listeners have moved to other nodes
                    self._forget(receiver)
                    receiver.retire()

    def _next(self, me: threading.Thread) -> list[Listener] | None:
        """Wait for listeners that are due. None: there is nothing more to do, or another thread has taken over."""
        with self._mutex:
            while self._thread is me:
                if not self._due:
                    self._thread = None
                    break
                now = monotonic()
                due = [listener for listener, when in self._due.items() if when <= now]
                if due:
                    for listener in due:
                        del self._due[listener]
                    return due
                self._wanted.wait(min(self._due.values()) - now)
            return None

    def _subscribe(self, batch: Sequence[Listener]) -> None:
        groups: dict[Node, list[Listener]] = defaultdict(list)
        # tags that nobody uses do not notice a failover, and would keep a receiver at every former master
        served = [(each, receiver.node) for receiver in list(self._receivers.values()) for each in _served_by(receiver)]
        left_behind = [each for each, node in served if each.partition.node_if_known not in (None, node)]
        for listener in dict.fromkeys([*batch, *left_behind]):
            node, receiver = self.store.node_of(listener.partition.tag), listener.receiver
            if listener.hears and receiver is not None and receiver.node is node:
                continue  # it is subscribed at the right node
            groups[node].append(listener)
        for node, listeners in groups.items():
            try:
                self._subscribe_at(node, listeners)
            except Exception as error:
                self.store.blame(node, error)
                self._failed(listeners, error)

    def _subscribe_at(self, node: Node, listeners: Sequence[Listener]) -> None:
        """Make a receiver for these, their neighbours and those already subscribed there; it replaces theirs."""
        old = self._receivers.get(node)
        others = [] if old is None else [each for each in _served_by(old) if each not in listeners]
        joining = [*listeners, *self._neighbours(node, listeners)]
        self._joining = receiver = Receiver(node, [*others, *joining], self._ended)
        try:
            try:
                found = receiver.subscribe(joining)
            except ResponseError as error:  # refused when connecting
                found = dict.fromkeys(receiver.listeners, error)
            counted = [each for each in joining if isinstance(found[each], int)]
            for listener in joining:
                if listener in listeners or listener in counted:
                    self._stand(listener, receiver, found[listener])
            if not counted:
                receiver.end()  # nobody is subscribed by it
                return
            receiver.start()
            with self._mutex:
                closed = self.store.closed
                self._receivers[node] = receiver
        except BaseException:
            receiver.end()
            for each in joining:
                each.unsubscribed()
            raise
        finally:
            self._joining = None
        if old is not None:
            self._replace(old, receiver, others, found)
        trouble = receiver.trouble
        if trouble is not None:  # its thread may have ended before all of these were its listeners
            self._failed(_served_by(receiver), trouble)
        if closed:
            receiver.retire()

    def _neighbours(self, node: Node, listeners: Sequence[Listener]) -> list[Listener]:
        """The others whose tags this node has: each would take a new connection when somebody first waits there."""
        here = [self._listener_of(each) for each in self.store.everywhere() if each.node_if_known is node]
        return [each for each in here if not each.ready and each not in self._due and each not in listeners]

    @staticmethod
    def _replace(old: Receiver, new: Receiver, others: Sequence[Listener], refused: Container[Listener]) -> None:
        """Move ``others``, which were subscribed before, from the old receiver to the new one."""
        for each in others:
            if each not in refused:
                each.tell_all()  # messages for them may be left unread
                each.receiver = new
        for each in _served_by(old):
            each.on_unsubscribed()  # it was refused: another node has its slot now

    def _stand(self, listener: Listener, receiver: Receiver, counted: int | ResponseError) -> None:
        if isinstance(counted, PASSING):
            self.store.redirect(listener.partition, counted, receiver.node)
            self._plan([listener], monotonic() + RECONNECTING / 4)
        elif isinstance(counted, ResponseError):
            # perhaps for a moment (BUSY, a password that is being changed), perhaps for good (a missing right)
            if str(counted) != self._last_refusal:
                self._last_refusal = str(counted)
                self._log("not-subscribed", error=wording(counted))
            listener.subscribed(None, polled=True)
            self._plan([listener], monotonic() + RESUBSCRIBE_EVERY)
        else:
            self._last_refusal = ""
            listener.subscribed(receiver, polled=counted == 0)

    def _ended(self, receiver: Receiver, error: Exception | None) -> None:
        """Called in the thread of a receiver that has ended."""
        concerned = _served_by(receiver)
        self._forget(receiver)
        if error is not None and not self.store.closed:
            if not isinstance(error, Interrupted):
                self.store.suspect(receiver.node)
            if monotonic() - receiver.since >= STANDS:
                self._outage = None
            self._failed(concerned, error)
        else:
            for listener in concerned:
                listener.unsubscribed()

    def _forget(self, receiver: Receiver) -> None:
        with self._mutex:
            if self._receivers.get(receiver.node) is receiver:
                del self._receivers[receiver.node]

    def _failed(self, listeners: Sequence[Listener], error: Exception) -> None:
        for listener in listeners:
            listener.unsubscribed()
        if isinstance(error, Interrupted):  # no outage
            self._plan(listeners)
            return
        with self._mutex:  # several nodes may fail at once
            outage = self._outage = self._outage or Outage()
            log_it, delay = outage.log_is_due(), outage.fail()
        if log_it:
            self._log("listener-disconnected", outage=outage.lasted, error=wording(error))
        self._plan(listeners, monotonic() + delay * random.uniform(0.5, 1))

    def _log(self, event: str, **facts: Any) -> None:
        self._notifier.log(WARNING, event, alias=self.store.alias, **facts)


def _served_by(receiver: Receiver) -> list[Listener]:
    """The listeners that are still subscribed by this receiver."""
    return [listener for listener in receiver.listeners if listener.receiver is receiver]
