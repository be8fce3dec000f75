"""How an attempt waits: until it is woken, or (polling) for a while; then it looks again."""

from __future__ import annotations

import math

from ...base.pace import Pace, alive_for
from ...base.steps import Pause, Steps
from ...base.times import monotonic
from ...exceptions import LockUnavailable
from ...store import calls
from ...store.probe import counts_us
from ...store.retry import Tried
from ..messages.waiters import Park, Waiter
from .attempt import Attempt, FirstLook, Granted, give_up_at

WAKE_LATE = 1_000_000  # microseconds after which the wake of a handoff has not come, rather than not come yet
LOOK_LATE = 0.5  # seconds by which a process that runs is never late to look


def obtain(attempt: Attempt, first: FirstLook | None) -> Steps[Granted | None]:
    """Get the lock, or None in the end. ``first``: the first look, if it was made."""
    return _poll(attempt) if attempt.polls else _await_wakes(attempt, first)


def _poll(attempt: Attempt) -> Steps[Granted | None]:
    """Look, and look again after a while."""
    pace = Pace(attempt.backoff)
    while True:
        delay = pace.next_look()
        last = not attempt.deadline.waits or attempt.deadline.passed
        last = last or (attempt.attempts is not None and attempt.attempts <= attempt.tries + 1)
        reply, granted = yield from attempt.look(calls.NOT_AT_ALL if last else calls.polled(alive_for(delay)))
        if granted is not None or last or reply.state in (calls.GIVEN_UP, calls.FULL):
            return granted
        attempt.ticket = reply.number or attempt.ticket
        if monotonic() >= attempt.current_holder.tell_at:
            _tell_that_it_waits(attempt)
        yield Pause(min(delay, attempt.deadline.left()))


def _await_wakes(attempt: Attempt, first: FirstLook | None) -> Steps[Granted | None]:
    """Look when told to, and by the clock for when nobody tells."""
    listener = attempt.listener
    unasked = False  # this look was made by the clock alone, and in time
    heard = counted = 0
    pace: Pace | None = None
    if attempt.request.token is not None:
        yield from attempt.listen_first()
    while True:
        tried: Tried | None = None
        if first is None:
            if attempt.deadline.waits and listener.ready:
                yield from attempt.register()
            queued = attempt.waiter is not None and attempt.deadline.waits and listener.ready
            generation = listener.generation
        else:
            (tried, queued, generation), first = first, None
        wait, delay = calls.QUEUED if queued else calls.NOT_AT_ALL, 0.0
        if queued and listener.polled and tried is None:
            pace = pace or Pace(attempt.backoff)
            delay = pace.next_look()
            wait = calls.polled(alive_for(delay))
        reply, granted = yield from attempt.look(wait, tried)
        # R19: a handoff of which we have heard nothing, nor anything else meanwhile. (A fence is the time of its
        # grant, as a rule.)
        missed = reply.state == calls.ALREADY and reply.us - reply.number > WAKE_LATE
        if unasked and (missed or (reply.unheard and listener.heard == heard)):
            listener.reconnect()
        if unasked and reply.state == calls.REQUEUED and generation == counted:
            yield from _check_subscription(attempt)
        counted = generation if queued else 0
        if granted is not None:
            return granted
        if reply.state in (calls.GIVEN_UP, calls.FULL) or not attempt.deadline.waits:
            return None
        attempt.ticket = reply.number or attempt.ticket
        waiter = yield from attempt.register()
        if listener.ready and not (queued and generation == listener.generation):
            continue  # asked under no subscription, or an older one
        listener.schedule(waiter, reply.left, delay)
        if reply.state == calls.REQUEUED and unasked:
            listener.tell_all(attempt.request.name)
        heard = listener.heard
        granted, unasked = yield from _wait(attempt, waiter, reply.us)
        if granted is not None:
            return granted
        if attempt.deadline.passed:
            return None


def _check_subscription(attempt: Attempt) -> Steps[None]:
    """R19: we were dropped though we are subscribed, as far as we know. Connect again if the server says no."""
    try:
        counted = yield from counts_us(attempt.request.partition)
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
            ends = listener.deadline_of(grant)
            if monotonic() < ends:
                attempt.got(grant.name)
                attempt.request.partition.note_fence(grant.fence)
                if attempt.request.replicas:
                    return (yield from attempt.confirm(grant.fence)), False
                return Granted(grant.fence, ends, True), False
            # woken too late: it may be somebody else's by now, and others here may have been dropped for that
            listener.doubt(attempt.request.name)
            return None, False
        if waiter.look:
            waiter.look = False
            return None, False
        look = listener.next_look(waiter)
        due = attempt.deadline.at if look is None else min(look, attempt.deadline.at)
        now = monotonic()
        if now >= due:
            return None, now < due + LOOK_LATE
        if now >= attempt.current_holder.tell_at:
            until, by = attempt.deadline.at, give_up_at(attempt.deadline)
            if (yield from attempt.current_holder.learn(attempt.request, waiter, until=until, by=by)):
                _tell_that_it_waits(attempt)  # another may have had it since the last look
            continue
        due = min(due, attempt.current_holder.tell_at)
        yield Park(waiter, None if due == math.inf else due - now)


def _tell_that_it_waits(attempt: Attempt) -> None:
    attempt.current_holder.tell(attempt.request.name, monotonic() - attempt.begun)
