"""What can go wrong with a Redis Cluster, and with a master that three sentinels watch, without and with replicas that
acknowledge grants. And how many grants that a client believes in are lost with a master, with and without them."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from statistics import median
from time import monotonic, sleep
from typing import Any

import redis
from django.test import override_settings

from django_redislock import Lock, LockUnavailable
from redisserver import RedisServer, redis_server
from tests.cluster.conftest import names_on, slot_of
from tests.helpers.actors import until
from tests.helpers.cluster import Cluster, Node, redis_cluster
from tests.helpers.processes import require
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import Sentinels
from tests.inside import counter_of, let_go

from .faults import Fault, fault
from .trial import Trial, alias

ON_SENTINELS: list[Fault] = []
ON_CLUSTER: list[Fault] = []
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2 + [4.0]  # the last one outlasts a failover
SEEDS = 3  # nodes that the workers know from the start and that stay in the cluster
# seconds: a process learns that a tag has moved when it next uses one of its locks. Until it is subscribed there,
# its waiters count as gone, and others overtake them
SETTLED = 5.0
# seconds for which sentinels wait for a silent master that nobody has killed: a busy machine may delay it for long, and
# of a failover that nobody knows of, nobody knows what it forgets
PATIENCE = 300.0
# those for which they wait for one that was killed: its successor has as many, until they are patient again
DEAD_AFTER = 2.0


class OnSentinels(RedisServer):
    """The current master, and the ``group``. ``settings`` are those of the workers."""

    def __init__(self, group: Sentinels, **settings: Any) -> None:
        self.group = group
        self.settings = settings
        self.cache = group.alias()
        self.follow()

    def follow(self) -> "OnSentinels":
        """Become the server that is the master now."""
        self.__dict__ |= vars(self.group.master_server())
        return self


@contextmanager
def on_sentinels(**settings: Any) -> Iterator[RedisServer]:
    with closing(require(partial(Sentinels, sentinels=3, replicas=2))) as group:
        group.wait_for_it(PATIENCE)
        yield OnSentinels(group, **settings)


with_replicas = partial(on_sentinels, REPLICAS=1)
watched = partial(fault, to=ON_SENTINELS, options={"holds": HOLDS})


@watched("the same, with ``REPLICAS = 1``", server=with_replicas)
@watched("Sentinel: the master dies", server=on_sentinels)
def kill_watched(run: Trial, meanwhile: Callable[[], object] | None = None) -> None:
    assert isinstance(run.server, OnSentinels)
    group = run.server.group
    with run.trouble(forgets=True):
        old = replace_master(group, meanwhile)
    run.moved(run.server.follow())
    with run.trouble():
        old.start()
        group.wait_until_ok()


@watched("this too, with ``REPLICAS = 1``", server=with_replicas)
@watched("Sentinel promotes a replica without the last writes", server=on_sentinels)
@watched("Sentinel: the master dies, replicas without the last writes", server=on_sentinels)
def kill_watched_of_deaf_replicas(run: Trial) -> None:
    """They have received nothing for the last half second."""
    kill_watched(run, lambda: sleep(0.5))


def replace_master(group: Sentinels, meanwhile: Callable[[], object] | None = None) -> RedisServer:
    """Kill the master, and return it once it has a successor, which has received nothing of ``meanwhile``."""
    old = group.master_server()
    followers = [client for server, client in zip(group.servers, group.clients, strict=True) if server is not old]
    if meanwhile:
        for client in followers:  # a password that nobody asked for: the link stays down
            client.config_set("masterauth", "wrong")
            client.execute_command("CLIENT", "KILL", "TYPE", "master")
        meanwhile()
    old.stop()
    group.wait_for_it(DEAD_AFTER)
    until(lambda: group.master_server() is not old)
    group.wait_for_it(PATIENCE)
    for client in followers:
        client.config_set("masterauth", "")
    group.wait_for_failover(old)
    return old


class OnCluster(RedisServer):
    """``settings`` are those of the workers."""

    settings = {"CLUSTER": True}
    counter = staticmethod(counter_of)  # each tag has its own counter of fences

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cache = alias([node.url for node in cluster.nodes[:SEEDS]])
        self.names = [name for node in cluster.masters() for name in names_on(cluster, node, 2)]

    def client(self, **options: Any) -> redis.Redis:
        return self.cluster.reachable()[0].client(**options)

    def masters(self) -> list[redis.Redis]:
        return [node.client() for node in self.cluster.masters()]


@contextmanager
def on_cluster(*, partitionable: bool = False) -> Iterator[RedisServer]:
    with redis_cluster(partitionable=partitionable) as cluster:
        yield OnCluster(cluster)


partitionable = partial(on_cluster, partitionable=True)
on_any = partial(fault, to=ON_CLUSTER, server=on_cluster, options={"holds": HOLDS})
# two can hold at once only with a lease that outlasts the failover, as this one does; nobody is interrupted, or there
# would be hardly any long sections
LONG = {"holds": [0.0] * 4 + [0.1] * 2 + [8.0], "ttl": 9.0, "interrupts": 0.0}
long_leases = partial(fault, to=ON_CLUSTER, options=LONG)


def cluster_of(run: Trial) -> Cluster:
    assert isinstance(run.server, OnCluster)
    return run.server.cluster


def any_master(run: Trial) -> tuple[Cluster, Node, Node]:
    """One that has a replica, and that one."""
    cluster = cluster_of(run)
    master = run.random.choice([node for node in cluster.masters() if cluster.replicas_of(node)])
    return cluster, master, cluster.replicas_of(master)[0]


@contextmanager
def failover(run: Trial, master: Node) -> Iterator[None]:
    """The block injects a fault of the master; then this waits until its replica has taken over."""
    with run.trouble(forgets=True, after=SETTLED):
        yield
        cluster_of(run).wait_for_failover(master)


def come_back(run: Trial, undo: Callable[[], object]) -> None:
    """As a replica."""
    with run.trouble(after=SETTLED):
        undo()
        cluster_of(run).wait_until_ok()


@on_any("cluster: a master dies (``kill -9``)")
def kill_master(run: Trial, *, lags: bool = False) -> None:
    """``lags``: its replica has received nothing for the last half second."""
    cluster, master, replica = any_master(run)
    with failover(run, master):
        if lags:
            replica.ask("CONFIG", "SET", "masterauth", "wrong")
            replica.ask("CLIENT", "KILL", "TYPE", "master")
            sleep(0.5)
        cluster.kill(master)
    replica.ask("CONFIG", "SET", "masterauth", "")
    come_back(run, lambda: cluster.start(master))


@long_leases("cluster: the same, its replica without the last writes, TTL 9 s", server=on_cluster)
def kill_master_of_lagging_replica(run: Trial) -> None:
    kill_master(run, lags=True)


@on_any("cluster: a master hangs, and goes on after the failover")
def hang_master(run: Trial) -> None:
    cluster, master, _ = any_master(run)
    with failover(run, master):
        cluster.pause(master)
        cluster.wait_for_failover(master)
        come_back(run, lambda: cluster.resume(master))


@long_leases("cluster: a master is cut off from the others, TTL 9 s", server=partitionable)
def cut_off_master(run: Trial) -> None:
    """The other nodes cannot reach it, but workers can: it goes on until it finds itself in the minority."""
    cluster, master, _ = any_master(run)
    with failover(run, master):
        cluster.partition(master)
    come_back(run, cluster.heal)


@on_any("cluster: a failover by hand")
def fail_over(run: Trial) -> None:
    cluster, _, replica = any_master(run)
    with run.trouble(after=SETTLED):
        cluster.failover(replica)


# a replica takes over that may lack what its master had acknowledged
FORGETFUL = {"kill_master", "kill_master_of_lagging_replica", "hang_master", "cut_off_master"}
TAGS = {slot_of(f"tag:{number}") for number in range(2000)}  # the slots of all locks


@on_any("cluster: the slots of all locks move")
def move_slots(run: Trial) -> None:
    cluster = cluster_of(run)
    masters, owners = cluster.masters(), cluster.owners()
    with run.trouble(after=SETTLED):
        for node, following in zip(masters, [*masters[1:], masters[0]], strict=True):
            cluster.move(*[slot for slot in TAGS if owners[slot] is node], to=following)


@on_any("cluster: a node joins, gets slots, and leaves")
def change_nodes(run: Trial) -> None:
    cluster = cluster_of(run)
    with run.trouble(after=SETTLED):
        joined, owners = cluster.add_master(), cluster.owners()
        for node in {owners[slot] for slot in TAGS}:
            cluster.move(*[slot for slot in TAGS if owners[slot] is node][::2], to=joined)
    run.obtained(2)
    with run.trouble(after=SETTLED):
        cluster.remove(joined)


# One server replicates another over a slow link, as between two data centres. The master is killed while clients
# acquire locks, what was on the link is lost with it, and the replica is promoted: it has a grant, or has not.
LAG = 0.005  # the least time in seconds that data takes over the link
LOAD_FOR = 0.1  # seconds until the death of the master
CLIENTS = 8

Grant = tuple[str, int, float]  # the name, the fence, seconds from the request to the grant


def acquire_locks(client: int) -> list[Grant]:
    """New ones, until Redis is gone."""
    found: list[Grant] = []
    for number in count():
        lock, began = Lock(f"{client}:{number}", ttl=60, auto_renew=False), monotonic()
        try:
            lock.acquire()
        except LockUnavailable:
            break
        found.append((lock.name, lock.fence or 0, monotonic() - began))
    return found


def follow(master: RedisServer, replica: RedisServer, link: Proxy) -> None:
    link.mend()
    with master.client() as client, replica.client() as other:
        client.flushall()
        other.replicaof("127.0.0.1", str(link.port))
        until(lambda: other.info("replication")["master_link_status"] == "up")
        client.set("mark", 1)
        assert client.wait(1, 10_000) == 1


def lose_master(master: RedisServer, replica: RedisServer, link: Proxy) -> tuple[list[Grant], int]:
    """What the clients believe in, and how much of it the new master does not have."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        running = [threads.submit(acquire_locks, client) for client in range(CLIENTS)]
        sleep(LOAD_FOR)
        master.stop()
        link.cut()
    believed = [grant for one in running for grant in one.result()]
    with replica.client() as new:
        new.replicaof("NO", "ONE")
        there = new.mget([f"redislock{{0}}:lock:{name}" for name, *_ in believed])
    kept = sum(
        str(fence).encode() in (value or b"").split() for (_, fence, _), value in zip(believed, there, strict=True)
    )
    return believed, len(believed) - kept


def count_losses(replicas: int, failovers: int) -> tuple[Counter[str], float]:
    """How many grants were believed and lost, in how many failovers; median of the seconds to acquire a free lock."""
    found, took = Counter[str](), list[float]()
    with ExitStack() as stack:
        options = {"repl_diskless_sync": "no"}  # with it, nothing is streamed for a second after a full sync
        pair = [stack.enter_context(redis_server(**options)) for _ in range(2)]
        links = {server: stack.enter_context(proxy(server.port)) for server in pair}
        for link in links.values():
            link.delay_message("", LAG, times=10**9)
        for _ in range(failovers):
            master, replica = pair
            follow(master, replica, links[master])
            settings = {"REPLICAS": replicas, "RETRY_FOR": 0.0}
            with override_settings(CACHES={"default": alias(master.url)}, REDISLOCK=settings):
                believed, lost = lose_master(master, replica, links[master])
                let_go()
            found += Counter(believed=len(believed), lost=lost, struck=lost > 0)
            took += [seconds for *_, seconds in believed]
            master.start()
            pair.reverse()
    return found, median(took)
