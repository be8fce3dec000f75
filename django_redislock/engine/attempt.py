"""One attempt to get a lock: what it asks of Redis, how it waits, and what it may leave behind there.

It waits until it is woken, or (polling) for a while; then it looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from logging import WARNING
from typing import NamedTuple

from ..base.log import log_event
from ..base.names import known_as
from ..base.pace import LOG_EVERY, Outage, Pace, alive_for
from ..base.steps import DRIVING_LOOP, Pause, Steps
from ..base.times import Deadline, monotonic
from ..exceptions import LockLost, LockNotAcquired, LockUnavailable
from ..options import Terms
from ..store import calls
from ..store.calls import AcquireReply, LockRequest, is_counted
from ..store.loop_connections import ENTERING, LOOKING, RETURNING
from ..store.records import make_keys
from ..store.retry import Tried, patience_with_replicas
from .current_holder import CurrentHolder
from .listener import SIT_OUT, Listener
from .waiters import Park, Waiter, make_waiter

LISTENING_WITHIN = 0.5  # seconds that a subscription may take, where it must stand before the first request
GONE = "it was released, has ended, or somebody else holds it"
LATE_ANSWERS = 3  # grants that arrive after their own lease, before Redis is said to be too slow
WAKE_LATE = 1_000_000  # microseconds after which the wake of a handoff counts as missed
LOOK_LATE = 0.5  # seconds: a look that is later means that the process did not run


class Granted(NamedTuple):
    """How a lock was obtained."""

    fence: int
    ends: float  # monotonic
    handed: bool  # by a release, so with a short lease until it is confirmed


@dataclass(eq=False, repr=False)
class Attempt:
    """Asking and waiting for a lock until it is granted, where the first try, if there was one, was not enough.

    Its id was drawn for it alone and is never used again. (docs/protocol.rst calls all of it an attempt.)
    """

    request: LockRequest
    listener: Listener
    terms: Terms
    deadline: Deadline
    begun: float  # monotonic
    waiter: Waiter | None
    tried: Tried | None  # the first look, if it was made before
    generation: int  # of the subscription under which it was made
    ticket: int | None = None
    tries: int = 0

    def __post_init__(self) -> None:
        self.wanted: LockRequest = self.request  # as it was made: ``request`` gets the name of a pool's granted member
        # whether to confirm a handoff before it counts: for the replicas (C6), or as a leader needs a whole lease
        self.confirms: bool = bool(self.request.replicas) or self.terms.stands_by
        self.current_holder: CurrentHolder = CurrentHolder(self.begun + self.terms.slow_wait)
        self.asked: bool = self.tried is not None  # there may be something of it in Redis
        self.may_arrive: bool = self.asked  # a request is on its way, or may still arrive whose answer we never saw

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
        while not self.listener.ready and monotonic() < end:
            yield Park(waiter, end)
            waiter.look = False

    def register(self) -> Steps[Waiter]:
        """Make wakes reach us."""
        waiter = self.waiter
        if waiter is None:
            loop = yield DRIVING_LOOP
            self.waiter = waiter = make_waiter(loop, self.request.id, self.request.name, self.listener.bury)
        if not waiter.registered:
            waiter.bears_token = self.request.token is not None
            self.listener.register(waiter)
            self.listener.start()
        return waiter

    def look(
        self, wait: str, tried: Tried | None = None, *, by_clock: bool = False
    ) -> Steps[tuple[AcquireReply, Granted | None]]:
        """Ask Redis; again where a grant was over before it was read. ``tried``: it was asked already.

        One that already waits sits out an outage of up to SIT_OUT seconds.
        """
        late, request, failing_since = 0, self.request, 0.0
        self.tries += 1
        while True:
            urgency = LOOKING if by_clock else RETURNING if self.asked else ENTERING
            may_arrive = self.may_arrive and tried is None
            self.asked = self.may_arrive = True
            if request.token is not None and self.terms.listens:
                # else a process that does not listen passes for dead
                request = request._replace(listens=wait == calls.QUEUED or self.listener.hears)
            try:
                reply = yield from calls.acquire(
                    request, wait, self.ticket, self.deadline, urgency=urgency, tried=tried
                )
            except LockUnavailable:
                if self.ticket is None:
                    raise
                failing_since = failing_since or monotonic()  # Redis may answer others, and refuse this name
                left = min(self.listener.unanswered(), failing_since + SIT_OUT, self.deadline.at) - monotonic()
                if left <= 0:
                    raise
                yield Pause(min(0.5, left))
                tried = None
                continue
            self.listener.answered()
            self.may_arrive, tried = may_arrive or reply.repeated, None
            if reply.limit_before is not None:
                _tell_of_limits(request.name, request.limit, reply.limit_before)
            if reply.state not in (calls.GRANTED, calls.ALREADY):
                self.current_holder.note(reply.holder, reply.left, self.waiter)
                self.current_holder.full = reply.state == calls.FULL
                return reply, None
            # no more than the TTL counts: where more is left, the server's clock has jumped back, and may be put right
            ends = calls.lease_end(reply.sent, min(reply.left, request.ttl))
            if monotonic() < ends:
                self.use_member_name(f"{self.request.name}{reply.member}")
                granted: Granted | None = Granted(reply.number, ends, reply.state == calls.ALREADY)
                if reply.state == calls.GRANTED and monotonic() < ends - self.terms.early_by:
                    check_acknowledged(self.request, reply.acknowledged)
                elif self.confirms:
                    granted = yield from self.confirm(reply.number)
                if granted is not None:
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
        """Take up a handoff, with a whole lease. None: it is lost already.

        C6: it was written by another connection, and replicas can acknowledge only what this one writes.
        """
        request, how = self.request, "keep" if self.terms.stands_by else "confirm"
        answer = yield from calls.renew(request, how, request.ttl, fence, self.deadline, replicas=request.replicas)
        ends = min(answer.ends, calls.lease_end(answer.sent, request.ttl))  # as in look()
        if answer.state != calls.HELD or monotonic() >= ends - self.terms.early_by:
            self.request = self.wanted
            return None
        check_acknowledged(request, answer.acknowledged)
        return Granted(fence, ends, False)

    def use_member_name(self, name: str) -> None:
        """Use this name from now on: of a pool, which member was granted."""
        if name != self.request.name:
            keys = make_keys(self.request.partition.prefix, name)
            self.request = self.request._replace(name=name, keys=keys)

    def withdraw(self) -> Steps[None]:
        """Leave the queue. A grant that came in this very moment is passed on."""
        if self.ticket is not None or self.may_arrive:
            once = Deadline.after(0)
            answer = yield from calls.release(self.request, once, may_arrive=self.may_arrive, how=calls.WITHDRAWAL)
            if answer.holder is not None:
                self.current_holder.note(answer.holder, answer.left, self.waiter)
        self.asked = False

    def tell_that_it_waits(self) -> None:
        """Log that it waits, once, if it is time to."""
        if monotonic() >= self.current_holder.tell_at:
            self.current_holder.tell(self.request.name, monotonic() - self.begun, self.waiter)

    def refusal(self, *, adopting: bool = False, own: str | None = None) -> LockNotAcquired:
        """The error for a lock that was not acquired. ``own``: the id of an acquisition of the same caller."""
        waited, waits = monotonic() - self.begun, self.deadline.waits
        return self.current_holder.refusal(
            self.request, tries=self.tries, waited=waited, waits=waits, adopting=adopting, own=own
        )

    def unregister(self) -> None:
        """Let messages reach us no longer."""
        if self.waiter is not None:
            self.listener.waiters.discard(self.waiter)


@lru_cache(maxsize=1000)  # once in this process, as long as it is remembered: a hot semaphore would fill the log
def _tell_of_limits(name: str, limit: int | None, before: int) -> None:
    log_event(WARNING, "limits-differ", name=name, limit=limit, before=before)


def wait_for_lock(attempt: Attempt) -> Steps[Granted | None]:
    """Get the lock, or None in the end."""
    wait = _await_wakes if attempt.terms.listens else _poll
    return _stand_by(attempt, wait) if attempt.terms.stands_by else wait(attempt)


def _stand_by(attempt: Attempt, wait: Callable[[Attempt], Steps[Granted | None]]) -> Steps[Granted | None]:
    """The same for a leader, which outlasts outages of Redis: it keeps its ticket, and so its place."""
    outage: Outage | None = None
    while True:
        try:
            return (yield from wait(attempt))
        except LockUnavailable as error:
            if outage is None or outage.is_stale(LOG_EVERY):
                outage = Outage()
            if outage.log_is_due():
                log_event(WARNING, "standby-cut-off", name=attempt.request.name, outage=outage.lasted, error=error)
            yield Pause(outage.fail())


def check_acknowledged(request: LockRequest, count: int, verb: str = "acquire") -> None:
    """Raise LockUnavailable if fewer replicas than the request asks for have acknowledged what was written."""
    if count >= request.replicas:
        return
    store = request.partition.store
    store.suspect(request.partition.node_if_known)  # its replicas may follow another one
    noun, name = known_as(request.name)
    raise LockUnavailable(
        f"Could not {verb} the {noun} {name!r}: {count} of {request.replicas} replicas acknowledged it within "
        f"{patience_with_replicas(store.timeout):g} s.",
        name,
    )


def _poll(attempt: Attempt) -> Steps[Granted | None]:
    """Look, and look again after a while."""
    pace = Pace(attempt.terms.backoff)
    while True:
        delay = pace.next()
        last = not attempt.deadline.waits or attempt.deadline.passed
        last = last or attempt.terms.attempts <= attempt.tries + 1
        reply, granted = yield from attempt.look(calls.NOT_AT_ALL if last else calls.polled(alive_for(delay)))
        if granted is not None or last or reply.state in (calls.GIVEN_UP, calls.FULL):
            return granted
        attempt.ticket = reply.number or attempt.ticket
        attempt.tell_that_it_waits()
        yield Pause(min(delay, attempt.deadline.left()))


def _await_wakes(attempt: Attempt) -> Steps[Granted | None]:
    """Look when told to, and by the clock in case nobody tells."""
    listener = attempt.listener
    by_clock = False  # this look was due by the clock, and is not late
    heard = queued_under = 0
    pace: Pace | None = None
    if attempt.request.token is not None:
        yield from attempt.listen_first()
    while True:
        tried, attempt.tried = attempt.tried, None
        if tried is None:
            queued = attempt.deadline.waits and listener.ready
            if queued:
                yield from attempt.register()
            generation = listener.generation
        else:
            queued, generation = attempt.waiter is not None, attempt.generation
        wait, delay = calls.QUEUED if queued else calls.NOT_AT_ALL, 0.0
        if queued and listener.polled and tried is None:
            pace = pace or Pace(attempt.terms.backoff)
            delay = pace.next()
            wait = calls.polled(alive_for(delay))
        reply, granted = yield from attempt.look(wait, tried, by_clock=by_clock and not delay)  # else it polls
        # R19: a handoff of which we have heard nothing, nor anything else meanwhile. (A fence is the time of its
        # grant, as a rule.)
        missed = reply.state == calls.ALREADY and reply.us - reply.number > WAKE_LATE
        if by_clock and (missed or (reply.unheard and listener.heard == heard)):
            listener.reconnect()
        if by_clock and reply.state == calls.REQUEUED and generation == queued_under:
            yield from _check_subscription(attempt)
        queued_under = generation if queued else 0
        if granted is not None:
            return granted
        if reply.state in (calls.GIVEN_UP, calls.FULL) or not attempt.deadline.waits:
            return None
        attempt.ticket = reply.number or attempt.ticket
        waiter = yield from attempt.register()
        if listener.ready and not (queued and generation == listener.generation):
            continue  # asked under no subscription, or an older one
        listener.schedule(waiter, reply.left, delay)
        if reply.state == calls.REQUEUED and by_clock:
            listener.tell_all(attempt.request.name)
        heard = listener.heard
        granted, by_clock = yield from _wait(attempt, waiter, reply.us)
        if granted is not None:
            return granted
        if attempt.deadline.passed:
            return None


def _check_subscription(attempt: Attempt) -> Steps[None]:
    """R19: we were dropped though we are subscribed, as far as we know. Connect again if the server says no."""
    try:
        counted = yield from is_counted(attempt.request.partition)
    except LockUnavailable:
        return  # the next look says so
    if not counted:
        attempt.listener.reconnect()


def _wait(attempt: Attempt, waiter: Waiter, refused: int) -> Steps[tuple[Granted | None, bool]]:
    """Sleep until told, or until it is time to look or to leave. Returns (the handoff if any, by the clock).

    ``refused``: microseconds of the server's clock at which the last look found the lock to be somebody else's.
    """
    listener = attempt.listener
    while True:
        if waiter.grant is not None:
            grant, waiter.grant = waiter.grant, None
            if grant.us <= refused:
                # it came during that look, and was force-released in between, say; or the clock has jumped back
                return None, False
            if monotonic() < grant.ends:
                attempt.use_member_name(grant.name)
                attempt.request.partition.note_fence(grant.fence)
                if attempt.confirms:
                    return (yield from attempt.confirm(grant.fence)), False
                return Granted(grant.fence, grant.ends, True), False
            # woken too late: it may be somebody else's by now, and others here may have been dropped for that
            listener.recheck(attempt.request.name)
            return None, False
        if waiter.look:
            waiter.look = False
            return None, False
        look = listener.next_look(waiter)
        due = attempt.deadline.at if look is None else min(look, attempt.deadline.at)
        now = monotonic()
        if now >= due:
            return None, now < due + LOOK_LATE
        attempt.tell_that_it_waits()
        yield Park(waiter, min(due, attempt.current_holder.tell_at), listener.receiver)
