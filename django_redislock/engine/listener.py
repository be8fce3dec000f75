"""The listener: one background thread per process and alias that receives messages and passes them to those who wait.

A message is a hint; the key is the truth. Every subscription, the first or a later one, tells all waiters to look for
themselves.
"""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Callable
from logging import WARNING
from time import monotonic
from typing import Any

from redis.connection import Connection
from redis.exceptions import ResponseError

from ..names import TOKEN, can_be_asked_for
from ..store.backend import Backend
from ..store.calls import ENDLESS, FREE, lease_end, probe_command
from ..store.wire import CONNECTION_ERRORS, exchange
from .notifier import Notifier
from .outage import Outage
from .reader import HOT_FOR, Reader
from .waiters import Grant, Loop, TaskWaiter, ThreadWaiter, Waiter, Waiters

LOOK_EVERY = 5.0  # seconds between looks of a process at one name
RECONNECTING = 1.0  # the same while there is no subscription
WATCHING = 0.1  # the same at a lock that is free, and left for somebody who polls
JITTER = 0.05
SIT_OUT = 10.0  # seconds without a connection after which waiters try for themselves, and fail
RESUBSCRIBE_EVERY = 30.0  # seconds in the end, where subscribing is refused again and again
STANDS = 1.0  # seconds that a subscription must last, for its end to be a new outage
DOUBT_EVERY = 5.0  # seconds between looks of all for the sake of late messages, which anybody may have sent
MESSAGE_WITHIN = 1.0  # seconds that a message may take from its begin to its end

# a grant has three numbers; the probe of R3 is none of these
_MESSAGE = re.compile(rf"(?:(g)|([wfar])) ({TOKEN}) (?(1)(\d{{1,16}}) (\d{{1,17}}) (\d{{1,12}}) )([^\ud800-\udfff]+)")

# A message for an id that nobody here waits with: kind, id, name
Stray = Callable[[Backend, str, str, str], None]


class Listener:
    """See the module. ``ready``: subscribed, waiters may queue; ``polled``: messages cannot be trusted to arrive.

    ``on_stray`` is told what is for nobody who waits, ``on_connected`` that the subscription stands (again).
    """

    def __init__(
        self, backend: Backend, notifier: Notifier, on_stray: Stray, on_connected: Callable[[Backend], None]
    ) -> None:
        self.backend = backend
        self.ready: bool = False
        self.polled: bool = False
        self.generation: int = 0
        self.heard: int = 0  # messages
        self.waiters: Waiters = Waiters(HOT_FOR)
        self.connection: Connection | None = None
        self.reader: Reader | None = None
        self._notifier = notifier
        self._on_stray = on_stray
        self._on_connected = on_connected
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        backend.on_close.append(self.close)
        backend.on_loop_end.append(self.bury)
        if backend.closed:  # a lease of before the settings changed: nobody would close us
            self._closed.set()

    @property
    def hears(self) -> bool:
        """Whether what is told to this process reaches it."""
        return self.ready and not self.polled

    # -- the waiters' side ------------------------------------------------------------------------------------------

    def make_waiter(self, id: str, name: str, loop: Loop | None) -> Waiter:
        """For a coroutine in ``loop``, or for this thread."""
        if loop is None:
            return ThreadWaiter(id, name, lambda: self.reader)
        return TaskWaiter(id, name, loop, self.bury)

    def register(self, waiter: Waiter) -> None:
        """Wakes can reach it from now on. Must come before its request is sent."""
        waiter.due = monotonic() + RECONNECTING
        self.waiters.add(waiter)

    def bury(self, loop: Loop) -> None:
        """The loop has ended, and whoever still waits in it cannot be told any more: pass on what may be theirs."""
        for waiter in self.waiters.discard_loop(loop):
            self._on_stray(self.backend, "g", waiter.id, waiter.group.name)

    def schedule(self, waiter: Waiter, left: float, delay: float) -> None:
        """A look found the lock busy for ``left`` seconds more, or free and meant for somebody else.

        Where messages cannot be trusted, the waiter looks again after ``delay`` seconds.
        """
        waiter.due = monotonic() + (delay if self.polled else RECONNECTING)
        wait = {FREE: WATCHING, ENDLESS: LOOK_EVERY}.get(left, min(left, LOOK_EVERY))
        due = monotonic() + wait + random.uniform(0, JITTER)
        group = waiter.group
        # a newcomer's look may bring the next one forward, not put it off: it does not look for the others' sake
        group.due = due if group.oldest is waiter else min(group.due, due)

    def next_look(self, waiter: Waiter) -> float | None:
        """The monotonic time at which this waiter must look unasked, if it is the one who does."""
        if self.polled:
            return waiter.due
        if waiter.group.oldest is not waiter:
            return None
        return waiter.group.due if self.ready else waiter.due

    def deadline_of(self, grant: Grant) -> float:
        """The local monotonic time at which a handoff's lease must be presumed over (never too late)."""
        if self.backend.anchor is None:
            return 0.0
        us, sent = self.backend.anchor
        # when the server's clock has jumped ahead since, the grant seems to lie in the future
        return lease_end(min(sent + (grant.us - us) / 1e6, monotonic()), grant.lease)

    def tell_all(self, name: str | None = None) -> None:
        """All that wait here, or all that wait for ``name``: look, you may not be in the queue any more."""
        for waiter in self.waiters.of(name):
            waiter.tell()

    def doubt(self, name: str) -> None:
        """A handoff came after its lease: this process was paused, and others may have dropped all its waiters.

        ``name``: of the lock that it was for. All who wait for it look, at most once in DOUBT_EVERY seconds.
        """
        now = monotonic()
        for group in self.waiters.groups(name):
            if now >= group.doubts_from:
                group.doubts_from = now + DOUBT_EVERY
                for waiter in list(group.waiters.values()):
                    waiter.tell()

    # -- the thread's side ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread if it does not run. Returns at once; ``ready`` follows, and waiters are told."""
        if self._thread is None or not self._thread.is_alive():
            with self._mutex:
                if (self._thread is None or not self._thread.is_alive()) and not self._closed.is_set():
                    thread = threading.Thread(target=self._run, name="redislock-listener", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """End the thread (settings have changed)."""
        self._closed.set()
        self.ready = False
        if self._thread is not None:
            try:
                # a message ends its wait, whatever kind of connection it reads from
                self.backend.execute(probe_command(self.backend))
            except (ResponseError, *CONNECTION_ERRORS):
                self.reconnect()
        self.tell_all()

    def reconnect(self) -> None:
        """Cut the connection: wakes do not arrive on it any more."""
        if self.reader is not None and not self.backend.memory:
            self.reader.end()

    def leave_parent(self) -> None:
        """In a forked child: close the inherited socket, without a shutdown (redis-py looks at the process id).

        As long as it is open here, Redis would count the parent as alive after its death.
        """
        if self.connection is not None:
            self.connection.disconnect()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except Exception as error:
                # whatever it is (no more threads for what waiters left, say): nobody would start us again
                self._log("listener-disconnected", outage=0.0, error=error)
                self._closed.wait(RECONNECTING)

    def _listen(self) -> None:
        """Subscribe, read, and again when the connection is lost, until closed."""
        outage: Outage | None = None
        last_refusal, pause = "", RECONNECTING
        while not self._closed.is_set():
            self.connection = connection = self.backend.origin.listening(MESSAGE_WITHIN)
            stands_from = math.inf
            try:
                connection.connect()
                connection.send_command("SUBSCRIBE", self.backend.channel)
                connection.read_response()
                reader = Reader(connection, self._dispatch, self._threads_may_read)
                self._subscribed(polled=not self._messages_count())
                self.reader = reader  # not before all were told: nobody can wake one who reads
                if outage is not None and outage.end_is_due():
                    self._log("listener-reconnected", outage=outage.lasted)
                last_refusal, pause = "", RECONNECTING
                stands_from = monotonic() + STANDS
                reader.serve(self._closed, polls=self.backend.memory)
                outage = None
            except ResponseError as error:
                if str(error) != last_refusal:
                    last_refusal = str(error)
                    self._log("not-subscribed", error=error)
                self._subscribed(polled=True)
                # for a moment (BUSY, a password that is being changed), or by rights that nobody will give
                self._closed.wait(pause)
                pause = min(pause * 2, RESUBSCRIBE_EVERY)
            except Exception as error:
                self.ready = False
                if not self._closed.is_set():
                    if outage is None or monotonic() > stands_from:
                        outage = Outage()
                    if outage.log_is_due():
                        self._log("listener-disconnected", outage=outage.lasted, error=error)
                    if outage.lasted > SIT_OUT:
                        self.tell_all()
                    self._closed.wait(outage.fail() * random.uniform(0.5, 1))
            finally:
                self.ready = False
                self.reader = None
                connection.disconnect()

    def _log(self, event: str, **facts: Any) -> None:
        self._notifier.log(WARNING, event, alias=self.backend.alias, **facts)

    def _threads_may_read(self) -> bool:
        """Whether waiting threads may; fakeredis has nothing that two threads could take turns to wait for."""
        return not self.waiters.expects_tasks and not self.backend.memory

    def _messages_count(self) -> bool:
        """Whether the node that runs the scripts counts this listener as a receiver; where not, we poll."""
        # not through the pool, which may have no other use in a process of coroutines, and would keep the connection
        connection = self.backend.connect(self.backend.timeout)
        try:
            connection.connect()
            (answer,) = exchange(connection, [probe_command(self.backend)])
        finally:
            connection.disconnect()
        if isinstance(answer, ResponseError):
            raise answer
        return answer > 0  # type: ignore[no-any-return]

    def _subscribed(self, *, polled: bool) -> None:
        self.polled = polled
        self.generation += 1
        self.ready = True
        self.tell_all()
        self._on_connected(self.backend)

    def _dispatch(self, data: bytes) -> None:
        self.heard += 1
        found = _MESSAGE.fullmatch(data.decode(errors="surrogateescape"))
        if found is None:
            return  # not one of our messages
        granted, told, id, fence, us, lease_ms, name = found.groups()
        kind = granted or told
        grant = Grant(int(fence), int(us), int(lease_ms) / 1000, name) if granted else None
        waiter = self.waiters.get(id) if kind in "gw" else None
        if grant is not None and monotonic() >= self.deadline_of(grant):
            self.doubt(name if waiter is None else waiter.group.name)
        if waiter is not None:
            waiter.tell(grant)
        elif can_be_asked_for(name):
            self._on_stray(self.backend, kind, id, name)
