"""The loss of a lease: its reason, and telling the site's code."""

from __future__ import annotations

from logging import ERROR, INFO, WARNING

from ...base.log import log_event
from ...signals import lock_lost, send
from ...store.calls import ADOPTED as ADOPTED_ELSEWHERE
from ...store.calls import Renewed
from .lease import ADOPTED, FORCED, OVER, RELEASED, TAKEN, VANISHED, Lease

# why a lease was lost, by the kind of the message that says so
TOLD = {"f": FORCED, "a": ADOPTED, "r": RELEASED}


def reason_of(answer: Renewed) -> str:
    """Why a lease was lost, according to the answer to its renewal."""
    if answer.state == ADOPTED_ELSEWHERE:
        return ADOPTED
    return TAKEN if answer.held_by_other else VANISHED


def tell_lost(lease: Lease) -> None:
    """Tell the site's code that a lease was lost; it is marked as lost already."""
    if lease.canceller is not None:
        lease.canceller.strike()  # again, in case whoever discovered the loss was interrupted before doing so
    facts = {"name": lease.name, "template": lease.template, "fence": lease.fence, "reason": lease.lost_reason}
    expired = lease.lost_reason == OVER
    if expired:
        log_event(INFO, "expired", **facts)
    else:
        log_event(WARNING, "lost", **facts)
    try:
        send(lock_lost, **facts, expired=expired)
        if lease.terms.on_lost is not None:
            lease.terms.on_lost(lease.lost_error())
    except BaseException:
        log_event(ERROR, "on-lost-failed", name=lease.name, exc_info=True)
