"""A move without a flag day: after our lock, the key that old code takes for it. See store/old_key.py for the rules.

Our lock comes first, so that its waiters keep their order; old code and whoever holds our lock compete for the old key.
"""

from __future__ import annotations

from redis.backoff import ExponentialBackoff

from ..base.pace import Pace
from ..base.steps import Pause, Steps
from ..base.times import monotonic
from ..store.calls import lease_end
from ..store.old_key import OldKey
from .attempt import Attempt
from .extension import renew
from .lease import OLD_KEY, Lease
from .runtime import runtime

# 10 ms between looks at first, and at most as long as redis-py's own waiters take
LOOKS = ExponentialBackoff(cap=0.1, base=0.005)


def take_old_key(attempt: Attempt, lease: Lease, old: OldKey, *, adopts: bool) -> Steps[bool]:
    """Wait until ``old``, of a lock that this attempt has got, can be taken; False: it could not in time.

    Meanwhile the lease is renewed, whatever its options say; then it is a full one. Raises LockLost, LockUnavailable.
    """
    deadline, terms, pace, waits = attempt.deadline, attempt.terms, Pace(LOOKS), False
    while True:
        taken, sent = yield from old.call("take", lease.ttl, deadline=deadline)
        if lease.lost:
            raise lease.lost_error()
        if taken:
            break
        if adopts:  # it was kept for that, so somebody has been inside who should not
            runtime().watchdog.lose(lease, OLD_KEY)
            raise lease.lost_error()
        attempt.current_holder.note_old(old.keys[0])
        if not deadline.waits or deadline.passed or attempt.tries >= terms.attempts:
            return False
        waits = lease.renewing = True
        attempt.tries += 1
        attempt.tell_that_it_waits()
        yield Pause(min(pace.next(), deadline.left()))
        lease.since = monotonic()
    old.held = True
    runtime().watchdog.shortened(lease, lease_end(sent, lease.ttl))  # it was renewed meanwhile, and the old key was not
    if waits:
        lease.renewing = lease.renewing and terms.auto_renew
        yield from renew(lease, "keep", lease.ttl)
    return True
