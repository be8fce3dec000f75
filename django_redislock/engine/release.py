"""Releasing a lock: now, reliably, in the background, or with its token."""

from __future__ import annotations

from collections.abc import Callable
from logging import ERROR
from typing import Any

from ..base.log import log_event
from ..base.steps import Steps
from ..exceptions import LockNotOwned, LockUnavailable
from ..store import calls
from ..store.lock_store import Partition
from ..store.retry import Tried
from .announcements import tell_released
from .lease import RELEASED, VANISHED, Lease, Section
from .runtime import runtime


def release(lease: Lease, section: Section, *, bearer: bool = False, tried: Tried | None = None) -> Steps[None]:
    """Release this very acquisition of a lock, from any thread, task or context. See Acquisition.give_back().

    ``section``: the last one that uses it. ``bearer``: by right of the token, also if it was detached. ``tried``: what
    has come of the first try, if there was one. Where this is interrupted, it is for the caller to undo the section.
    """
    watchdog = runtime().watchdog
    try:
        watchdog.unwatch(lease)
        how = calls.BEARER if bearer or lease.detaching else calls.HOLDER
        answer = yield from calls.release(lease.request, unknown=lease.unknown, how=how, tried=tried)
        # a repeated release that finds nothing within the lease did its work the first time; a closed lease was
        # released in the background meanwhile, because its block was interrupted
        repeated = answer.twice or lease.tried_release
        done = answer.state == calls.RELEASED or lease.closed or (repeated and not lease.lost)
        watchdog.end(lease)
        section.leave()
    except LockUnavailable as error:
        watchdog.forget(lease)
        lease.tried_release = True
        raise lease.unreleased_error(error) from error.__cause__
    if not done and not lease.lost_reason:
        watchdog.lose(lease, VANISHED, released=True)
    if lease.lost_reason:
        raise lease.lost_error()
    yield from tell_released(lease)


def release_surely(section: Section, **facts: Any) -> Steps[bool]:
    """Release after work whose success must not be hidden by an error: if necessary, in the background.

    LockLost propagates. ``facts`` are for the log.
    """
    try:
        return (yield from section.end())
    except LockUnavailable as error:
        log_event(ERROR, "not-released", name=section.held.name, **facts, error=error, lease_left=error.lease_left)
        section.undo()
        return True


def release_quietly(section: Section, **facts: Any) -> Steps[None]:
    """See release_surely(); a loss does not matter any more."""
    try:
        yield from release_surely(section, **facts)
    except LockNotOwned:
        pass  # a loss, which was reported already; or this process was forked from the one that holds it


def release_later(lease: Lease) -> None:
    """Release in the background, trying as often as it takes."""
    watchdog = runtime().watchdog
    how = calls.BEARER if lease.detaching else calls.HOLDER
    # a renewal whose answer was lost may have moved its end
    lasts = max(lease.ttl, lease.remaining())
    watchdog.release_later(lease.request, unknown=lease.unknown, how=how, lasts=lasts)
    watchdog.end(lease)


def release_by_token(partition: Partition, name: str, bears: Callable[[str], bool]) -> Steps[bool]:
    """Release the lock, whoever acquired it, if ``bears`` accepts its token. Returns whether it was held with it."""
    held = yield from calls.find_held(partition, name, bears)
    if held is None:
        return False
    answer = yield from calls.release(held, unknown=False, how=calls.BEARER)
    released = answer.state == calls.RELEASED or answer.twice
    if released:
        runtime().watchdog.lose_by_id(held.id, RELEASED)  # Redis tells only other processes
    return released
