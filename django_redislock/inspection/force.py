"""Force-releasing a lock, whoever holds it."""

from __future__ import annotations

from logging import WARNING

from ..base.log import log_event
from ..base.names import check_name
from ..base.steps import Steps, arun, run_blocking
from ..conf import check_count
from ..signals import lock_force_released, sending
from ..store import calls
from ..store.keys import make_keys
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
