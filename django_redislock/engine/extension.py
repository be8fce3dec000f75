"""Moving the end of a lease, detaching a lock for whoever has its token, and what the bearer of a token may do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..base.steps import Steps
from ..base.times import monotonic
from ..exceptions import LockUnavailable
from ..store import calls
from ..store.calls_once import take_sequence
from ..store.lock_store import Partition
from .announcements import reason_of
from .attempt import check_acknowledged
from .held import Held
from .lease import RELEASED_ELSEWHERE, Lease
from .runtime import runtime


def renew(lease: Lease, how: str, left: float, *, acknowledged: bool = True) -> Steps[None]:
    """Move the end of this very acquisition, from any thread, task or context.

    ``how``: "add", for ``left`` seconds more, or see renew_command(). ``acknowledged``: by as many replicas as the lock
    asks for. Raises LockLost, LockUnavailable.
    """
    if lease.lost_reason:
        raise lease.lost_error()
    if how != "detach":
        lease.check_not_ending("extend")
    if how == "add":
        how, left = "keep", lease.left_with(left)  # which may be sent again if the answer is lost
    elif how == "set" and lease.renewing:
        left = max(left, lease.ttl)  # not less than a renewal that is answered meanwhile
    request = lease.request if acknowledged else lease.request._replace(replicas=0)
    late = lease.late
    if how in ("set", "detach"):
        # before Redis is asked: it may do so, and the answer get lost
        runtime().watchdog.shortened(lease, calls.lease_end(monotonic(), left))
        lease.sets += 1
        late = request.gone, str(lease.sets)
    try:
        answer = yield from calls.renew(request, how, left, lease.fence, replicas=request.replicas, late=late)
    except BaseException:
        lease.late = late  # it may arrive yet
        if how == "set":
            runtime().watchdog.shortened(lease, calls.lease_end(monotonic(), left))
        raise
    if answer.state != calls.HELD:
        runtime().watchdog.lose(lease, reason_of(answer))
        raise lease.lost_error()
    check_acknowledged(request, answer.acknowledged, "detach" if how == "detach" else "extend")
    if how == "detach":
        runtime().watchdog.end(lease)
    else:
        runtime().watchdog.moved(lease, how, left, answer)
    if lease.lost_reason:  # the answer came after the end: the loss was reported
        raise lease.lost_error()


def tell_fence(lease: Lease, met: int) -> Steps[None]:
    """A database has this fence: let the next acquisition have a higher one, in whatever process.

    Redis must hear of it now: this process may end before it acquires anything else.
    """
    lease.partition.note_fence(met)
    with suppress(LockUnavailable):  # then the next acquisition of this process tells it
        yield from calls.renew(lease.request, "note", 0)


def renew_by_token(
    partition: Partition, name: str, bears: Callable[[str], bool], how: str, left: float, replicas: int
) -> Steps[bool]:
    """Move the end of the lease, whoever acquired it, if ``bears`` accepts its token. Returns whether that was done.

    ``replicas``: how many have to acknowledge it.
    """
    held = yield from calls.find_held(partition, name, bears)
    if held is None:
        return False
    if how == "add":
        how, left = "keep", held.left + left  # as in renew()
    request = held.request._replace(replicas=0 if partition.store.memory else replicas)
    with take_sequence(partition, name) as late:
        answer = yield from calls.renew(request, how, left, replicas=request.replicas, late=late)
    if answer.state != calls.HELD:
        return False
    check_acknowledged(request, answer.acknowledged, "extend")
    return True


def release_by_token(partition: Partition, name: str, bears: Callable[[str], bool]) -> Steps[bool]:
    """Release the lock, whoever acquired it, if ``bears`` accepts its token. Returns whether it was held with it."""
    held = yield from calls.find_held(partition, name, bears)
    if held is None:
        return False
    answer = yield from calls.release(held.request, may_arrive=False, how=calls.BEARER)
    released = answer.state == calls.RELEASED or answer.repeated
    lease = runtime().watchdog.lease_of(held.request.id)
    if released and lease is not None:
        runtime().watchdog.lose(lease, RELEASED_ELSEWHERE)  # Redis tells only other processes
    return released


def detach(acquisition: Held, left: float, *, acknowledged: bool = True) -> Steps[str]:
    """End renewal and ownership here, for all acquisitions that use the lease; the lock stays for ``left`` seconds.

    Returns the token by which another process can adopt it. ``acknowledged``: see renew().
    """
    lease = acquisition.its_lease
    lease.detaching, lease.changing = left, True
    try:
        yield from renew(lease, "detach", left, acknowledged=acknowledged)
    finally:
        lease.changing = False
    for each in (*lease.shares, acquisition):
        each.leave()
    return str(lease.token)  # as plain text


def start_listening(lease: Lease) -> None:
    """Subscribe: somebody is about to learn the token, and must not take this process for dead."""
    if lease.request.listens:
        runtime().listener(lease.partition).start()
