"""How renewals and pending releases get to their nodes, and what their answers mean for a node.

The dispatch knows which nodes fail, since when, and when to try again. The watchdog never has to wait for an answer:
short-lived threads send, with a connection each. Usually there is none. While one waits for a slow Redis, commands with
the same patience or more wait for that thread, and those with less get a thread of their own.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from logging import WARNING
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from redis.connection import Connection
from redis.exceptions import ClusterDownError, ResponseError

from ..base.log import log_event
from ..base.pace import LAST_RETRY, Outage
from ..base.processes import try_start
from ..base.times import monotonic
from ..store.lock_store import Partition
from ..store.node import Node
from ..store.scripts import wants_source, with_source
from ..store.wire import Command, exchange, is_demoted, wording
from .announcements import Notifier

LAST_WORDS = 1.0  # seconds that the end of the process may wait for Redis


class Parcel(NamedTuple):
    """One command to send. The rest is for the watchdog: what it is for, when it was due, and what it asks for."""

    task: Any
    command: Command
    due: float
    how: str = ""


class _Trip:
    """A thread at work, and what it sends next."""

    __slots__ = ("parcels", "timeout")

    def __init__(self, timeout: float, parcels: list[Parcel]) -> None:
        self.timeout = timeout
        self.parcels = parcels


class Dispatch:
    """Calls ``on_answer(parcel, answer, node, sent)``; ``again(parcels, delay)`` for what has to be sent once more
    after so many seconds; and ``on_recovery(partition)`` when a node has answered that had failed before.
    """

    def __init__(
        self,
        notifier: Notifier,
        on_answer: Callable[[Parcel, Any, Node, float], object],
        again: Callable[[list[Parcel], float], object],
        on_recovery: Callable[[Partition], object],
    ) -> None:
        self._notifier = notifier
        self._on_answer = on_answer
        self._again = again
        self._on_recovery = on_recovery
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may find a node closed
        self._trips: WeakKeyDictionary[Node, list[_Trip]] = WeakKeyDictionary()
        self._spare: dict[Node, tuple[float, Connection]] = {}
        self._outages: WeakKeyDictionary[Node, Outage] = WeakKeyDictionary()

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, parcels: Iterable[Parcel]) -> None:
        """Send them, and return at once."""
        batches, lost = _by_node(parcels)
        if lost:  # of a cluster that could never be asked
            self._again(lost, LAST_RETRY)
        # C5: each node for itself, with a time limit of its own
        for node, batch in batches.items():
            patience = min(getattr(parcel.task, "ttl", math.inf) / 6 for parcel in batch)  # of leases
            self._send(node, batch, max(0.05, min(node.config.timeout, patience)))

    def _send(self, node: Node, parcels: list[Parcel], timeout: float) -> None:
        """Send ``parcels`` in one write. Neither connecting nor any answer takes longer than ``timeout`` seconds."""
        with self._mutex:
            if node not in self._trips:
                self._trips[node] = []
                node.on_close.append(lambda: self._forget(node))
            for trip in self._trips[node]:
                if trip.timeout <= timeout:
                    trip.parcels += parcels
                    return
            trip = _Trip(timeout, parcels)
            self._trips[node].append(trip)
        thread = threading.Thread(target=self._run, args=(node, trip), name="redislock-sender", daemon=True)
        if not try_start(thread):
            self._run(node, trip)  # none is left, or the process is about to end: better late than not at all

    def _run(self, node: Node, trip: _Trip) -> None:
        try:
            self._carry(node, trip)
        except BaseException:  # of any kind: a thread that ends must get nothing more to send
            with self._mutex:
                self._trips[node] = [other for other in self._trips[node] if other is not trip]
            raise

    def _carry(self, node: Node, trip: _Trip) -> None:
        connection: Connection | None = None
        while True:
            with self._mutex:
                parcels, trip.parcels = trip.parcels, []
                if not parcels:
                    self._trips[node].remove(trip)
                    if connection is not None and node not in self._spare and not node.closed:
                        self._spare[node] = trip.timeout, connection
                        connection = None
                    break
                if connection is None:
                    timeout, spare = self._spare.pop(node, (0.0, None))
                    if timeout == trip.timeout:
                        connection = spare
                    elif spare is not None:
                        spare.disconnect()
            try:
                connection = connection or node.config.connection(trip.timeout)
                answers, sent = send_now(connection, parcels)
                if any(map(is_demoted, answers)):
                    connection.disconnect()
            except Exception as error:  # of any kind: the watchdog must hear of it
                if connection is not None:
                    connection.disconnect()
                self._failed(node, parcels, error)
            else:
                self._answered(node, parcels, answers, sent)
        if connection is not None:
            connection.disconnect()

    def _forget(self, node: Node) -> None:
        with self._mutex:
            _, spare = self._spare.pop(node, (0.0, None))
        if spare is not None:
            spare.disconnect()

    def send_last(self, parcels: Iterable[Parcel]) -> None:
        """Send them before the process ends, and its threads with it, in this thread. Takes LAST_WORDS in all."""
        batches, _ = _by_node(parcels)
        end = monotonic() + LAST_WORDS
        for nodes, (node, batch) in zip(range(len(batches), 0, -1), batches.items(), strict=True):
            # each node gets its share of the time left, for connecting and for the answers
            patience = max(0.02, (end - monotonic()) / nodes)
            by = monotonic() + patience
            connection = node.config.connection(min(node.config.timeout, patience / 2))
            try:
                send_now(connection, batch, by)
            except Exception as error:
                if any(parcel.task.matters for parcel in batch):
                    log_event(WARNING, "releases-not-sent", alias=node.config.alias, error=error)
            finally:
                connection.disconnect()

    # -- what comes of it -------------------------------------------------------------------------------------------

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
            if over.end_is_due() and not over.is_stale(node.config.timeout):
                self._notifier.log(WARNING, "renewal-recovered", alias=node.config.alias, outage=over.lasted)
            for partition in {parcel.task.partition for parcel in parcels}:
                self._on_recovery(partition)

    def _failed(self, node: Node, parcels: list[Parcel], error: Exception) -> None:
        outage = self._outages.get(node)
        if outage is None or outage.is_stale(node.config.timeout):
            outage = self._outages[node] = Outage()
        self._again(parcels, outage.fail())
        if any(parcel.task.matters for parcel in parcels) and outage.log_is_due():
            self._notifier.log(
                WARNING,
                "renewal-failed",
                alias=node.config.alias,
                tasks=len(parcels),
                outage=outage.lasted,
                error=wording(error),
            )
        # a node of a cluster that says so may be cut off from the others, and not know who has its slots now
        if isinstance(error, ClusterDownError) or not isinstance(error, ResponseError):
            for store in {parcel.task.partition.store for parcel in parcels}:
                store.look_around(node)


def send_now(connection: Connection, parcels: Sequence[Parcel], by: float | None = None) -> tuple[list[Any], float]:
    """Send ``parcels``; return the answers, and the monotonic time at which they were sent. ``by``: see exchange()."""
    connection.connect()
    sent = monotonic()
    answers = exchange(connection, [parcel.command for parcel in parcels], by)
    refused = [i for i, answer in enumerate(answers) if wants_source(parcels[i].command, answer)]
    if refused:
        again = exchange(connection, [with_source(parcels[i].command) for i in refused], by)
        for i, answer in zip(refused, again, strict=True):
            answers[i] = answer
    return answers, sent


def _by_node(parcels: Iterable[Parcel]) -> tuple[dict[Node, list[Parcel]], list[Parcel]]:
    """Return which go to which node; and those whose node is not known."""
    batches: dict[Node, list[Parcel]] = defaultdict(list)
    lost: list[Parcel] = []
    for parcel in parcels:
        node = parcel.task.partition.node_if_known
        (lost if node is None else batches[node]).append(parcel)
    return batches, lost
