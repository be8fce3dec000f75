"""What the log and the signals say of locks: acquired, not acquired, released. Of those that were lost: loss.py."""

from __future__ import annotations

from logging import DEBUG

from ...base.log import log_event
from ...base.names import named
from ...base.steps import Steps
from ...base.times import monotonic
from ...exceptions import LockNotAcquired
from ...signals import lock_acquired, lock_not_acquired, lock_released, sending
from ..leases.lease import Lease


def tell_acquired(lease: Lease, waited: float) -> Steps[None]:
    log_event(DEBUG, "acquired", name=lease.name, template=lease.template, fence=lease.fence, waited=waited)
    if lock_acquired.receivers:
        yield sending(lock_acquired, name=lease.name, template=lease.template, fence=lease.fence, waited=waited)


def tell_refused(name: str, template: str, refusal: LockNotAcquired) -> Steps[None]:
    """``name``: of a lock, or of a pool of which any member would have done."""
    facts = {"template": template, "outcome": refusal.outcome, "waited": refusal.waited}
    log_event(DEBUG, "not-acquired", **named(name), **facts)
    if lock_not_acquired.receivers:
        yield sending(lock_not_acquired, name=name, **facts)


def tell_released(lease: Lease) -> Steps[None]:
    """By its holder."""
    held_for = monotonic() - lease.since
    log_event(DEBUG, "released", name=lease.name, template=lease.template, fence=lease.fence, held=held_for)
    if lock_released.receivers:
        yield sending(lock_released, name=lease.name, template=lease.template, fence=lease.fence, held=held_for)
