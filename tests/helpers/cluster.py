"""A real Redis Cluster on the loopback interface, for the time of a block. It needs Redis 7 or Valkey.

Every method that changes something waits until all nodes that can be reached agree on it, unless it says otherwise.
Nothing is persisted: a master that is started again before a failover comes back empty, and empties its replicas.
"""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
import redis

import rediscluster
from rediscluster import HOST, ClusterNode, Seen, join, meet
from redisserver import NoServerError

from .actors import asked_for, until
from .processes import MissingError, require
from .proxy import Proxy

BY_ITSELF = 20.0  # seconds within which the nodes usually agree again


def find_cluster_server() -> str:
    """The executable that the tests use, or one that is new enough."""
    try:
        return rediscluster.find_cluster_server()
    except NoServerError as error:
        raise MissingError("Redis 7 or newer", "apt-get install redis-server, or name one in REDIS_SERVER") from error


class Node(ClusterNode):
    """One node. With ``number``, its bus is behind a proxy, and its connections come from an address of its own."""

    def __init__(self, executable: str, number: int | None, **options: Any) -> None:
        self.address = "" if number is None else f"127.0.0.{number + 2}"
        self.paused = False
        self.proxy: Proxy | None = None
        super().__init__(executable, **options)
        if self.address:
            # which does not count as one of this machine
            self.options |= {"bind-source-addr": self.address, "protected-mode": "no"}

    def take_ports(self) -> None:
        super().take_ports()
        if self.address:
            if self.proxy:
                self.proxy.close()
            self.proxy = Proxy(self.bus_port)
            self.bus_port = self.proxy.port
            self.options["cluster-announce-bus-port"] = str(self.bus_port)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.paused = number == signal.SIGSTOP

    def stop(self) -> None:
        super().stop()
        self.paused = False

    def close(self) -> None:
        super().close()
        if self.proxy:
            self.proxy.close()

    def ask_all(self, commands: list[tuple[str | int, ...]]) -> None:
        """Send several commands at once, so that the node writes nodes.conf only once."""
        with self._asking.pipeline(transaction=False) as pipeline:
            for words in commands:
                pipeline.execute_command(*words)
            pipeline.execute()

    def replication(self) -> dict[str, Any]:
        return self._asking.info("replication")

    def is_linked(self) -> bool:
        return bool(self.replication()["master_link_status"] == "up")


class Cluster:
    """``options`` are those of redis.conf. A ``partitionable`` cluster can be split: its nodes speak to each other
    through proxies in this process."""

    def __init__(self, *, masters: int = 3, replicas: int = 1, partitionable: bool = False, **options: Any) -> None:
        self.executable = require(find_cluster_server)
        self.partitionable = partitionable
        self.options = {"cluster_node_timeout": 2000, **options}
        self.nodes: list[Node] = []
        self._cut_off: set[Node] = set()
        self._moves: dict[int, tuple[Node, Node]] = {}
        try:
            for _ in range(masters * (1 + replicas)):
                self._make()
            join(self.nodes, masters)
            for number, replica in enumerate(self.nodes[masters:]):
                master = self.nodes[number % masters]
                self._until(lambda master=master, replica=replica: master.id in replica.sees())  # type: ignore[misc]
                replica.ask("CLUSTER", "REPLICATE", master.id)
            self.wait_until_ok()
        except BaseException:
            self.close()
            raise

    def _make(self) -> Node:
        node = Node(self.executable, len(self.nodes) if self.partitionable else None, **self.options)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def reachable(self) -> list[Node]:
        """The nodes that run, and are not cut off."""
        return [node for node in self.nodes if node.process and not node.paused and node not in self._cut_off]

    def sees(self) -> dict[Node, Seen]:
        """What the first reachable node currently knows of all nodes."""
        seen = self.reachable()[0].sees()
        return {node: seen[node.id] for node in self.nodes if node.id in seen}

    def masters(self) -> list[Node]:
        return [node for node, seen in self.sees().items() if "master" in seen.flags and "fail" not in seen.flags]

    def replicas_of(self, master: Node) -> list[Node]:
        return [node for node, seen in self.sees().items() if seen.master == master.id and "fail" not in seen.flags]

    def owners(self) -> dict[int, Node]:
        """The owner of every slot. A master that died owns its slots until the failover."""
        return {slot: node for node, seen in self.sees().items() for slot in _slots(seen)}

    def owner_of(self, slot: int) -> Node:
        return self.owners()[slot]

    def is_ok(self) -> bool:
        """Whether all reachable nodes agree, see each other, and see a reachable owner for every slot; and all
        replicas are linked to their masters."""
        nodes = self.reachable()
        ids = {node.id for node in nodes}
        try:
            views = [node.sees() for node in nodes]
            roles, *others = [{id: (seen.master, seen.ranges) for id, seen in view.items()} for view in views]
            return (
                all(other == roles for other in others)
                and roles.keys() == {node.id for node in self.nodes}
                and all(view[id].is_up for view in views for id in ids)
                and all(id in ids for id, (_, ranges) in roles.items() if ranges)
                and all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in nodes)
                and all(node.is_linked() for node in nodes if roles[node.id][0] in ids)
            )
        except (redis.RedisError, KeyError):  # a node has just gone, is loading, or has just changed its role
            return False

    def wait_until_ok(self) -> None:
        self._until(self.is_ok)

    def _until(self, condition: Callable[[], Any]) -> None:
        try:
            until(condition, BY_ITSELF)
        except pytest.fail.Exception:
            self._fix()
            try:
                until(condition)
            except pytest.fail.Exception:
                for node in self.reachable():
                    print(f"{node.port}: {node.replication()}", node.ask("CLUSTER", "NODES").decode(), sep="\n")
                raise

    def _fix(self) -> None:
        """Like ``redis-cli --cluster fix``: where a master disagrees with most nodes about the owner of a slot, tell it
        the owner. With Redis 7.0 that may last for ever: a master that took over just after a slot had moved believes
        that the slot has no owner; one that was given a slot back, that it is still another's.

        Before, they meet again: on a busy machine, a handshake may have taken too long.
        """
        if not self.partitionable:
            meet(self.reachable())
            until(lambda: all({*node.sees()} >= {other.id for other in self.reachable()} for node in self.reachable()))
        views = {node: node.sees() for node in self.reachable()}
        votes: dict[int, Counter[str]] = defaultdict(Counter)
        for view in views.values():
            for id, seen in view.items():
                for slot in _slots(seen):
                    votes[slot][id] += 1
        owners = {slot: counts.most_common(1)[0][0] for slot, counts in votes.items()}
        for node, view in views.items():
            if "master" in view[node.id].flags:
                known = {slot: id for id, seen in view.items() for slot in _slots(seen)}
                wrong = [slot for slot, owner in owners.items() if known.get(slot) != owner]
                node.ask_all([("CLUSTER", "SETSLOT", slot, "NODE", owners[slot]) for slot in wrong])

    # faults: these do not wait

    kill = staticmethod(Node.stop)
    start = staticmethod(Node.start)  # with what it knew of the cluster
    pause, resume = staticmethod(Node.pause), staticmethod(Node.resume)

    def partition(self, cut_off: Node) -> None:
        """Cut this master off from the others; clients still reach all of them."""
        assert self.partitionable, "make the cluster with partitionable=True"
        for node in self.nodes:
            assert node.proxy is not None
            node.proxy.cut(*[other.address for other in self.nodes if (other is cut_off) != (node is cut_off)])
        # replication does not go through the proxies, but to the port for clients
        for node in self.replicas_of(cut_off):
            node.ask("CONFIG", "SET", "masterauth", "wrong")
            node.ask("CLIENT", "KILL", "TYPE", "master")
        self._cut_off = {cut_off}

    def heal(self) -> None:
        self._cut_off = set()
        for node in self.nodes:
            if node.proxy:
                node.proxy.mend()
        for node in self.reachable():
            node.ask("CONFIG", "SET", "masterauth", "")

    def wait_for_failover(self, old: Node) -> None:
        """Wait until others own the slots of a master that was killed, paused or cut off."""
        self._until(lambda: self.is_ok() and not self.sees()[old].ranges)

    def failover(self, replica: Node) -> None:
        """Make a replica a master. It gives up after five seconds, and reports that only in its log."""
        self._until(asked_for(lambda: replica in self.masters(), lambda: replica.ask("CLUSTER", "FAILOVER"), every=6))
        self.wait_until_ok()

    # slots that move while clients use them, the way redis-cli moves them

    def begin_move(self, *slots: int, to: Node) -> None:
        """Begin to move slots of one master. From now on, clients ask the new owner for keys that it does not have."""
        owners = self.owners()
        (source,) = {owners[slot] for slot in slots}
        self._moves |= dict.fromkeys(slots, (source, to))
        to.ask_all([("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id) for slot in slots])
        source.ask_all([("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id) for slot in slots])

    def migrate_keys(self, *slots: int) -> None:
        """Keys that the target has already are replaced. After a full sync, a replica may be sent nothing for a second,
        though its link is up. One that did not hear that slots have moved away, and is promoted then, still has their
        keys. Nobody is served them there: a slot has one owner, and what that has is what counts."""
        for slot in slots:
            source, target = self._moves[slot]
            while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.ask("MIGRATE", HOST, target.port, "", 0, 10_000, "REPLACE", "KEYS", *keys)

    def finish_move(self, *slots: int) -> None:
        ((source, target),) = {self._moves.pop(slot) for slot in slots}
        others = [node for node in self.masters() if node not in (source, target)]
        # the target first: the other way round, the slots would have no owner if it died in between
        for node in (target, source, *others):
            try:
                node.ask_all([("CLUSTER", "SETSLOT", slot, "NODE", target.id) for slot in slots])
            except (redis.ResponseError, redis.ConnectionError) as error:
                # otherwise it lost its last slot and is a replica now; Valkey then closes connections that wait for a
                # reply
                if "only with masters" not in str(error) and "closed by server" not in str(error):
                    raise
        self._until(lambda: self.is_ok() and dict.fromkeys(slots, target).items() <= self.owners().items())

    def move(self, *slots: int, to: Node) -> None:
        self.begin_move(*slots, to=to)
        self.migrate_keys(*slots)
        self.finish_move(*slots)

    def add_master(self) -> Node:
        known, node = self.reachable(), self._make()
        node.start()
        for other in known:
            node.ask("CLUSTER", "MEET", HOST, other.port, other.bus_port)
        self.wait_until_ok()
        return node

    def remove(self, node: Node) -> None:
        """Remove a node; before that, its slots go to the other masters."""
        slots = [slot for slot, owner in self.owners().items() if owner is node]
        others = [other for other in self.masters() if other is not node]
        share = -(-len(slots) // len(others))
        for number, other in enumerate(others):
            if some := slots[number * share : (number + 1) * share]:  # in one piece, for short lists of ranges
                self.move(*some, to=other)
        # the replicas follow the slots; a replica cannot forget its master
        self._until(lambda: not self.replicas_of(node))
        self.nodes.remove(node)
        for other in self.reachable():
            other.ask("CLUSTER", "FORGET", node.id)
        node.close()
        self.wait_until_ok()


def _slots(seen: Seen) -> Iterator[int]:
    return (slot for first, last in seen.ranges for slot in range(first, last + 1))


def redis_cluster(**options: Any) -> AbstractContextManager[Cluster]:
    return closing(Cluster(**options))
