"""One attempt to get a lock: ask, queue, wait, look again, and clean up behind."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

from . import scripts
from .connection import ENTERING, RETURNING, Backend
from .exceptions import LockUnavailable
from .listener import OUTAGE, Listener, Waiter, get_listener
from .names import Keys, make_keys
from .steps import Park, Pause, Steps
from .watchdog import watchdog

WAKE_LATE = 1_000_000  # microseconds after which the wake of a handoff has not come, rather than not come yet
LATE_ANSWERS = 3  # grants that arrive after their own lease, before we say that Redis is too slow


class Granted(NamedTuple):
    """How a lock was obtained."""

    fence: int
    ends: float
    handed: bool


class Attempt:
    """One try to get a lock: asks, queues, waits, looks again, and cleans up behind itself."""

    __slots__ = (
        "adopts",
        "asked",
        "asking",
        "backend",
        "busy_for",
        "deadline",
        "keys",
        "listener",
        "loop",
        "mode",
        "name",
        "owner",
        "ticket",
        "token",
        "ttl",
        "unknown",
        "waiter",
    )

    def __init__(
        self,
        backend: Backend,
        name: str,
        token: str,
        *,
        mode: str,
        ttl: int,
        deadline: float | None,
        owner: str,
        adopts: bool,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.token = token
        self.mode = mode  # F(air) or L(ock)
        self.ttl = ttl  # milliseconds
        self.deadline = deadline  # monotonic; 0.0: wait without end, None: do not wait
        self.keys: Keys = make_keys(backend.prefix, name)
        self.owner = owner
        self.listener: Listener = get_listener(backend)
        self.waiter: Waiter | None = None
        self.ticket: int | None = None
        self.busy_for = 0.0
        self.adopts = adopts  # an acquisition made elsewhere: if that fails, it is not ours to end
        self.loop = loop  # of the coroutine that tries; None: a thread
        self.asked = False  # anything at all
        self.asking = False  # a request is on its way
        self.unknown = False  # a request may still arrive whose answer we never saw

    def obtain(self) -> Steps[Granted | None]:
        """Get the lock, or None in the end."""
        listener = self.listener
        late = 0
        unasked = False  # this look was made by the clock alone
        while True:
            if self.deadline is not None and self.waiter is None and listener.ready:
                self.waiter = listener.register(self.name, self.token, self.loop)
            queued = self.waiter is not None and listener.ready
            generation = listener.generation
            taken = yield from self._ask(("p" if listener.polled else "1") if queued else "0")
            if taken.state in (scripts.GRANTED, scripts.ALREADY):
                handed = taken.state == scripts.ALREADY
                ends = scripts.lease_end(taken.sent, taken.left)
                if monotonic() < ends:
                    # a fence is the time of its grant, as a rule
                    if handed and unasked and taken.us - taken.number > WAKE_LATE:
                        listener.reconnect()
                    return Granted(taken.number, ends, handed)
                late += 1
                if late >= LATE_ANSWERS:
                    raise LockUnavailable(
                        f"Redis answers more slowly than the TTL of the lock {self.name!r} ({self.ttl} ms).",
                        self.name,
                    )
                continue
            self.busy_for = max(0.0, taken.left / 1000)
            if taken.state == scripts.GONE or self.deadline is None:
                return None
            self.ticket = taken.number or self.ticket
            if self.waiter is None:
                self.waiter = listener.register(self.name, self.token, self.loop)
                listener.start()
            if listener.ready and not (queued and generation == listener.generation):
                continue  # asked under no subscription, or an older one
            listener.schedule(self.waiter, taken.left)
            if taken.state == scripts.REQUEUED and unasked:
                listener.tell_all(self.name)
            granted, unasked = yield from self._wait(self.waiter)
            if granted is not None:
                return granted
            if self.deadline and monotonic() >= self.deadline:
                return None

    def _ask(self, wait: str) -> Steps[scripts.Taken]:
        """Ask Redis. One who already waits sits out an outage of OUTAGE seconds."""
        failing_since = 0.0
        while True:
            urgency = RETURNING if self.asked else ENTERING
            self.asked = self.asking = True
            try:
                taken = yield from scripts.acquire(
                    self.backend,
                    self.keys,
                    self.name,
                    self.token,
                    ttl=self.ttl,
                    mode=self.mode,
                    wait=wait,
                    ticket=self.ticket,
                    owner=self.owner,
                    until=self.deadline or 0.0,
                    urgency=urgency,
                )
            except LockUnavailable:
                self.asking, self.unknown = False, True
                now = monotonic()
                failing_since = failing_since or now
                patience = min(failing_since + OUTAGE, self.deadline or now + OUTAGE)
                if self.ticket is None or now >= patience:
                    raise
                yield Pause(min(0.5, patience - now))
            else:
                self.asking, self.unknown = False, self.unknown or taken.repeated
                return taken

    def _wait(self, waiter: Waiter) -> Steps[tuple[Granted | None, bool]]:
        """Sleep until told, or until it is time to look or to leave. Answers (the handoff if any, by the clock)."""
        listener = self.listener
        while True:
            if waiter.grant is not None:
                grant, waiter.grant = waiter.grant, None
                if grant.fence <= (self.ticket or 0):
                    return None, False  # of an earlier attempt with this token, which has withdrawn
                ends = listener.deadline_of(grant)
                if monotonic() < ends:
                    return Granted(grant.fence, ends, True), False
                # woken too late: it may be somebody else's by now, and others here may have been dropped for that
                listener.tell_all(self.name)
                return None, False
            if waiter.look:
                waiter.look = False
                return None, False
            look = listener.next_look(waiter)
            now = monotonic()
            due = [time for time in (look, self.deadline) if time]
            if due and now >= min(due):
                return None, True
            yield Park(waiter, min(due) - now if due else None)

    def withdraw(self) -> Steps[None]:
        """Leave the queue. A grant that came in this very moment is passed on."""
        if self.ticket is not None or (self.unknown and not self.adopts):
            yield from scripts.release(self.backend, self.keys, self.name, self.token, unknown=self.unknown)

    def abandon(self) -> None:
        """The same in the background, wherever the attempt was interrupted."""
        if self.asked and (self.ticket is not None or not self.adopts):
            unknown = self.unknown or self.asking
            watchdog.send_farewell(self.backend, self.name, self.token, unknown=unknown)

    def leave(self) -> None:
        if self.waiter is not None:
            self.listener.unregister(self.waiter)
