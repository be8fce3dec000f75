"""Locks that are acquired in both orders, one inside the other: so deadlocks begin. Each pair is logged once."""

from __future__ import annotations

from collections import OrderedDict
from logging import WARNING

from ..base.log import log_event
from ..store.lock_store import LockStore
from .held import Held, Runner, is_foreign

MOST = 1000  # pairs that are remembered

Kind = tuple[str, str]  # the template of a lock, and the identity of its store

# by the kinds of two locks, the lower first: whether the lower one was held first; None: both, which was logged. Of two
# locks of the same kind, the one with the lower name is the lower. The pair that was met last is the last
_orders: OrderedDict[tuple[Kind, Kind], bool | None] = OrderedDict()


def note_order(outer: Held, runner: Runner | None, store: LockStore, name: str, template: str) -> None:
    """Whoever holds ``outer``, if it is held and ``runner``'s own, is about to wait for the lock ``name``."""
    lease = outer.lease
    if lease is None or outer.over or lease.closed or lease.lost or lease.request.limit is not None:
        return
    if is_foreign(outer, runner):
        return
    held = (lease.template, str(lease.partition.store.identity)), lease.name
    wanted = (template, str(store.identity)), name
    (low, _), (high, _) = sorted([held, wanted])
    forward = held < wanted
    before = _orders.pop((low, high), forward)  # each step here is atomic, so that it needs no lock
    _orders[low, high] = forward if before is forward else None
    while len(_orders) > MOST:
        _orders.popitem(last=False)
    if before is not None and before is not forward:
        log_event(WARNING, "order-inverted", name=name, held=lease.name)
