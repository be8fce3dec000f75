"""The subscriber keeps the listeners of a place subscribed, each at the node that runs its scripts (R3, C3).

Its thread lives only while there is something to subscribe.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from logging import WARNING
from time import monotonic
from typing import Any

from redis.exceptions import ResponseError

from ..store.node import Node
from ..store.place import Place
from ..store.wire import PASSING, wording
from .listener import RECONNECTING, SIT_OUT, Listener
from .notifier import Notifier
from .outage import Outage
from .reader import Interrupted
from .receiver import Receiver
from .threads import make_thread, start

RESUBSCRIBE_EVERY = 30.0  # seconds in the end, where subscribing is refused again and again
STANDS = 1.0  # seconds that a subscription must last, for its end to be a new outage


class Subscriber:
    """See the module."""

    def __init__(self, place: Place, notifier: Notifier) -> None:
        self.place: Place = place
        self._notifier = notifier
        self._mutex = threading.RLock()  # a finalizer may use a lock of ours while this is held
        self._wanted = threading.Condition(self._mutex)
        self._due: dict[Listener, float] = {}  # those to subscribe, and when (monotonic)
        self._receivers: dict[Node, Receiver[Listener]] = {}
        self._joining: Receiver[Listener] | None = None  # not yet one of them
        self._thread: threading.Thread | None = None
        self._outage: Outage | None = None
        self._pauses: dict[Listener, float] = {}  # seconds until the next try of those that were refused
        self._last_refusal = ""
        place.on_close.append(self.close)

    def want(self, listener: Listener) -> None:
        """Subscribe this one, or see to it that it is where it should be. Returns at once; ``ready`` follows."""
        with self._mutex:
            if self.place.closed:
                return
            self._due.setdefault(listener, 0.0)  # one that was refused is not tried sooner for that
            begun = self._wake()
        if not begun:
            listener.subscribed(None, polled=True)  # waiters poll at the end of the process

    def _wake(self) -> bool:
        """See to it that our thread works; False: there can be none any more."""
        if self._thread is None or not self._thread.is_alive():
            # known before it starts: an interruption in there must not make the next caller start another
            self._thread = thread = make_thread(self._run, "redislock-subscriber")
            return start(thread)
        self._wanted.notify_all()  # one that is about to end may wait as well
        return True

    def close(self) -> None:
        """Settings have changed: nobody listens any more."""
        with self._mutex:
            self._due.clear()
            self._wanted.notify_all()
            receivers, self._receivers = list(self._receivers.values()), {}
        for receiver in receivers:
            receiver.retire()

    def leave_parent(self) -> None:
        """In a forked child."""
        for receiver in (self._joining, *self._receivers.values()):
            if receiver is not None:
                receiver.leave_parent()

    # -- its thread -------------------------------------------------------------------------------------------------

    def _run(self, me: threading.Thread) -> None:
        while (batch := self._next(me)) is not None:
            before = list(self._receivers.values())
            try:
                self._subscribe(batch)
            except Exception as error:  # whatever it is: nobody would start us again
                self._failed(batch, error)
            for receiver in before:
                if not _served_by(receiver):  # it was replaced, or its listeners belong elsewhere by now
                    self._forget(receiver)
                    receiver.retire()

    def _next(self, me: threading.Thread) -> list[Listener] | None:
        """Those that are due, when they are; None: there is nothing more to do, or another thread does it."""
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
        for listener in batch:
            node, receiver = self.place.node_of(listener.backend.tag), listener.receiver
            if listener.hears and receiver is not None and receiver.node is node and not receiver.reader.interrupted:
                continue  # it stands where it should
            groups[node].append(listener)
        for node, listeners in groups.items():
            try:
                self._subscribe_at(node, listeners)
            except Exception as error:
                self.place.doubt(node)
                self._failed(listeners, error)

    def _subscribe_at(self, node: Node, listeners: Sequence[Listener]) -> None:
        """A new receiver for these, and for those that have one there already, which it replaces."""
        old, outage = self._receivers.get(node), self._outage
        others = [] if old is None else [each for each in _served_by(old) if each not in listeners]
        self._joining = receiver = Receiver(node, [*others, *listeners], self._ended)
        try:
            try:
                found = receiver.subscribe(listeners)
            except ResponseError as error:  # on connecting
                found = dict.fromkeys(receiver.listeners, error)
            for listener in listeners:
                self._stand(listener, receiver, found[listener])
            if not any(isinstance(found[listener], int) for listener in listeners):
                receiver.connection.disconnect()  # nobody has any use for it
                self._joining = None
                return
            receiver.start()
        except BaseException:
            receiver.connection.disconnect()
            raise
        with self._mutex:
            closed = self.place.closed
            self._receivers[node] = receiver
        self._joining = None
        if old is not None:
            self._replace(old, receiver, others, found)
        if closed:
            receiver.retire()
        # another one has begun, if the receiver has ended meanwhile
        if not self._due and outage is not None and outage is self._outage and outage.end_is_due():
            self._log("listener-reconnected", outage=outage.lasted)

    @staticmethod
    def _replace(
        old: Receiver[Listener], new: Receiver[Listener], others: Sequence[Listener], refused: Container[Listener]
    ) -> None:
        """``others``, who have subscribed before, go over from the old receiver to the new one."""
        for each in others:
            if each not in refused:
                each.receiver = new
                if old.reader.interrupted:
                    each.tell_all()  # what it was about to read may have been for them
        for each in _served_by(old):
            each.on_unsubscribed()  # it was refused: it belongs elsewhere by now

    def _stand(self, listener: Listener, receiver: Receiver[Listener], counted: int | ResponseError) -> None:
        if isinstance(counted, PASSING):
            self.place.redirect(listener.backend, counted, receiver.node)
            self._retry([listener], RECONNECTING / 10)
        elif isinstance(counted, ResponseError):
            # for a moment (BUSY, a password that is being changed), or by rights that nobody will give
            if str(counted) != self._last_refusal:
                self._last_refusal = str(counted)
                self._log("not-subscribed", error=wording(counted))
            listener.subscribed(None, polled=True)
            pause = self._pauses.get(listener, RECONNECTING)
            self._pauses[listener] = min(pause * 2, RESUBSCRIBE_EVERY)
            self._retry([listener], pause)
        else:
            self._pauses.pop(listener, None)
            self._last_refusal = ""
            # the reader comes last: nobody can be told anything while he reads himself
            listener.subscribed(receiver, polled=counted == 0)

    def _ended(self, receiver: Receiver[Listener], error: Exception | None) -> None:
        """Called in the thread of a receiver that has ended."""
        concerned = _served_by(receiver)
        if isinstance(error, Interrupted):
            # as long as this connection is open, nobody passes over our waiters: another one is subscribed first
            self._go_on_with(lambda: self._retry(concerned, 0.0))
            return
        receiver.connection.disconnect()
        self._forget(receiver)
        if error is not None and not self.place.closed:
            self.place.doubt(receiver.node)
            if monotonic() - receiver.since >= STANDS:
                self._outage = None
            self._go_on_with(lambda: self._failed(concerned, error))
        else:
            for listener in concerned:
                listener.unsubscribed()

    def _forget(self, receiver: Receiver[Listener]) -> None:
        with self._mutex:
            if self._receivers.get(receiver.node) is receiver:
                del self._receivers[receiver.node]

    def _go_on_with(self, act: Callable[[], None]) -> None:
        """Do what wakes our thread; this one, which would end here, goes on as ours where there can be no other."""
        try:
            act()
        except RuntimeError:  # the system gives no more threads
            with self._mutex:
                if self._thread is not None and self._thread.is_alive():
                    return  # pragma: no cover (another one was faster)
                me = self._thread = threading.current_thread()
            self._run(me)

    def _failed(self, listeners: Sequence[Listener], error: Exception) -> None:
        for listener in listeners:
            listener.unsubscribed()
        with self._mutex:  # several nodes may fail at once
            outage = self._outage = self._outage or Outage()
            log_it, delay = outage.log_is_due(), outage.fail()
        if log_it:
            self._log("listener-disconnected", outage=outage.lasted, error=wording(error))
        if outage.lasted > SIT_OUT:
            for listener in listeners:
                listener.tell_all()
        self._retry(listeners, delay * random.uniform(0.5, 1))

    def _retry(self, listeners: Iterable[Listener], delay: float) -> None:
        with self._mutex:
            if not self.place.closed:
                due = monotonic() + delay
                for listener in listeners:
                    self._due[listener] = due
                self._wake()

    def _log(self, event: str, **facts: Any) -> None:
        self._notifier.log(WARNING, event, alias=self.place.alias, **facts)


def _served_by(receiver: Receiver[Listener]) -> list[Listener]:
    """Its listeners that are still subscribed there."""
    return [listener for listener in receiver.listeners if listener.receiver is receiver]
