"""A Redis Cluster as a lock store. redis-py's own cluster code knows its slots. See C1 to C7 in docs/protocol.rst.

Whatever the cluster looks like, a name has one of TAGS hash tags, and thereby a slot. The cluster may move slots
between nodes: nothing here depends on where a slot is.

That another node has taken over is learned in four ways: from MOVED (``redirect``); from a lost connection, after which
the cluster is asked (``suspect``); from an answer that comes late, which another node has to confirm
(``may_be_replaced``); and for messages, when another node answers (``Partition.heard_from``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from redis.cluster import ClusterNode, NodesManager
from redis.crc import key_slot
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    ResponseError,
)

from ..base.names import slot_text
from ..base.processes import make_thread, try_start
from ..base.times import monotonic
from .aliases import Address, RedisConfig
from .lock_store import LockStore, Partition
from .loop_connections import ENTERING
from .node import Node
from .wire import NO_FAILOVER_WITHIN, Command, NotAsked, Replaced

TAGS = 64  # never to be changed: one name in two slots is two locks
ASKING_TAKES = 1.0  # seconds that a node may take to say where the slots are
CONFIRMED_WITHIN = 3.0  # seconds to wait for another node to confirm the late answer of one that was silent


def tag_of(name: str) -> int:
    """C1: the tag of all that belongs to a name, the same in every process and on every cluster."""
    return crc32(slot_text(name).encode()) % TAGS


class Question(concurrent.futures.Future["BaseException | None"]):
    """Calls ``ask`` with itself, and is done when that returns or raises; all who wait get a ConnectionError then.

    ``begun`` is set by ``ask``: the answer is at least as recent as that (monotonic). It has a thread of its own, so it
    goes on whatever happens to those who wait, and none of an event loop's executor: all of these may be waiting for a
    lock that a task of this loop holds. Where no thread can be started, the constructor asks.
    """

    def __init__(self, ask: Callable[[Question], object]) -> None:
        super().__init__()
        self.begun: float = math.inf  # not yet
        if not try_start(make_thread(lambda me: self._run(ask), "redislock-question")):
            self._run(ask)

    def _run(self, ask: Callable[[Question], object]) -> None:
        try:
            ask(self)
        except BaseException as error:
            self.set_result(error)
        else:
            self.set_result(None)

    def answer(self, by: float | None) -> None:
        """Wait until it is done. Raises NotAsked at ``by`` (monotonic)."""
        try:
            error = self.result(_left(by))
        except concurrent.futures.TimeoutError:
            raise NotAsked("the cluster did not say in time where its slots are") from None
        if error is not None:
            raise ConnectionError(str(error)) from error  # a new one for each who waits: it keeps its own traceback

    async def aanswer(self, by: float | None) -> None:
        """The same in an event loop. Where tests have frozen its clock, wait until it is done."""
        await asyncio.wait({asyncio.wrap_future(self)}, timeout=_left(by))  # others wait, too: it is not cancelled
        self.answer(-math.inf)


def _left(by: float | None) -> float | None:
    return None if by is None else max(0.0, by - monotonic())


class Cluster(LockStore):
    """See the module and LockStore."""

    tags = TAGS
    clustered = True

    def __init__(self, config: RedisConfig, key_prefix: str) -> None:
        super().__init__(config, key_prefix)
        self._nodes: dict[str, Node] = {}  # by address
        self._met: list[Address] = []  # of all nodes, replicas among them
        self._slots = {tag: key_slot(str(tag).encode()) for tag in range(TAGS)}
        self._owners: dict[int, str] = {}  # of all slots, as the last answer named them
        self._stale_since = 0.0  # when slots may have moved last (monotonic): what was read before does not count
        self._read_at = -math.inf  # what we know is at least as recent as this (monotonic)
        self._question: Question | None = None  # the latest one: where are the slots?
        self._mutex = threading.RLock()  # held to begin a question
        self._reading = threading.RLock()  # held while the cluster is asked
        self._known = threading.RLock()  # held to change what we know of the cluster

    def _make_partition(self, tag: int) -> Partition:
        return ClusterPartition(self, tag)

    def partition_for(self, name: str) -> Partition:
        return self.partition(tag_of(name))

    def partition_of(self, key: str) -> Partition:
        slot = key_slot(key.encode())
        tag = TAGS + slot  # which no name has
        with self._known:
            if tag not in self._slots:
                self._slots[tag] = slot
                if slot in self._owners:
                    self._node_by_tag[tag] = self._node_at(self._owners[slot])
                else:
                    self._stale_since = monotonic()  # whose slot that is, is not known yet
        return self.partition(tag)

    # -- its nodes --------------------------------------------------------------------------------------------------

    def node_of(self, tag: int, by: float | None = None, since: float = 0.0) -> Node:
        if self._read_at <= max(since, self._stale_since):
            self._ask(since).answer(by)
        return self._node_by_tag[tag]

    async def anode_of(self, tag: int, by: float | None = None, since: float = 0.0) -> Node:
        """See node_of()."""
        if self._read_at <= max(since, self._stale_since):
            await self._ask(since).aanswer(by)
        return self._node_by_tag[tag]

    def _ask(self, since: float = 0.0) -> Question:
        """All who need the answer share one question, unless something has happened since it was asked."""
        with self._mutex:
            question = self._question
            if question is None or question.done() or question.begun <= max(since, self._stale_since):
                # kept once it has begun: whoever is interrupted here leaves none that will never be done
                question = self._question = Question(self._read_cluster)
            return question

    def _read_cluster(self, question: Question) -> None:
        with self._reading:
            question.begun = now = monotonic()
            try:
                manager = self._ask_nodes()
                self._met = [(node.host, int(node.port)) for node in manager.nodes_cache.values()]
                with self._known:
                    self._node_by_tag |= self._read_nodes_by_tag(manager)
                    for owner in self._node_by_tag.values():
                        if owner.suspected_at < owner.answered_at < now:
                            owner.suspected_at = 0.0  # C7: it had not been replaced when it answered
                self._read_at = now
                self._forget_the_gone()
            finally:
                if self._question is question:
                    self._question = None

    def _ask_nodes(self) -> NodesManager:
        """Ask the suspected nodes last: they may hang, or not know of a failover yet."""
        suspected = {address for address, node in list(self._nodes.items()) if node.suspected_at}
        # those in the settings, too: all that were met may have got new addresses since
        known = dict.fromkeys([*self._met, *self.config.startup])
        sure = [(host, port) for host, port in known if f"{host}:{port}" not in suspected]
        for met in (True, False):
            with suppress(RedisClusterException):
                return self._ask_any([each for each in sure if (each in self._met) is met])
        return self._ask_any(known)

    def _ask_any(self, addresses: Collection[Address]) -> NodesManager:
        patience = min(self.timeout, ASKING_TAKES)
        keywords = {key: value for key, value in self.config.keywords.items() if key not in ("host", "port")}
        keywords |= {"socket_timeout": patience, "socket_connect_timeout": patience}
        nodes = [ClusterNode(host, port) for host, port in addresses]
        try:
            return NodesManager(
                startup_nodes=nodes,
                from_url=True,  # makes it accept any class of connections
                connection_class=self.config.kind,
                address_remap=self.config.remap,
                **keywords,
            )
        finally:
            for node in nodes:
                if node.redis_connection is not None:  # redis-py would leave it to the garbage collector
                    node.redis_connection.connection_pool.disconnect()

    def _read_nodes_by_tag(self, manager: NodesManager) -> dict[int, Node]:
        """The node of each tag. For a slot that nobody serves it is any node, whose answer will be CLUSTERDOWN.

        Locks in other slots are not affected.
        """
        # there are thousands of slots, and this is done after each trouble: the text that a node has anyway
        self._owners = {slot: nodes[0].name for slot, nodes in manager.slots_cache.items() if nodes}
        some = next((self._owners[slot] for slot in self._slots.values() if slot in self._owners), None)
        if some is None:
            raise RedisClusterException("no node serves the slots of locks")
        return {tag: self._node_at(self._owners.get(slot, some)) for tag, slot in self._slots.items()}

    def _forget_the_gone(self) -> None:
        """Forget the nodes that serve no tag: as nodes come and go, each would keep a connection or two."""
        with self._known:
            owners = {node.config.address for node in self._node_by_tag.values()}
            gone = [self._nodes.pop(address) for address in self._nodes.keys() - owners]
        for node in gone:
            node.close()
            super().suspect(node)  # closes the unused connections to it

    def _node_at(self, address: str) -> Node:
        host, _, port = address.rpartition(":")
        return self._nodes.get(address) or self._nodes.setdefault(address, Node(self.config.at(host, int(port))))

    def suspect(self, node: Node | None) -> None:
        """As in LockStore; here, the slots may have moved as well."""
        super().suspect(node)
        self._suspect(node)

    def _suspect(self, node: Node | None) -> None:
        with self._known:
            self._stale_since = monotonic()
            if node is not None:
                node.suspected_at = self._stale_since

    def may_be_replaced(self, node: Node, sent: float) -> bool:
        """C7: whether another node may have replaced this one, which has just answered what was ``sent`` then."""
        now = monotonic()
        late = now - sent > NO_FAILOVER_WITHIN
        if not (late or node.suspected_at):
            return False
        with self._known:
            node.suspected_at = node.suspected_at or (sent if late else 0.0)
            if late or node.answered_at < node.suspected_at:
                node.answered_at = now
        return bool(node.suspected_at)

    def look_around(self, suspected: Node | None = None) -> None:
        if suspected is not None:
            self.suspect(suspected)
        self._ask()

    def redirect(self, partition: Partition, error: ResponseError, node: Node) -> bool:
        # ASK needs no reaction: a script has several keys, and has to wait until all of them have moved
        if isinstance(error, ClusterDownError):
            self._suspect(node)
        if not isinstance(error, MovedError):
            return False
        host = error.host or str(node.config.keywords["host"])  # "" means the host that was asked
        remap = self.config.remap
        address = (host, int(error.port)) if remap is None else remap((host, int(error.port)))
        with self._known:
            self._node_by_tag[partition.tag] = self._node_at("{}:{}".format(*address))
        self._forget_the_gone()
        return True


class ClusterPartition(Partition):
    """Here, another node may have the locks by now."""

    store: Cluster

    def exchange(self, commands: Sequence[Command], by: float | None = None) -> tuple[list[Any], Node]:
        store = self.store
        node = store.node_of(self.tag, by)
        answers, sent = store.threads.exchange(node, commands, by)
        if store.may_be_replaced(node, sent):
            owner = node
            with suppress(ConnectionError):  # no node can be asked
                owner = store.node_of(self.tag, _confirmed_by(by), node.answered_at)
            _believe(node, owner)
        self.heard_from(node)
        return answers, node

    async def aexchange(
        self, commands: Sequence[Command], by: float | None = None, *, urgency: int = ENTERING
    ) -> tuple[list[Any], Node]:
        store = self.store
        node = await store.anode_of(self.tag, by)
        answers, sent = await store.aexchange(node, commands, by, urgency=urgency)
        if store.may_be_replaced(node, sent):
            owner = node
            with suppress(ConnectionError):  # no node can be asked
                owner = await store.anode_of(self.tag, _confirmed_by(by), node.answered_at)
            _believe(node, owner)
        self.heard_from(node)
        return answers, node


def _confirmed_by(by: float | None) -> float | None:
    """The answer is there, and may have been in time, however late this process has read it."""
    return None if by is None else max(by, monotonic() + CONFIRMED_WITHIN)


def _believe(node: Node, owner: Node) -> None:
    """C7: ``node`` has answered after a silence; ``owner`` is the one whose answer counts."""
    if owner is not node:
        raise Replaced(f"{node.config.address} was silent, and {owner.config.address} has replaced it")
