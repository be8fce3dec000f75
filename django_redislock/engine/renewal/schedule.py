"""When to renew a lease, to confirm it, or just to look at it again. Times are absolute and monotonic."""

from __future__ import annotations

from ...base.times import monotonic
from ..leases.lease import Lease

CONFIRM_AFTER = 0.1  # seconds that a lock is held before it counts as a long section


def first_look(lease: Lease) -> float:
    """When to look at a lease that was just granted."""
    now = monotonic()
    return now + min(CONFIRM_AFTER, max(0.0, lease.ends - now) / 3)


def next_look(lease: Lease) -> float:
    """When to look at a lease that was renewed, or did not need to be."""
    if not lease.seen:
        return first_look(lease)
    now = monotonic()
    # early enough for several tries, even if the holder has set an end that is near
    soonest = now + min(lease.ttl / 20, (lease.ends - now) / 3)
    due = lease.known + lease.ttl / 3  # whatever the end: it may be lost
    if lease.renewing:
        due = min(due, lease.ends - lease.ttl * 2 / 3)
    return min(max(due, soonest), lease.ends)


def call_for(lease: Lease, *, first: bool, urgent: bool) -> str:
    """What to ask of Redis now: "keep" to renew the lease, "confirm" whether it is held (in full), "" for nothing.

    ``first``: this is the first look. ``urgent``: Redis has to be asked in any case.
    """
    if lease.renewing and (urgent or lease.handed or not first or lease.ends - monotonic() < lease.ttl / 2):
        return "keep"
    return "confirm" if urgent or lease.handed or not first else ""
