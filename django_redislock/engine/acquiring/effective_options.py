"""What an acquisition asks for: its options, and the settings where these are None."""

from __future__ import annotations

import asyncio
import secrets

from ...base.display import Secret
from ...base.names import known_as
from ...base.times import Deadline
from ...conf import check_flag, conf
from ...options import Options
from ...store.calls import LockRequest
from ...store.keys import make_keys
from ...store.lock_store import Partition
from ..leases.canceller import Canceller
from ..leases.lease import OVER, Lease
from ..owners.description import describe_owner
from ..owners.held import Runner


def deadline_of(options: Options, blocking: bool | None, blocking_timeout: float | None) -> Deadline:
    """Until when to wait. ``blocking`` and ``blocking_timeout``, if given, override the options."""
    if blocking is None:
        blocking = options.blocking or blocking_timeout is not None
    if not check_flag(blocking, "blocking", None):
        return Deadline.after(0.0)
    if blocking_timeout is None:
        blocking_timeout = options.blocking_timeout
    if blocking_timeout is None:
        blocking_timeout = conf().BLOCKING_TIMEOUT
    return Deadline.after(blocking_timeout)


def make_request(partition: Partition, name: str, options: Options, token: str | None, purpose: str) -> LockRequest:
    """What to ask Redis for, under a new id."""
    settings = conf()
    if options.adopt and token is None:
        raise ValueError(f"Cannot adopt the lock {name!r} without its token: pass the one that detach() returned.")
    text = describe_owner(purpose or options.purpose)
    return LockRequest(
        partition,
        make_keys(partition.prefix, name),
        name,
        Secret(secrets.token_urlsafe(16)),
        settings.ttl_of(name) if options.ttl is None else options.ttl,
        token,
        most=settings.max_waiters_of(name) if options.max_waiters is None else options.max_waiters,
        replicas=settings.REPLICAS if options.replicas is None else options.replicas,
        owner=f"{text}\n{options.note}" if options.note else text,
        listens=not (settings.POLL if options.poll is None else options.poll),
    )


def make_canceller(options: Options, caller: Runner | None, name: str) -> Canceller | None:
    """What cancels the calling task when the lock is lost; TypeError if that was asked for, and there is no task."""
    if options.on_lost != "cancel":
        return None
    if not isinstance(caller, asyncio.Task):
        noun, shown = known_as(name)
        raise TypeError(
            f"on_lost='cancel' cancels the task that holds the {noun} {shown!r}, but sync code is not a task: give a "
            f"function, or use aacquire() or async with."
        )
    return Canceller(caller)


def apply_to(lease: Lease, options: Options, name: str) -> None:
    """Set on ``lease`` what was asked for. ``name``: of the lock, or of a pool, any member of which would have done."""
    settings = conf()
    if not (settings.AUTO_RENEW if options.auto_renew is None else options.auto_renew):
        lease.stop_renewing(OVER)
    lease.max_hold = settings.MAX_HOLD if options.max_hold is None else options.max_hold
    lease.template = options.template or name
    lease.fenced = settings.is_fenced(name) if options.fenced is None else options.fenced
    lease.fence_timeout = settings.FENCE_TIMEOUT if options.fence_timeout is None else options.fence_timeout
    lease.on_lost = None if options.on_lost == "cancel" else options.on_lost
