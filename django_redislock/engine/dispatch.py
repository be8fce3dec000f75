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
from dataclasses import dataclass
from logging import WARNING
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from redis.exceptions import AuthenticationError, ClusterDownError, ResponseError

from ..base.log import log_event
from ..base.pace import LAST_RETRY, Outage
from ..base.processes import make_thread, try_start
from ..base.steps import run
from ..base.times import monotonic
from ..store.calls import HELD, LockRequest, Renewed
from ..store.lock_store import Partition
from ..store.node import Node
from ..store.old_key import OldKey
from ..store.retry import ask_replicas
from ..store.scripts import wants_source, with_source
from ..store.sentinels import believe, connect
from ..store.thread_connections import ThreadConnections
from ..store.wire import BLAMELESS, Command, Refused, change_timeout, exchange, hints_at_failover, is_stale, wording
from .announcements import Notifier
from .lease import Lease

LAST_WORDS = 1.0  # seconds that the end of the process may wait for Redis
BATCH = 250  # commands in one write

_Outages = WeakKeyDictionary[Node, Outage]


class Outgoing(NamedTuple):
    """A command to send, and how many replicas have to acknowledge it.

    The rest is for the watchdog: what it is for; of a lease, the time that stood in its ``due`` then (if another stands
    there when the answer comes, the lease was changed meanwhile); and what it asks for.
    """

    task: Any
    command: Command
    stamp: float
    how: str = ""
    replicas: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A release, or a withdrawal from a queue, that still has to be sent; or the same for the key of old code."""

    partition: Partition
    command: Callable[[], Command]
    until: float  # monotonic
    matters: bool  # whether to log a failure
    due: float  # monotonic
    request: LockRequest | None = None  # whose answer says whether there is more to release

    def outgoing(self) -> Outgoing:
        self.due = math.inf  # until it is known that it has to be sent once more
        return Outgoing(self, self.command(), 0.0)


class Following(NamedTuple):
    """The key of old code, which is to end no sooner than our lease: Redis has answered that with its renewal."""

    lease: Lease
    old: OldKey
    answer: Renewed
    matters: bool = True

    @property
    def partition(self) -> Partition:
        return self.old.partition

    @property
    def ttl(self) -> float:
        return self.lease.ttl


class Unacknowledged(ResponseError):
    """A renewal that too few replicas have acknowledged. Nothing is wrong with the node for others."""


@dataclass(slots=True, eq=False, repr=False)
class _Sender:
    """A thread at work, and what it sends next."""

    timeout: float
    batch: list[Outgoing]


class Dispatch:
    """Calls ``on_answer(outgoing, answer, node, sent)``; ``again(batch, delay)`` for what has to be sent once more
    after so many seconds; and ``on_recovery(partition)`` when a node has answered that had failed before.
    """

    def __init__(
        self,
        notifier: Notifier,
        on_answer: Callable[[Outgoing, Any, Node, float], object],
        again: Callable[[list[Outgoing], float], object],
        on_recovery: Callable[[Partition], object],
    ) -> None:
        self._notifier = notifier
        self._on_answer = on_answer
        self._again = again
        self._on_recovery = on_recovery
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may find a node closed
        self._senders: WeakKeyDictionary[Node, list[_Sender]] = WeakKeyDictionary()
        self._spare: dict[Node, Any] = {}  # an open connection
        self._outages: _Outages = WeakKeyDictionary()
        self._lags: _Outages = WeakKeyDictionary()  # of its replicas

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, batch: Iterable[Outgoing]) -> None:
        """Send them, and return at once."""
        batches, lost = _by_node(batch)
        if lost:  # of a cluster that could never be asked
            self._again(lost, LAST_RETRY)
        # C5: each node for itself, with a time limit of its own
        for node, batch in batches.items():
            # shortest leases first, see _send_all(); releases have none
            batch.sort(key=lambda outgoing: getattr(outgoing.task, "ttl", math.inf))
            patience = getattr(batch[0].task, "ttl", math.inf) / 6
            self._send(node, batch, max(0.05, min(node.config.timeout, patience)))

    def _send(self, node: Node, batch: list[Outgoing], timeout: float) -> None:
        """Send ``batch`` in one write. Neither connecting nor any answer takes longer than ``timeout`` seconds."""
        with self._mutex:
            if node not in self._senders:
                self._senders[node] = []
                node.on_close.append(lambda: self._forget(node))
            for sender in self._senders[node]:
                if sender.timeout <= timeout:
                    sender.batch += batch
                    return
            sender = _Sender(timeout, batch)
            self._senders[node].append(sender)
        thread = make_thread(lambda me: self._run(node, sender), "redislock-sender")
        if not try_start(thread):
            self._run(node, sender)  # none is left, or the process is about to end: better late than not at all

    def _run(self, node: Node, sender: _Sender) -> None:
        try:
            self._send_all(node, sender)
        except BaseException:  # of any kind: a thread that ends must get nothing more to send
            with self._mutex:
                self._senders[node] = [other for other in self._senders[node] if other is not sender]
            raise

    def _send_all(self, node: Node, sender: _Sender) -> None:
        connection: Any = None
        while True:
            with self._mutex:
                # so many at a time: an answer counts once all of its batch are there, and leases go on ending
                batch, sender.batch = sender.batch[:BATCH], sender.batch[BATCH:]
                if not batch:
                    self._senders[node].remove(sender)
                    if _is_open(connection) and node not in self._spare and not (node.closed or node.config.memory):
                        self._spare[node], connection = connection, None
                    break
            try:
                if not _is_open(connection):
                    connection = self._connection(node, sender.timeout)
                answers, sent = send_now(node, connection, batch, None)
                _ask_replicas(connection, batch, answers, sender.timeout)
                if any(map(hints_at_failover, answers)):
                    connection.disconnect()
            except Exception as error:  # of any kind: the watchdog must hear of it
                if connection is not None:
                    connection.disconnect()
                with self._mutex:
                    batch, sender.batch = batch + sender.batch, []  # one failure of all, not one after the other
                self._failed(self._outages, node, batch, error)
            else:
                self._answered(node, batch, answers, sent)
        if connection is not None:
            connection.disconnect()

    def _connection(self, node: Node, timeout: float) -> Any:
        """The spare one, or a new one where there is none, or the server has closed it."""
        spare = self._spare.pop(node, None)
        if spare is not None:
            if isinstance(spare, node.config.kind) and not is_stale(spare):  # redis_away() has a class of its own
                change_timeout(spare, timeout)
                return spare
            spare.disconnect()
        return node.config.connection(timeout)

    def _forget(self, node: Node) -> None:
        with self._mutex:
            spare = self._spare.pop(node, None)
        if spare is not None:
            spare.disconnect()

    def send_last(self, batch: Iterable[Outgoing]) -> None:
        """Send them before the process ends, and its threads with it, in this thread. Takes LAST_WORDS in all."""
        batches, _ = _by_node(batch)
        end = monotonic() + LAST_WORDS
        for nodes, (node, batch) in zip(range(len(batches), 0, -1), batches.items(), strict=True):
            # each node gets its share of the time left, for connecting and for the answers
            patience = max(0.02, (end - monotonic()) / nodes)
            by = monotonic() + patience
            connection = node.config.connection(min(node.config.timeout, patience / 2))
            try:
                send_now(node, connection, batch, by)
            except Exception as error:
                if any(outgoing.task.matters for outgoing in batch):
                    log_event(WARNING, "releases-not-sent", alias=node.config.alias, error=error)
            finally:
                connection.disconnect()

    # -- what comes of it -------------------------------------------------------------------------------------------

    def _answered(self, node: Node, batch: list[Outgoing], answers: list[Any], sent: float) -> None:
        moved: list[Outgoing] = []
        refused: list[Outgoing] = []
        unacknowledged: list[Outgoing] = []
        trouble: ResponseError | None = None
        lag: ResponseError | None = None
        for outgoing, answer in zip(batch, answers, strict=True):
            partition = outgoing.task.partition
            partition.heard_from(node)
            if not isinstance(answer, ResponseError):
                self._on_answer(outgoing, answer, node, sent)
            elif partition.store.redirect(partition, answer, node):
                moved.append(outgoing)
            elif isinstance(answer, Unacknowledged):
                lag = answer
                unacknowledged.append(outgoing)
            else:
                trouble = trouble or answer
                refused.append(outgoing)
        self._again(moved, 0.0)
        if lag is not None:
            self._failed(self._lags, node, unacknowledged, lag)
        elif any(outgoing.replicas for outgoing in batch):
            self._recovered(self._lags, node)
        if trouble is not None:
            self._failed(self._outages, node, refused, trouble)
        elif self._recovered(self._outages, node):
            for partition in {outgoing.task.partition for outgoing in batch}:
                self._on_recovery(partition)

    def _recovered(self, outages: _Outages, node: Node) -> bool:
        """Return whether an outage is over."""
        over = outages.pop(node, None)
        if over is not None and over.end_is_due():
            self._notifier.log(WARNING, "renewal-recovered", alias=node.config.alias, outage=over.lasted)
        return over is not None

    def _failed(self, outages: _Outages, node: Node, batch: list[Outgoing], error: Exception) -> None:
        outage = outages.get(node)
        if outage is None or outage.is_stale(node.config.timeout):
            outage = outages[node] = Outage()
        self._again(batch, outage.fail())
        if any(outgoing.task.matters for outgoing in batch) and outage.log_is_due():
            self._notifier.log(
                WARNING,
                "renewal-failed",
                alias=node.config.alias,
                tasks=len(batch),
                outage=outage.lasted,
                error=wording(error),
            )
        # a node of a cluster that says so may be cut off from the others, and not know who has its slots now
        replaced = hints_at_failover(error)
        cut_off = replaced or isinstance(error, ClusterDownError)
        for store in {outgoing.task.partition.store for outgoing in batch}:
            if replaced:
                store.demoted(node, error)
            if cut_off or not isinstance(error, (ResponseError, *BLAMELESS)):
                store.look_around(None if isinstance(error, Refused) else node)


def _is_open(connection: Any) -> bool:
    return connection is not None and connection._sock is not None


def send_now(node: Node, connection: Any, batch: Sequence[Outgoing], by: float | None) -> tuple[list[Any], float]:
    """Send ``batch``; return the answers, and the monotonic time at which they were sent. ``by``: see exchange()."""
    threads: ThreadConnections | None = None
    try:
        run(connect(connection))
    except (Refused, AuthenticationError):  # it is full, say, or wants another password: those that there are go on
        threads = batch[0].task.partition.store.threads
        waits = any(outgoing.replicas for outgoing in batch)  # for replicas, by the connection that has written
        if waits or not any(pooled.node is node for pooled in threads.idle.copy()):
            raise

    def send(commands: Sequence[Command]) -> list[Any]:
        if threads is None:
            return exchange(connection, commands, by)
        return threads.exchange(node, commands, by or monotonic() + connection.socket_timeout)[0]

    sent = monotonic()
    answers = send([outgoing.command for outgoing in batch])
    run(believe(connection, sent))
    refused = [i for i, answer in enumerate(answers) if wants_source(batch[i].command, answer)]
    if refused:
        again = send([with_source(batch[i].command) for i in refused])
        for i, answer in zip(refused, again, strict=True):
            answers[i] = answer
    return answers, sent


def _ask_replicas(connection: Any, batch: list[Outgoing], answers: list[Any], timeout: float) -> None:
    """Put errors in place of the renewals that too few replicas have acknowledged (C6)."""
    wanted = max(outgoing.replicas for outgoing in batch)
    if not wanted:
        return
    try:
        (count,) = exchange(connection, [ask_replicas(wanted, timeout)])
    except Exception as error:  # the others are answered
        connection.disconnect()
        count = error
    for i, outgoing in enumerate(batch):
        found = count if isinstance(count, int) else 0
        if found < outgoing.replicas and not isinstance(answers[i], ResponseError) and answers[i][0] == HELD:
            # as a server with min-replicas-to-write does
            text = f"{found} of {outgoing.replicas} replicas acknowledged it"
            answers[i] = Unacknowledged(f"NOREPLICAS {text}" if found is count else f"{text}: {wording(count)}")


def _by_node(batch: Iterable[Outgoing]) -> tuple[dict[Node, list[Outgoing]], list[Outgoing]]:
    """Return which go to which node; and those whose node is not known."""
    batches: dict[Node, list[Outgoing]] = defaultdict(list)
    lost: list[Outgoing] = []
    for outgoing in batch:
        node = outgoing.task.partition.node_if_known
        (lost if node is None else batches[node]).append(outgoing)
    return batches, lost
