"""What can go wrong with a Redis Cluster, injected into a real one while workers use locks on all its masters.

Each fault is one row of the documentation's table "What happens when" (docs/faults.rst).
"""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

import redis

from redisserver import RedisServer
from tests.cluster.conftest import names_on, slot_of
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import Node
from tests.helpers.requirements import require
from tests.inside import counter_of

from .faults import PATIENT, PROCESSES, SIT_OUT, TOLD, YES, Fault
from .trial import Trial, alias

SEEDS = 3  # nodes that the workers know from the start and that stay in the cluster
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2 + [4.0]  # the last one outlasts a failover


class OnCluster(RedisServer):
    """A cluster as the server of a trial. ``settings`` are those of its workers."""

    def __init__(self, cluster: Cluster, **settings: Any) -> None:
        self.cluster = cluster
        self.settings = {"CLUSTER": True, **settings}
        self.cache = alias([node.url for node in cluster.nodes[:SEEDS]])
        self.names = [name for node in cluster.masters() for name in names_on(cluster, node, 2)]

    @staticmethod
    def counter(name: str) -> int:
        """Each tag has its own counter of fences."""
        return counter_of(name)

    def client(self, **options: Any) -> redis.Redis:
        return self.cluster.reachable()[0].client(**options)

    def masters(self) -> list[redis.Redis]:
        """Clients of all masters with slots."""
        return [node.client() for node in self.cluster.masters()]


@contextmanager
def on_cluster(*, partitionable: bool = False, **settings: Any) -> Iterator[RedisServer]:
    with require(lambda: redis_cluster(partitionable=partitionable)) as cluster:
        yield OnCluster(cluster, **settings)


def partitionable() -> AbstractContextManager[RedisServer]:
    return on_cluster(partitionable=True)


def cluster_of(run: Trial) -> Cluster:
    assert isinstance(run.server, OnCluster)
    return run.server.cluster


# seconds: a process learns that a tag has moved when it next uses one of its locks. Until it is subscribed there,
# its waiters count as gone, and others overtake them
SETTLED = 5.0


def any_master(run: Trial) -> Node:
    """A master that has a replica."""
    cluster = cluster_of(run)
    return run.random.choice([node for node in cluster.masters() if cluster.replicas_of(node)])


# -- a replica takes over ----------------------------------------------------------------------------------------------


@contextmanager
def failover_of(master: Node, run: Trial) -> Iterator[None]:
    """The block injects a fault of the master; then this waits until its replica has taken over."""
    with run.trouble(forgets=True, after=SETTLED):
        yield
        cluster_of(run).wait_for_failover(master)


def kill_master(run: Trial) -> None:
    cluster, master = cluster_of(run), any_master(run)
    with failover_of(master, run):
        cluster.kill(master)
    come_back(run, lambda: cluster.start(master))


def kill_master_of_lagging_replica(run: Trial) -> None:
    """Its replica has received nothing for the last half second."""
    cluster, master = cluster_of(run), any_master(run)
    (replica,) = cluster.replicas_of(master)
    with failover_of(master, run):
        replica.ask("CONFIG", "SET", "masterauth", "wrong")
        replica.ask("CLIENT", "KILL", "TYPE", "master")
        run.last(0.5)
        cluster.kill(master)
    replica.ask("CONFIG", "SET", "masterauth", "")
    come_back(run, lambda: cluster.start(master))


def hang_master(run: Trial) -> None:
    """The master hangs until a replica has taken over, and then continues with its old state."""
    cluster, master = cluster_of(run), any_master(run)
    with run.trouble(forgets=True, after=SETTLED):
        cluster.pause(master)
        cluster.wait_for_failover(master)
        come_back(run, lambda: cluster.resume(master))


def cut_off_master(run: Trial) -> None:
    """The other nodes cannot reach it, but workers can: it goes on until it finds itself in the minority."""
    cluster, master = cluster_of(run), any_master(run)
    with failover_of(master, run):
        cluster.partition(master)
    come_back(run, cluster.heal)


def fail_over(run: Trial) -> None:
    cluster = cluster_of(run)
    (replica,) = cluster.replicas_of(any_master(run))
    with run.trouble(after=SETTLED):
        cluster.failover(replica)


def come_back(run: Trial, undo: Callable[[], object]) -> None:
    """As a replica."""
    with run.trouble(after=SETTLED):
        undo()
        cluster_of(run).wait_until_ok()


# -- slots and nodes ---------------------------------------------------------------------------------------------------


def move_slots(run: Trial) -> None:
    """The slots of all tags go to the next master."""
    cluster = cluster_of(run)
    masters = cluster.masters()
    next_one = dict(zip(masters, [*masters[1:], masters[0]], strict=True))
    owners = cluster.owners()
    slots = [slot_of(name) for name in one_of_each_tag()]
    with run.trouble(after=SETTLED):
        for node in masters:
            cluster.move(*[slot for slot in slots if owners[slot] is node], to=next_one[node])


def change_nodes(run: Trial) -> None:
    """A node joins and gets slots from all others; then it gives them back and leaves."""
    cluster = cluster_of(run)
    with run.trouble(after=SETTLED):
        joined = cluster.add_master()
        owners = cluster.owners()
        slots = [slot_of(name) for name in one_of_each_tag()]
        for node in {owners[slot] for slot in slots}:
            cluster.move(*[slot for slot in slots if owners[slot] is node][::2], to=joined)
    run.obtained(2)
    with run.trouble(after=SETTLED):
        cluster.remove(joined)


def one_of_each_tag() -> list[str]:
    found: dict[int, str] = {}
    for number in range(2000):
        found.setdefault(slot_of(f"tag:{number}"), f"tag:{number}")
    assert len(found) == 64
    return list(found.values())


# two can hold at once only with a lease that outlasts the failover, as this one does
LONG_TTL, LONG_HOLDS = 9.0, [0.0] * 4 + [0.1] * 2 + [8.0]
ON_CLUSTER = [
    Fault("cluster: a master dies (``kill -9``)", kill_master, PATIENT, SIT_OUT, YES, server=on_cluster, holds=HOLDS),
    Fault(
        "cluster: the same, its replica without the last writes, TTL 9 s", kill_master_of_lagging_replica, PATIENT,
        SIT_OUT, YES, server=on_cluster, holds=LONG_HOLDS, ttl=LONG_TTL,
    ),
    Fault(
        "cluster: a master hangs, and goes on after the failover", hang_master, PATIENT, SIT_OUT, YES,
        server=on_cluster, holds=HOLDS
    ),
    Fault(
        "cluster: a master is cut off from the others, TTL 9 s", cut_off_master, TOLD, SIT_OUT, YES,
        server=partitionable, holds=LONG_HOLDS, ttl=LONG_TTL,
    ),
    Fault("cluster: a failover by hand", fail_over, "nothing", "queue again", server=on_cluster, holds=HOLDS),
    Fault("cluster: the slots of all locks move", move_slots, "calls wait", "wait", server=on_cluster, holds=HOLDS),
    Fault(
        "cluster: a node joins, gets slots, and leaves", change_nodes, "calls wait", "wait", server=on_cluster,
        holds=HOLDS
    ),
]  # fmt: skip


def strike_in_turn(run: Trial, seconds: float) -> Counter[str]:
    """Inject these faults in random order, with a rest after each, while processes are killed and stopped. Return how
    many."""
    over, struck = threading.Event(), Counter[str]()
    chance = random.Random(run.random.random())
    end = monotonic() + seconds

    def strike_processes() -> None:
        while not over.wait(chance.random() * 8):
            chance.choice(PROCESSES)(run)

    other = threading.Thread(target=strike_processes)
    other.start()
    try:
        while monotonic() < end:
            fault = run.random.choice(ON_CLUSTER)
            print(f"{monotonic():.3f} {fault.strike.__name__}", flush=True)
            fault.strike(run)
            run.last(2 + run.random.random() * 4)
            run.obtained()
            struck[fault.strike.__name__] += 1
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        over.set()
        other.join()
    return struck
