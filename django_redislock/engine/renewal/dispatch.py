"""The dispatch: what is due goes to its node, and what the node answers comes back.

It knows how the nodes are: which of them fail, since when, and when to try again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import ClusterDownError, ResponseError

from ...base.log import log_event
from ...store.lock_store import Partition
from ...store.node import Node
from ...store.wire import wording
from ..background.notifier import Notifier
from ..background.outage import LAST_RETRY, Outage
from ..leases.lease import Lease
from .sender import Parcel, Sender, send_last

LAST_WORDS = 1.0  # seconds that the end of the process may wait for Redis


class Dispatch:
    """Calls ``answered(parcel, answer, node, sent)``; ``again(parcels, delay)`` for what has to be sent once more after
    so many seconds; and ``recovered(partition)`` when a node has answered that had failed before.
    """

    def __init__(
        self,
        notifier: Notifier,
        answered: Callable[[Parcel, Any, Node, float], object],
        again: Callable[[list[Parcel], float], object],
        recovered: Callable[[Partition], object],
    ) -> None:
        self._notifier = notifier
        self._on_answer = answered
        self._again = again
        self._on_recovery = recovered
        self._sender = Sender(self._answered, self._failed)
        self._outages: WeakKeyDictionary[Node, Outage] = WeakKeyDictionary()

    def send(self, parcels: Iterable[Parcel]) -> None:
        """Send them, and return at once."""
        batches, lost = _by_node(parcels)
        if lost:  # of a cluster that could never be asked
            self._again(lost, LAST_RETRY)
        # C5: each node for itself, with a time limit of its own
        for node, batch in batches.items():
            patience = min(
                (parcel.task.ttl / 6 for parcel in batch if isinstance(parcel.task, Lease)), default=math.inf
            )
            self._sender.send(node, batch, max(0.05, min(node.origin.timeout, patience)))

    def send_last(self, parcels: Iterable[Parcel]) -> None:
        """Send them before the process ends, and its threads with it. Takes LAST_WORDS in all."""
        batches, _ = _by_node(parcels)
        for node, error in send_last(batches, LAST_WORDS):
            if any(parcel.task.matters for parcel in batches[node]):
                log_event(WARNING, "releases-not-sent", alias=node.origin.alias, error=error)

    def _answered(self, node: Node, parcels: list[Parcel], answers: list[Any], sent: float) -> None:
        moved: list[Parcel] = []
        refused: list[Parcel] = []
        trouble: ResponseError | None = None
        for parcel, answer in zip(parcels, answers, strict=True):
            partition = parcel.task.partition
            partition.heard_from(node)
            if not isinstance(answer, ResponseError):
                self._on_answer(parcel, answer, node, sent)
            elif partition.store.redirect(partition, answer, node):
                moved.append(parcel)
            else:
                trouble = trouble or answer
                refused.append(parcel)
        self._again(moved, 0.0)
        if trouble is not None:
            self._failed(node, refused, trouble)
            return
        over = self._outages.pop(node, None)
        if over is not None:
            if over.end_is_due() and not over.is_stale(node.origin.timeout):
                self._notifier.log(WARNING, "renewal-recovered", alias=node.origin.alias, outage=over.lasted)
            for partition in {parcel.task.partition for parcel in parcels}:
                self._on_recovery(partition)

    def _failed(self, node: Node, parcels: list[Parcel], error: Exception) -> None:
        outage = self._outages.get(node)
        if outage is None or outage.is_stale(node.origin.timeout):
            outage = self._outages[node] = Outage()
        self._again(parcels, outage.fail())
        if any(parcel.task.matters for parcel in parcels) and outage.log_is_due():
            self._notifier.log(
                WARNING,
                "renewal-failed",
                alias=node.origin.alias,
                tasks=len(parcels),
                outage=outage.lasted,
                error=wording(error),
            )
        # a node of a cluster that says so may be cut off from the others, and not know who has its slots now
        if isinstance(error, ClusterDownError) or not isinstance(error, ResponseError):
            for store in {parcel.task.partition.store for parcel in parcels}:
                store.look_around(node)


def _by_node(parcels: Iterable[Parcel]) -> tuple[dict[Node, list[Parcel]], list[Parcel]]:
    """Which go to which node; and those whose node is not known."""
    batches: dict[Node, list[Parcel]] = defaultdict(list)
    lost: list[Parcel] = []
    for parcel in parcels:
        node = parcel.task.partition.node_if_known
        (lost if node is None else batches[node]).append(parcel)
    return batches, lost
