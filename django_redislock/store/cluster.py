"""A Redis Cluster as a lock store. redis-py's own cluster code knows its slots. See C1 to C7 in docs/protocol.rst.

Whatever the cluster looks like, a name has one of TAGS hash tags, and thereby a slot. The cluster may move slots
between nodes: nothing here depends on where a slot is.
"""

from __future__ import annotations

import math
import threading
from typing import Any
from zlib import crc32

from django.core.exceptions import ImproperlyConfigured
from redis.cluster import ClusterNode, NodesManager
from redis.connection import ConnectionPool
from redis.crc import key_slot
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
)

from ..base.times import monotonic
from .aliases import Origin
from .lock_store import LockStore, Partition
from .node import Node
from .question import Question
from .wire import CONNECTION_ERRORS

TAGS = 64  # never to be changed: one name in two slots is two locks
OLDEST = 7
ASKING_TAKES = 1.0  # seconds that a node may take to say where the slots are
# seconds within which no replica takes over: once a master is seen to fail, a replica waits for at least half a second
NO_FAILOVER_WITHIN = 0.5


def tag_of(text: str) -> int:
    """C1: the tag of all that belongs to a name, the same in every process and on every cluster."""
    return crc32(text.encode()) % TAGS


def _clients(manager: NodesManager) -> list[Any]:
    return [node.redis_connection for node in manager.nodes_cache.values()]


class Cluster(LockStore):
    """See the module and LockStore."""

    tags = TAGS
    clustered = True

    def __init__(self, origin: Origin, key_prefix: str) -> None:
        super().__init__(origin, key_prefix)
        self._manager: NodesManager | None = None
        self._node_by_tag: dict[int, Node] = {}  # by tag
        self._slots = [key_slot(str(tag).encode()) for tag in range(TAGS)]
        self._since = 0.0  # when slots may have moved last (monotonic)
        self._read_at = -math.inf  # what we know is at least as recent as this (monotonic)
        self._question: Question | None = None  # the latest one: where are the slots?
        self._mutex = threading.RLock()  # held to begin a question
        self._reading = threading.RLock()  # held while the cluster is asked
        self._known = threading.RLock()  # held to change what we know of the cluster

    # -- its nodes --------------------------------------------------------------------------------------------------

    def node_of(self, tag: int, by: float | None = None, since: float = 0.0) -> Node:
        if self._read_at <= max(since, self._since):
            self._ask(since).answer(by)
        return self._node_by_tag[tag]

    async def anode_of(self, tag: int, by: float | None = None, since: float = 0.0) -> Node:
        if self._read_at <= max(since, self._since):
            await self._ask(since).aanswer(by)
        return self._node_by_tag[tag]

    def known_node(self, tag: int) -> Node | None:
        return self._node_by_tag.get(tag)

    def _ask(self, since: float = 0.0) -> Question:
        """All who need the answer share one question, unless something has happened since it was asked."""
        with self._mutex:
            question = self._question
            if question is None or not question.pending or question.begun <= max(since, self._since):
                question = self._question = Question(self._answer)
                question.begin()
            return question

    def _answer(self, question: Question) -> None:
        with self._reading:
            question.begun = now = monotonic()
            try:
                self._ask_manager(now)
                self._read_at = now
                self._forget_the_gone()
            except RedisClusterException as error:
                raise ConnectionError(str(error)) from error
            finally:
                if self._question is question:
                    self._question = None

    def _ask_manager(self, now: float) -> None:
        if self._manager is None:
            manager = self._make_manager()
            self._check_version(manager)
            self._manager = manager
        else:
            self._initialize(self._manager)
        for client in _clients(self._manager):
            client.connection_pool.disconnect()  # not needed until the next question
        with self._known:
            self._node_by_tag |= self._read_nodes_by_tag(self._manager)
            for owner in self._node_by_tag.values():
                if owner.doubted_at < owner.answered_at < now:
                    owner.doubted_at = 0.0  # C7: it had not been replaced when it answered

    def _read_nodes_by_tag(self, manager: NodesManager) -> dict[int, Node]:
        """The node of each tag. For a slot that nobody serves it is any node, whose answer will be CLUSTERDOWN.

        Locks in other slots are not affected.
        """
        found: dict[int, Node] = {}
        missing: SlotNotCoveredError | None = None
        for tag, slot in enumerate(self._slots):
            try:
                node = manager.get_node_from_slot(slot)
            except SlotNotCoveredError as error:
                missing = error
            else:
                found[tag] = self._node_at(node.host, int(node.port))
        if missing is None:
            return found
        if not found:
            raise missing
        return dict.fromkeys(range(TAGS), next(iter(found.values()))) | found

    def _initialize(self, manager: NodesManager) -> None:
        """Ask the nodes in doubt last: they may hang, or not know of a failover yet."""
        # redis-py forgets the nodes in the settings, though all others may have got new addresses since
        met = manager.startup_nodes
        known = {node.name: node for node in self._named()} | met
        doubted = {address for address, node in list(self._nodes.items()) if node.doubted_at}
        failure: RedisClusterException | None = None
        # nodes in the settings may be known under other names already, or have left the cluster
        for names in (met.keys() - doubted, known.keys() - met.keys() - doubted, known.keys() & doubted):
            if names:
                manager.startup_nodes = {name: known[name] for name in names}
                try:
                    manager.initialize()
                    return
                except RedisClusterException as error:
                    failure = error
        manager.startup_nodes = known
        assert failure is not None
        raise failure

    def _forget_the_gone(self) -> None:
        """Forget the nodes that serve no tag: as nodes come and go, each would keep a connection or two."""
        with self._known:
            owners = {node.origin.address for node in self._node_by_tag.values()}
            gone = [self._nodes.pop(address) for address in self._nodes.keys() - owners]
        for node in gone:
            super().doubt(node)  # closes the connections of event loops
            node.close()

    def _named(self) -> list[ClusterNode]:
        return [ClusterNode(host, port) for host, port in self.origin.startup]

    def _make_manager(self) -> NodesManager:
        keywords: dict[str, Any] = {
            key: value for key, value in self.origin.keywords.items() if key not in ("host", "port")
        }
        patience = min(self.timeout, ASKING_TAKES)
        keywords |= {"socket_timeout": patience, "socket_connect_timeout": patience}
        return NodesManager(
            startup_nodes=self._named(),
            from_url=True,  # makes it accept any class of connections
            connection_pool_class=ConnectionPool,
            connection_class=self.origin.kind,
            address_remap=self.origin.remap,
            **keywords,
        )

    def _check_version(self, manager: NodesManager) -> None:
        for client in _clients(manager):
            try:
                text = str(client.info("server")["redis_version"])
            except ResponseError:
                return  # the user may not ask; without sharded pub/sub, waiters poll
            except CONNECTION_ERRORS:
                continue  # this node is down: ask the next one
            if int(text.split(".")[0]) < OLDEST:
                raise ImproperlyConfigured(
                    f"The Redis Cluster used for locks (cache alias {self.alias!r}) is version {text}; locks on a "
                    f"cluster need Redis {OLDEST} or later, for sharded pub/sub."
                )
            return

    def _node_at(self, host: str, port: int) -> Node:
        address = f"{host}:{port}"
        return self._nodes.get(address) or self._nodes.setdefault(address, Node(self.origin.at(host, port)))

    def doubt(self, node: Node | None) -> None:
        """As in LockStore; here, the slots may have moved as well. See doubts()."""
        super().doubt(node)
        self._doubt(node)

    def _doubt(self, node: Node | None) -> None:
        with self._known:
            self._since = monotonic()
            if node is not None:
                node.doubted_at = self._since

    def doubts(self, node: Node, sent: float) -> bool:
        now = monotonic()
        late = now - sent > NO_FAILOVER_WITHIN
        if not (late or node.doubted_at):
            return False
        with self._known:
            node.doubted_at = node.doubted_at or (sent if late else 0.0)
            if late or node.answered_at < node.doubted_at:
                node.answered_at = now
        return bool(node.doubted_at)

    def look_around(self, node: Node) -> None:
        self.doubt(node)
        self._ask()

    def redirect(self, partition: Partition, error: ResponseError, node: Node) -> bool:
        # ASK needs no reaction: a script has several keys, and has to wait until all of them have moved
        if isinstance(error, ClusterDownError):
            self._doubt(node)
        if not isinstance(error, MovedError):
            return False
        address = self._remap(error, node)
        with self._known:
            self._node_by_tag[partition.tag] = self._node_at(*address)
        self._forget_the_gone()
        return True

    def _remap(self, error: Any, node: Node) -> tuple[str, int]:
        host = error.host or str(node.origin.keywords["host"])  # "" means the host that was asked
        remap = self.origin.remap
        found: tuple[str, int] = (host, int(error.port)) if remap is None else remap((host, int(error.port)))
        return found
