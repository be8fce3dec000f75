"""Force-releasing a lock, whoever holds it; and suspending it: for a while nobody gets it."""

from __future__ import annotations

from logging import INFO, WARNING

from ..base.log import log_event
from ..base.names import check_name
from ..base.steps import Steps, arun, run_blocking
from ..base.times import Seconds, seconds
from ..conf import check_count
from ..engine import describe_owner
from ..options import check_note
from ..signals import lock_force_released, sending
from ..store import calls
from ..store.lock_store import Partition
from ..store.records import make_keys
from ..store.stores import get_partition
from .info import LockInfo, inspect, make_info


def force_release(name: str, *, using: str | None = None, by: str = "", fence: int | None = None) -> LockInfo | None:
    """Force-release the lock, whoever holds it; return what was released, None when nobody held it.

    The next waiter gets the lock and the old holder is told at once (``lost``), but its code keeps running until it
    checks the lock: make sure that it is dead or harmless. ``by`` says who asked, for the log and the signal. ``fence``
    spares an acquisition with a higher fence (None is returned then): pass the fence that you saw when you decided.
    Raises LockUnavailable when Redis cannot be reached.
    """
    return run_blocking(_force(name, using, by, fence), "Await aforce_release() instead")


async def aforce_release(
    name: str, *, using: str | None = None, by: str = "", fence: int | None = None
) -> LockInfo | None:
    """See force_release()."""
    return await arun(_force(name, using, by, fence))


def _force(name: str, using: str | None, by: str, fence: int | None) -> Steps[LockInfo | None]:
    partition = get_partition(using, check_name(name))
    if fence is not None:
        check_count(fence, "fence")
    before = yield from inspect(partition, name, waiters=0)
    value = yield from calls.force(partition, make_keys(partition.prefix, name), name, fence)
    if value is None:
        return None
    released = make_info(partition.alias, name, value, 0, 0.0)
    if before is not None and before.fence == released.fence:
        released = before  # knows more; it has not changed hands since
    log_event(WARNING, "force-released", name=name, by=by, owner=released.owner)
    yield sending(lock_force_released, name=name, by=by)
    return released


def suspend(partition: Partition, name: str, period: Seconds, note: str) -> Steps[None]:
    """See Lock.suspend()."""
    length, note = seconds(period, "seconds"), check_note(note)
    by = describe_owner("")
    owner = f"{by}\n{note}" if note else by
    yield from calls.suspend(partition, make_keys(partition.prefix, name), name, length, owner)
    log_event(INFO, "suspended", name=name, seconds=length, by=by, note=note)


def resume(partition: Partition, name: str) -> Steps[bool]:
    """See Lock.resume()."""
    value = yield from calls.force(partition, make_keys(partition.prefix, name), name, what=calls.SUSPENSION)
    if value is None:
        return False
    log_event(INFO, "resumed", name=name, by=describe_owner(""))
    return True
