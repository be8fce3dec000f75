"""The loss of a lease: why, and telling the site's code of it."""

from __future__ import annotations

from logging import ERROR, WARNING

from ..log import log_event
from ..signals import lock_lost, send
from ..store.calls import ADOPTED as ADOPTED_ELSEWHERE
from ..store.calls import Renewed
from .lease import ADOPTED, FORCED, RELEASED, TAKEN, VANISHED, Lease

# what messages say of a lease, by their kind
TOLD = {"f": FORCED, "a": ADOPTED, "r": RELEASED}


def reason_of(answer: Renewed) -> str:
    """Why a lease is lost, by the answer to its renewal."""
    if answer.state == ADOPTED_ELSEWHERE:
        return ADOPTED
    return TAKEN if answer.taken else VANISHED


def tell_lost(lease: Lease) -> None:
    """Tell the site's code of a lease that is marked as lost."""
    if lease.canceller is not None:
        lease.canceller.strike()  # once more: the one that found it out may have been interrupted before
    facts = {"name": lease.name, "template": lease.template, "fence": lease.fence, "reason": lease.lost_reason}
    log_event(WARNING, "lost", **facts)
    try:
        send(lock_lost, **facts)
        if lease.on_lost is not None:
            lease.on_lost(lease.lost_error())
    except BaseException:
        log_event(ERROR, "on-lost-failed", name=lease.name, exc_info=True)
