"""One attempt to get a lock: what it asks of Redis, and what it may leave behind there. How it waits: wait_loop.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from redis.backoff import AbstractBackoff

from ...base.names import known_as
from ...base.pace import POLLING
from ...base.steps import DrivingLoop, Pause, Steps
from ...base.times import Deadline, monotonic
from ...exceptions import LockLost, LockNotAcquired, LockUnavailable
from ...store import calls
from ...store.calls import AcquireReply, LockRequest
from ...store.keys import make_keys
from ...store.loop_connections import ENTERING, RETURNING
from ...store.retry import ACKNOWLEDGED_WITHIN, Tried
from ..messages.listener import SIT_OUT, Listener
from ..messages.waiters import Park, Waiter
from .current_holder import CurrentHolder

GRACE = 0.8  # seconds past the deadline in which an answer still counts
LISTENING_WITHIN = 0.2  # seconds that a subscription may take, where it must stand before the first request
GONE = "it was released, has ended, or somebody else holds it"
LATE_ANSWERS = 3  # grants that arrive after their own lease, before Redis is said to be too slow


class Granted(NamedTuple):
    """How a lock was obtained."""

    fence: int
    ends: float  # monotonic
    handed: bool  # and not confirmed yet


class FirstLook(NamedTuple):
    """A look that was made before there was an attempt."""

    tried: Tried
    queued: bool
    generation: int  # of the subscription at that time


def give_up_at(deadline: Deadline) -> float | None:
    """When an answer does not count any more (monotonic); None: it always does."""
    return None if deadline.at == math.inf else max(deadline.at, monotonic()) + GRACE


class Attempt:
    """One try to get a lock. Its id was drawn for it alone and is never used again."""

    def __init__(
        self,
        request: LockRequest,
        listener: Listener,
        *,
        deadline: Deadline,
        begun: float,
        at_work: Callable[[str], bool],
        polls: bool = False,
        backoff: AbstractBackoff | None = None,
        attempts: int | None = None,
        slow_wait: float | None = None,
    ) -> None:
        self.request: LockRequest = request
        self.listener: Listener = listener
        self.deadline: Deadline = deadline
        # whether an acquisition of this process, by its id, is in use or may come to be
        self.at_work: Callable[[str], bool] = at_work
        self.polls: bool = polls  # by choice: nothing is subscribed to
        self.backoff: AbstractBackoff = backoff or POLLING
        self.attempts: int | None = attempts  # at most so many tries; None: only time counts
        self.waiter: Waiter | None = None
        self.ticket: int | None = None
        self.begun: float = begun  # monotonic
        self.current_holder: CurrentHolder = CurrentHolder(math.inf if slow_wait is None else self.begun + slow_wait)
        self.tries: int = 0
        self.asked: bool = False  # anything at all
        self.asking: bool = False  # a request is on its way
        self.unknown: bool = False  # a request may still arrive whose answer we never saw
        self.over: bool = False  # nothing of it is left in Redis, but for what it was granted

    def adopt(self) -> Steps[Granted | None]:
        """Go on with the lock that was left to the bearer of its token; None: it is still in use. LockLost: it is gone.

        It never waits, and never takes a free lock.
        """
        yield from self.listen_first()
        reply, granted = yield from self.look(calls.ADOPTING)
        if reply.state == calls.GIVEN_UP:
            raise LockLost(f"Could not adopt the lock {self.request.name!r}: {GONE}.", self.request.name, reason=GONE)
        return granted

    def listen_first(self) -> Steps[None]:
        """Subscribe before asking: to others with the same token, a process that does not listen is dead."""
        waiter, end = (yield from self.register()), monotonic() + LISTENING_WITHIN
        while not self.listener.ready and (left := end - monotonic()) > 0:
            yield Park(waiter, left)
            waiter.look = False

    def register(self) -> Steps[Waiter]:
        """Make wakes reach us."""
        waiter = self.waiter
        if waiter is None:
            loop = yield DrivingLoop()
            self.waiter = waiter = self.listener.make_waiter(self.request.id, self.request.name, loop)
        if not waiter.registered:
            self.listener.register(waiter)
            self.listener.start()
        return waiter

    def look(self, wait: str, tried: Tried | None = None) -> Steps[tuple[AcquireReply, Granted | None]]:
        """Ask Redis; again where a grant came after its own end, which is none. ``tried``: it was asked already.

        One that already waits sits out an outage of up to SIT_OUT seconds.
        """
        failing_since, late, request = 0.0, 0, self.request
        self.tries += 1
        while True:
            urgency = RETURNING if self.asked else ENTERING
            by = give_up_at(self.deadline)
            self.asked = self.asking = True
            if request.token is not None and not self.polls:
                # else a process that does not listen passes for dead
                request = request._replace(listens=wait == calls.QUEUED or self.listener.hears)
            try:
                reply = yield from calls.acquire(
                    request, wait, self.ticket, until=self.deadline.at, by=by, urgency=urgency, tried=tried
                )
            except LockUnavailable:
                self.asking, self.unknown, tried = False, True, None
                now = monotonic()
                failing_since = failing_since or now
                patience = min(failing_since + SIT_OUT, self.deadline.at)
                if self.ticket is None or now >= patience:
                    raise
                yield Pause(min(0.5, patience - now))
                continue
            self.asking, self.unknown, tried = False, self.unknown or reply.repeated, None
            if reply.namesake and reply.namesake != request.adopts and not self.at_work(reply.namesake):
                request = self.request = self.request._replace(adopts=reply.namesake)
                self.ticket = reply.number or self.ticket
                continue
            if reply.state not in (calls.GRANTED, calls.ALREADY):
                if not (request.listens or self.polls) and self.listener.hears:
                    continue  # subscribed since: the script may have taken our own process for another one
                self.current_holder.note(reply.holder, reply.left, self.waiter)
                self.current_holder.full = reply.state == calls.FULL
                return reply, None
            # more than was asked for is no deadline: the server's clock has jumped back, and may be put right
            ends = calls.lease_end(reply.sent, min(reply.left, request.ttl))
            if monotonic() < ends:
                self.got(f"{self.request.name}{reply.member}")
                granted: Granted | None = Granted(reply.number, ends, reply.state == calls.ALREADY)
                if reply.state == calls.GRANTED:
                    self._check_acknowledged(reply.acknowledged)
                elif request.replicas:
                    granted = yield from self.confirm(reply.number)
                if granted is None:
                    continue
                return reply, granted
            late += 1
            if late >= LATE_ANSWERS:
                noun, name = known_as(self.request.name)
                raise LockUnavailable(
                    f"Could not acquire the {noun} {name!r}: Redis takes longer to respond than the TTL "
                    f"of the lock ({self.request.ttl:g} s).",
                    name,
                )

    def confirm(self, fence: int) -> Steps[Granted | None]:
        """C6: a handoff was written by another connection, so replicas can acknowledge only what this one writes.

        None: it is lost already.
        """
        request = self.request
        until, by = self.deadline.at, give_up_at(self.deadline)
        answer = yield from calls.renew(
            request, "confirm", request.ttl, fence, until=until, by=by, replicas=request.replicas
        )
        ends = min(answer.ends, calls.lease_end(answer.sent, request.ttl))  # as in look()
        if answer.state != calls.HELD or monotonic() >= ends:
            return None
        self._check_acknowledged(answer.acknowledged)
        return Granted(fence, ends, False)

    def _check_acknowledged(self, count: int) -> None:
        request = self.request
        if count >= request.replicas:
            return
        noun, name = known_as(request.name)
        raise LockUnavailable(
            f"Could not acquire the {noun} {name!r}: {count} of {request.replicas} replicas acknowledged it within "
            f"{ACKNOWLEDGED_WITHIN:g} s.",
            name,
        )

    def got(self, name: str) -> None:
        """A pool's member was granted: use its own name from now on."""
        if name != self.request.name:
            keys = make_keys(self.request.partition.prefix, name)
            self.request = self.request._replace(name=name, keys=keys)

    def withdraw(self) -> Steps[None]:
        """Leave the queue. A grant that came in this very moment is passed on."""
        if self.ticket is not None or self.unknown:
            by = monotonic() + GRACE
            answer = yield from calls.release(
                self.request, unknown=self.unknown, how=calls.WITHDRAWAL, until=by - GRACE, by=by
            )
            if answer.holder is not None:
                self.current_holder.note(answer.holder, answer.left, self.waiter)
        self.over = True

    def refusal(self, *, adopting: bool = False, own: str | None = None) -> LockNotAcquired:
        """The error for a lock that was not acquired. ``own``: the id of an acquisition of the same caller."""
        waited, waits = monotonic() - self.begun, self.deadline.waits
        return self.current_holder.refusal(
            self.request, tries=self.tries, waited=waited, waits=waits, adopting=adopting, own=own
        )

    def leave(self) -> None:
        """Stop listening."""
        if self.waiter is not None:
            self.listener.waiters.discard(self.waiter)
