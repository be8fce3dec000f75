"""Suspending a lock: for a while nobody gets it."""

from __future__ import annotations

from logging import INFO

from ..base.log import log_event
from ..base.steps import Steps
from ..base.times import Seconds, seconds
from ..engine import describe_owner
from ..options import check_note
from ..store import calls
from ..store.keys import make_keys
from ..store.lock_store import Partition


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
