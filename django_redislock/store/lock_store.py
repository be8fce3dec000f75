"""A lock store: the locks of one cache alias, and the connections of this process to their Redis.

``LockStore`` is for one server or Sentinel's master, cluster.py for a cluster.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from ..conf import conf
from .aliases import RedisConfig
from .loop_connections import ENTERING, LoopConnections
from .node import Node
from .thread_connections import ThreadConnections
from .wire import BLAMELESS, Command, Refused, is_read_only

# Fences from here on are not remembered, and so not written back once somebody has deleted them. Far from 9e15, where
# next_fence() in Lua refuses to go on, so that nobody remembers what led there. Clocks come here in 2223
HIGHEST_KNOWN = 8 * 10**15
_KEPT = "_django_redislock"  # the attribute of an event loop with its connections, by store


class LockStore:
    """The connections of this process to the Redis of one alias: here, to one server or to Sentinel's master.

    All keys of one name have the same hash tag, a number. Here there is only one tag.
    """

    tags: int = 1
    clustered: bool = False

    def __init__(self, config: RedisConfig, key_prefix: str) -> None:
        self.config: RedisConfig = config
        self.alias: str = config.alias
        self.memory: bool = config.memory
        self.timeout: float = config.timeout
        own = f"{config.key_prefix}:" if config.key_prefix else ""
        self.prefix: str = f"{own}{key_prefix}"
        # locks in the same store exclude each other
        self.identity: tuple[object, ...] = (config.database, self.prefix)
        self.closed: bool = False
        self._on_close: list[Callable[[], object]] = []
        self.on_loop_end: list[Callable[[asyncio.AbstractEventLoop], object]] = []
        self.partitions: dict[int, Partition] = {}  # by tag; those that were needed so far
        self.bound: int = min(int(config.pool.max_connections), conf().MAX_CONNECTIONS)
        self._node_by_tag: dict[int, Node] = {} if self.clustered else {0: Node(config)}  # as far as it is known
        self.threads: ThreadConnections = ThreadConnections(self.bound, config)
        if config.sentinels is not None:
            config.sentinels.turn.on_change = self._replace_master
        # the loop alone keeps them: one that is dropped without being closed is collected, and they with it (but not
        # where a coroutine of it waits for a lock; see _forget_closed_loops() for one that is closed)
        self._loops: dict[weakref.ref[asyncio.AbstractEventLoop], weakref.ref[LoopConnections]] = {}

    # -- its locks --------------------------------------------------------------------------------------------------

    def partition(self, tag: int) -> Partition:
        """The partition of a tag: the same object each time."""
        return self.partitions.get(tag) or self.partitions.setdefault(tag, self._make_partition(tag))

    def _make_partition(self, tag: int) -> Partition:
        return Partition(self, tag)

    def partition_for(self, name: str) -> Partition:
        """The partition with all keys of a lock, pool or value."""
        return self.partition(0)

    def partition_of(self, key: str) -> Partition:
        """By which to reach a ``key`` that is none of ours."""
        return self.partition(0)

    def everywhere(self) -> list[Partition]:
        """The partitions of all tags."""
        return [self.partition(tag) for tag in range(self.tags)]

    # -- its nodes --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> set[Node]:
        """The nodes that this process knows."""
        return {*self._node_by_tag.values()}

    def node_of(self, tag: int, by: float | None = None, since: float = 0.0) -> Node:
        """The node that runs the scripts on locks with this tag; the cluster is asked for it if necessary.

        Times are monotonic. ``by``: when to give up. ``since``: what is known from before does not count.
        """
        return self._node_by_tag[tag]

    def suspect(self, node: Node | None) -> None:
        """Make the next command connect anew (and ask another sentinel): the node was unreachable, or is no master."""
        if node is not None:
            node.doubt()
            self.threads.drop_idle(node)
            self._in_loops(lambda connections: connections.drop_idle(node))

    def demoted(self, node: Node | None, error: Exception) -> None:
        """``node`` says that it may be no master any more. What leads to its address may end at another server now."""
        self.suspect(node)
        if not self.clustered and is_read_only(error):
            self._subscribe_anew()

    def _replace_master(self) -> None:
        """Sentinels name another master: nothing leads to the former one any more, which may hang, or not know it.

        Connections to it are closed, those in use when they are given back. The subscription is cut: the successor
        hands no lock to those who listen there.
        """
        former, self._node_by_tag[0] = self._node_by_tag[0], Node(self.config)
        former.close()
        self.suspect(former)
        self._subscribe_anew()

    def _subscribe_anew(self) -> None:
        for partition in list(self.partitions.values()):
            partition.on_demotion()

    def blame(self, node: Node | None, error: Exception) -> None:
        """Draw the consequences of an error by which a node could not be asked."""
        if isinstance(error, Refused):
            self.look_around()
        elif not isinstance(error, BLAMELESS):
            self.suspect(node)

    def look_around(self, suspected: Node | None = None) -> None:
        """After trouble with a node, find out in the background whether another one has taken over.

        On a cluster, ``suspected`` is suspect from now on. None: only a new connection was Refused. The node may be
        dead, behind a proxy that takes connections for it, or full: then those that there are go on.
        """
        self._node_by_tag[0].doubt()

    def redirect(self, partition: Partition, error: ResponseError, node: Node) -> bool:
        """Learn from an error of ``node`` which node has these locks now. Returns whether the error says so."""
        return False

    # -- commands ---------------------------------------------------------------------------------------------------

    async def aexchange(
        self, node: Node, commands: Sequence[Command], by: float | None = None, *, urgency: int = ENTERING
    ) -> tuple[list[Any], float]:
        """See ThreadConnections.exchange(). ``urgency``: which waiting coroutines come first; see LEAVING."""
        if self.memory:
            await asyncio.sleep(0)  # nothing is waited for, but other coroutines must have their turns
            return self.threads.exchange(node, commands)
        connections = self.connections_in(asyncio.get_running_loop()) or await self._begin_in_loop()
        return await connections.exchange(node, commands, by, urgency=urgency)

    def connections_in(self, loop: asyncio.AbstractEventLoop) -> LoopConnections | None:
        """Return those of this event loop, if there are any."""
        kept = self._loops.get(weakref.ref(loop))
        return None if kept is None else kept()

    async def _begin_in_loop(self) -> LoopConnections:
        """Make the connections of the running event loop."""
        loop = asyncio.get_running_loop()
        self._forget_closed_loops()
        ends = getattr(loop, "_asyncgens_shutdown_called", False)
        made = LoopConnections(self.bound)
        vars(loop).setdefault(_KEPT, {})[self] = made
        self._loops[weakref.ref(loop)] = weakref.ref(made)
        made.closed = self.closed or ends
        if not ends:  # else the loop would not tell us when it ends
            made.end = self._until_it_ends(loop, made)
            await made.end.__anext__()
        return made

    async def _until_it_ends(
        self, loop: asyncio.AbstractEventLoop, made: LoopConnections
    ) -> AsyncGenerator[None, None]:
        """An event loop closes at its end the asynchronous generators that were begun in it."""
        try:
            yield
        finally:
            made.closed = True
            self._loops.pop(weakref.ref(loop), None)
            self._leave(loop, made)
            self._tell_end_of(loop)

    def _forget_closed_loops(self) -> None:
        """Not all tell us: some are closed without ending their asynchronous generators."""
        for kept in list(self._loops):
            loop = kept()
            if loop is None or loop.is_closed():
                self._loops.pop(kept, None)
                if loop is not None:
                    self._tell_end_of(loop)

    def _tell_end_of(self, loop: asyncio.AbstractEventLoop) -> None:
        for callback in self.on_loop_end:
            callback(loop)

    # -- closing ----------------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Close the connections unused for a while, but keep one for threads and one for each event loop."""
        self._forget_closed_loops()
        self.threads.trim()
        self._in_loops(LoopConnections.trim)

    def when_closed(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called when this is closed: at once, if it is. More than once where both come together."""
        self._on_close.append(callback)
        if self.closed:
            callback()

    def close(self) -> None:
        """Stop listening, and keep no connections from now on."""
        self.closed = True
        for callback in self._on_close:
            callback()
        for node in self.nodes:
            node.close()
        self.threads.close()
        for loop, connections in self._in_each_loop():
            connections.closed = True
            _call_in(loop, partial(self._leave, loop, connections))

    def _in_each_loop(self) -> list[tuple[asyncio.AbstractEventLoop, LoopConnections]]:
        found = [(loop(), connections()) for loop, connections in list(self._loops.items())]
        return [(loop, connections) for loop, connections in found if loop is not None and connections is not None]

    def _in_loops(self, act: Callable[[LoopConnections], object]) -> None:
        """Have ``act`` called in each event loop that has unused connections, with these."""
        for loop, connections in self._in_each_loop():
            if connections.idle:
                _call_in(loop, partial(act, connections))

    def _leave(self, loop: asyncio.AbstractEventLoop, connections: LoopConnections) -> None:
        """The loop keeps them no more."""
        vars(loop)[_KEPT].pop(self, None)
        connections.drop_idle()


def _call_in(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        pass  # the loop is closed, and so are its connections


class Partition:
    """The locks of one alias that share a hash tag: they are all in one slot, and so on one node.

    ``highest_fence`` is the highest that this process has seen among them.
    """

    def __init__(self, store: LockStore, tag: int) -> None:
        self.store: LockStore = store
        self.tag: int = tag
        self.alias: str = store.alias
        self.prefix: str = f"{store.prefix}{{{tag}}}:"
        # the same for all aliases of the same Redis; a text, as its hash is kept
        self.identity: str = f"{store.identity} {tag}"
        # "!" marks a channel of sharded pub/sub, see queue.lua
        self.channel: str = f"{self.prefix}wake{'!' if store.clustered else ':'}{secrets.token_urlsafe(12)}"
        self.highest_fence = 0
        # sequences without a call (calls_once.py): their key, the number of the last call, its name if it was given up
        self.free_sequences: list[tuple[str, int, str]] = []
        self.subscribed_at: Node | None = None  # the node to whose messages this process is subscribed
        # the listener's: called when another node has answered, and to cut its subscription at a former master
        self.on_other_node: Callable[[], object] = lambda: None
        self.on_demotion: Callable[[], object] = lambda: None

    @property
    def node_if_known(self) -> Node | None:
        """The node that runs the scripts, as far as it is known."""
        return self.store._node_by_tag.get(self.tag)

    @property
    def node(self) -> Node:
        """The same; if it is not known, the cluster is asked."""
        return self.node_if_known or self.store.node_of(self.tag)

    def note_fence(self, fence: int) -> None:
        """Remember this fence, or ticket, if it is the highest so far, and not absurd."""
        if self.highest_fence < fence < HIGHEST_KNOWN:
            self.highest_fence = fence

    def heard_from(self, node: Node) -> None:
        """C3: ``node`` has answered. If this process is subscribed at another one, its waiters have to look."""
        if self.subscribed_at is not None and self.subscribed_at is not node:
            self.on_other_node()

    def exchange(self, commands: Sequence[Command], by: float | None = None) -> tuple[list[Any], Node]:
        """The answers to several commands in one write, errors of single ones among them; and whose they are."""
        node = self.store._node_by_tag[0]
        return self.store.threads.exchange(node, commands, by)[0], node

    async def aexchange(
        self, commands: Sequence[Command], by: float | None = None, *, urgency: int = ENTERING
    ) -> tuple[list[Any], Node]:
        """See exchange(). ``urgency``: see LockStore.aexchange()."""
        node = self.store._node_by_tag[0]
        return (await self.store.aexchange(node, commands, by, urgency=urgency))[0], node
