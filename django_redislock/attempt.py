"""One attempt to get a lock: ask, queue, wait until woken or (polling) for a while, look again, clean up behind."""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import NamedTuple

from redis.backoff import AbstractBackoff

from . import scripts
from .connection import ENTERING, RETURNING, Backend
from .exceptions import LockNotAcquired, LockUnavailable
from .listener import OUTAGE, Listener, Waiter, get_listener
from .names import Keys, known_as, make_keys
from .polling import POLLING, Pace, as_polled
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
        "attempts",
        "backend",
        "backoff",
        "busy_for",
        "deadline",
        "keys",
        "listener",
        "loop",
        "mode",
        "name",
        "owner",
        "polls",
        "seized",
        "ticket",
        "token",
        "tries",
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
        polls: bool = False,
        backoff: AbstractBackoff | None = None,
        attempts: int | None = None,
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
        self.polls = polls  # by choice: nothing is subscribed to
        self.backoff = backoff or POLLING
        self.attempts = attempts  # at most so many tries; None: only time counts
        self.tries = 0
        self.seized: bytes | None = None  # value of the lock when somebody else held it
        self.asked = False  # anything at all
        self.asking = False  # a request is on its way
        self.unknown = False  # a request may still arrive whose answer we never saw

    def obtain(self) -> Steps[Granted | None]:
        """Get the lock, or None in the end."""
        return self._poll() if self.polls else self._await_wakes()

    def seize(self) -> Steps[Granted | None]:
        """Get the lock whoever holds it; None where the token has been released already."""
        taken, granted = yield from self._look("s")
        self.seized = taken.seized
        return granted

    def _poll(self) -> Steps[Granted | None]:
        """Look, and look again after a while."""
        pace = Pace(self.backoff)
        while True:
            delay = pace.next_look()
            last = self.deadline is None or (self.attempts or math.inf) <= self.tries + 1
            last = last or 0.0 < (self.deadline or 0.0) <= monotonic()
            taken, granted = yield from self._look("0" if last else as_polled(delay))
            if granted is not None or last or taken.state == scripts.GONE:
                return granted
            self.ticket = taken.number or self.ticket
            yield Pause(min(delay, max(0.0, self.deadline - monotonic())) if self.deadline else delay)

    def _await_wakes(self) -> Steps[Granted | None]:
        """Look when told to, and by the clock for when nobody tells."""
        listener = self.listener
        unasked = False  # this look was made by the clock alone
        pace: Pace | None = None
        while True:
            if self.deadline is not None and self.waiter is None and listener.ready:
                self.waiter = listener.register(self.name, self.token, self.loop)
            queued = self.waiter is not None and listener.ready
            generation = listener.generation
            wait, delay = "1" if queued else "0", 0.0
            if queued and listener.polled:
                pace = pace or Pace(self.backoff)
                delay = pace.next_look()
                wait = as_polled(delay)
            taken, granted = yield from self._look(wait)
            if granted is not None:
                # a fence is the time of its grant, as a rule
                if granted.handed and unasked and taken.us - taken.number > WAKE_LATE:
                    listener.reconnect()
                return granted
            if taken.state == scripts.GONE or self.deadline is None:
                return None
            self.ticket = taken.number or self.ticket
            if self.waiter is None:
                self.waiter = listener.register(self.name, self.token, self.loop)
                listener.start()
            if listener.ready and not (queued and generation == listener.generation):
                continue  # asked under no subscription, or an older one
            listener.schedule(self.waiter, taken.left, delay)
            if taken.state == scripts.REQUEUED and unasked:
                listener.tell_all(self.name)
            granted, unasked = yield from self._wait(self.waiter, taken.us)
            if granted is not None:
                return granted
            if self.deadline and monotonic() >= self.deadline:
                return None

    def _look(self, wait: str) -> Steps[tuple[scripts.Taken, Granted | None]]:
        """Ask Redis; again where a grant came after its own end, which is none.

        One who already waits sits out an outage of OUTAGE seconds.
        """
        failing_since, late = 0.0, 0
        self.tries += 1
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
                continue
            self.asking, self.unknown = False, self.unknown or taken.repeated
            if taken.state not in (scripts.GRANTED, scripts.ALREADY):
                self.busy_for = max(0.0, taken.left / 1000)
                return taken, None
            ends = scripts.lease_end(taken.sent, taken.left)
            if monotonic() < ends:
                self._got(f"{self.name}{taken.member}" if self.keys.any else self.name)
                return taken, Granted(taken.number, ends, taken.state == scripts.ALREADY)
            late += 1
            if late >= LATE_ANSWERS:
                noun, name = known_as(self.name)
                raise LockUnavailable(
                    f"Redis answers more slowly than the TTL of the {noun} {name!r} ({self.ttl} ms).", name
                )

    def _wait(self, waiter: Waiter, refused: int) -> Steps[tuple[Granted | None, bool]]:
        """Sleep until told, or until it is time to look or to leave. Answers (the handoff if any, by the clock).

        ``refused``: microseconds of the server's clock at which the last look found the lock to be somebody else's.
        """
        listener = self.listener
        while True:
            if waiter.grant is not None:
                grant, waiter.grant = waiter.grant, None
                if grant.us <= refused:
                    # it came during that look, and was taken back before: by force, say; or the clock has jumped back
                    return None, False
                if grant.fence <= (self.ticket or 0):
                    return None, False  # of an earlier attempt with this token, which has withdrawn
                ends = listener.deadline_of(grant)
                if monotonic() < ends:
                    self._got(grant.name)
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

    def _got(self, name: str) -> None:
        """What was asked for by a pool's name has one of its own now."""
        if name != self.name:
            self.name, self.keys = name, make_keys(self.backend.prefix, name)

    def withdraw(self) -> Steps[None]:
        """Leave the queue. A grant that came in this very moment is passed on."""
        if self.ticket is not None or (self.unknown and not self.adopts):
            yield from scripts.release(self.backend, self.keys, self.name, self.token, unknown=self.unknown)

    def refusal(self, waited: float) -> LockNotAcquired:
        """What says that the lock was not got, in so many seconds."""
        tries = f"{self.tries} attempt{'s'[: self.tries > 1]} in {waited:.3f} s"
        noun, name = known_as(self.name)
        return LockNotAcquired(
            f"No member of the pool {name!r} became free in time. Made {tries}."
            if noun == "pool"
            else f"The lock {name!r} is held by somebody else and was not got in time: {tries}.",
            name,
            attempts=self.tries,
            waited=waited,
            busy_for=self.busy_for,
        )

    def abandon(self) -> None:
        """The same in the background, wherever the attempt was interrupted."""
        if self.asked and (self.ticket is not None or not self.adopts):
            unknown = self.unknown or self.asking
            watchdog.send_farewell(self.backend, self.name, self.token, unknown=unknown, held=False)

    def leave(self) -> None:
        if self.waiter is not None:
            self.listener.unregister(self.waiter)
