"""Nodes of a private Redis Cluster on the loopback interface, for the tests and the benchmark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import redis

from redisserver import NoServerError, RedisServer, find_server, free_ports

HOST = "127.0.0.1"
SLOTS = 16384
OLDEST = 7
START_SECONDS = 60


def find_cluster_server() -> str:
    """What :func:`find_server` finds; if that is too old and was not named by $REDIS_SERVER, the next one on PATH.

    Before Redis 7, neither the port of the bus nor the address of its connections can be set.
    """
    first = find_server()
    others = [] if os.environ.get("REDIS_SERVER") else os.get_exec_path()
    found = [shutil.which(name, path=path) for name in ("redis-server", "valkey-server") for path in others]
    for executable in [first, *filter(None, found)]:
        said = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"v=(\d+)", said)
        if version is not None and int(version[1]) >= OLDEST:
            return executable
    raise NoServerError(
        f"A private cluster needs Redis {OLDEST} or newer, or Valkey, and there is none. Install one (Debian and "
        f"Ubuntu: apt-get install redis-server), or name an executable in the environment variable REDIS_SERVER."
    )


class Seen(NamedTuple):
    """What a node knows of another node, or of itself: a line of CLUSTER NODES."""

    flags: set[str]
    master: str  # its id; "-" for a master
    connected: bool
    ranges: list[list[int]]  # ranges of slots: the first and the last

    @property
    def is_up(self) -> bool:
        return self.connected and not self.flags & {"fail", "fail?", "handshake", "noaddr"}


class ClusterNode(RedisServer):
    """One node, which knows no other node when it starts."""

    def __init__(self, executable: str, **options: Any) -> None:
        super().__init__(executable, **options)
        self.id = ""
        self.options |= {"cluster-enabled": "yes", "cluster-announce-ip": HOST}

    def take_ports(self) -> None:
        self.port, self.bus_port = free_ports(2)
        self.options["cluster-port"] = str(self.bus_port)
        self._asking = self.client(socket_timeout=10)

    def start(self) -> RedisServer:
        super().start()
        self.id = self.ask("CLUSTER", "MYID").decode()
        return self

    def stop(self) -> None:
        super().stop()
        self.hang_up()  # a connection to the old process would fail the first command to the next one

    def hang_up(self) -> None:
        """Close the connection of ask(), which the node counts like any other."""
        self._asking.close()

    def ask(self, *words: str | bytes | int) -> Any:
        """The raw reply to a command."""
        return self._asking.execute_command(*words)

    def sees(self) -> dict[str, Seen]:
        """All nodes that this one knows, by id."""
        seen = {}
        for line in self.ask("CLUSTER", "NODES").decode().splitlines():
            id, _, flags, master, *_, link, slots = [*line.split(maxsplit=8), ""][:9]
            # "[7->-id]": a slot that is being moved
            ranges = [[int(end) for end in part.split("-")] for part in slots.split() if not part.startswith("[")]
            pairs = [[part[0], part[-1]] for part in ranges]
            seen[id] = Seen(set(flags.split(",")) - {"myself"}, master, link == "connected", pairs)
        return seen


def join(nodes: Sequence[ClusterNode], masters: int) -> None:
    """Start them all and make them one cluster, whose slots the first ``masters`` share. Does not wait until they agree
    on it."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(ClusterNode.start, nodes))
    for number, node in enumerate(nodes):
        node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)  # otherwise they take a while to agree on different ones
    for number, node in enumerate(nodes[:masters]):
        node.ask("CLUSTER", "ADDSLOTSRANGE", number * SLOTS // masters, (number + 1) * SLOTS // masters - 1)
    meet(nodes)


def meet(nodes: Sequence[ClusterNode]) -> None:
    """Introduce them to each other: each to each, which is faster than gossip."""
    for node, other in combinations(nodes, 2):
        node.ask("CLUSTER", "MEET", HOST, other.port, other.bus_port)


@contextmanager
def private_masters(count: int, **options: Any) -> Iterator[list[ClusterNode]]:
    """A cluster of so many masters without replicas, for the duration of a block. ``options``: see RedisServer."""
    executable = find_cluster_server()
    nodes: list[ClusterNode] = []
    try:
        for _ in range(count):
            nodes.append(ClusterNode(executable, **options))  # noqa: PERF401
        join(nodes, count)
        deadline = time.monotonic() + START_SECONDS
        while not _agree(nodes):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes of a cluster did not find each other within {START_SECONDS} s")
            time.sleep(0.01)
        for node in nodes:
            node.hang_up()
        yield nodes
    finally:
        for node in nodes:
            node.close()


def _agree(nodes: Sequence[ClusterNode]) -> bool:
    """Whether each node sees all others, and an owner for every slot."""
    try:
        return all(
            b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
            and len(seen := node.sees()) == len(nodes)
            and all(one.is_up and one.ranges for one in seen.values())
            for node in nodes
        )
    except redis.RedisError:
        return False
